//! Reports system limits before a dependency panics because of them.

use std::any::Any;
use std::io::{self, PipeReader, PipeWriter};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};

use rustix::io::Errno;

use crate::exit::{Failure, OWN};
use crate::output::complain;

/// Number of pipes that leaves enough descriptors to start both runtimes, with the pipe for signals.
const PIPES: usize = 6;

/// Fails if so few files may be open that a runtime would panic.
pub(crate) fn check() -> Result<(), Failure> {
    let pipes: io::Result<Vec<(PipeReader, PipeWriter)>> = (0..PIPES).map(|_| io::pipe()).collect();
    match pipes.map(drop) {
        Err(error) if is_limit(&error) => Err(Failure::new(OWN, TOO_MANY)),
        // Other errors are reported where they matter.
        _ => Ok(()),
    }
}

/// Runs `work`. A panic prints one line on standard error and exits with the code for internal failures.
pub(crate) fn or_panic_in_one_line(work: impl FnOnce() -> u8) -> u8 {
    panic::set_hook(Box::new(|info| complain(line(info))));
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or(OWN)
}

const TOO_MANY: &str = "too many files are open: raise the limit (`ulimit -n`)";

fn is_limit(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn line(info: &PanicHookInfo<'_>) -> String {
    let said = said(info.payload());
    if said.contains("Too many open files") || said.contains("code: 24") {
        return TOO_MANY.into();
    }
    let place = info.location().map(|place| format!(" ({}:{})", place.file(), place.line()));
    format!("defect of tenure, please report it: {said}{}", place.unwrap_or_default())
}

fn said(payload: &dyn Any) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_the_code_for_a_failure_of_this_program() {
        let before = panic::take_hook();
        let code = or_panic_in_one_line(|| panic!("on purpose"));
        panic::set_hook(before);
        assert_eq!(code, OWN);
    }
}
