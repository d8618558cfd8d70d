//! Exit codes: that of CMD, 128 + N for a signal, and one for each failure of tenure.

use std::error::Error;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::Signal;

/// `status`: the lock is free.
pub(crate) const FREE: u8 = 1;
/// `stress`: there were violations.
pub(crate) const VIOLATED: u8 = 1;
/// `doctor`: there are findings.
pub(crate) const FINDINGS: u8 = 1;
/// An invalid flag, name, duration or URL.
pub(crate) const USAGE: u8 = 64;
/// The name is in use as another kind of lock, or by another program's data.
pub(crate) const MISMATCH: u8 = 65;
/// The store did not answer or refused, or the outcome is unknown.
pub(crate) const STORE: u8 = 69;
/// The lock is busy, or was until the end of the wait.
pub(crate) const BUSY: u8 = 75;
/// The lease was lost while CMD ran.
pub(crate) const LOST: u8 = 79;
/// An internal failure of this program.
pub(crate) const OWN: u8 = 125;
/// CMD exists but cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// CMD does not exist.
pub(crate) const NOT_FOUND: u8 = 127;

/// A reason to stop, with its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn own(what: &str, error: &io::Error) -> Self {
        Self::new(OWN, format!("{what}: {error}"))
    }
}

impl From<tenure::Error> for Failure {
    fn from(error: tenure::Error) -> Self {
        let (code, mut message) = (of_error(&error), chain(&error));
        if code == STORE
            && let Some(advice) = advice(&message)
        {
            message.push_str("; ");
            message.push_str(advice);
        }
        Self { code, message }
    }
}

/// An error and its causes, outermost first.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

/// A hint for a store that did not answer or refused, derived from the message.
pub(crate) fn advice(message: &str) -> Option<&'static str> {
    let known = [
        ("the files for TLS", "correct `ca`, `cert` and `key` in the store's URL, or the files"),
        ("the password file ", "correct `password-file` in the store's URL, or the file"),
        ("(password file: ", "correct the user in the store's URL, or the password in that file"),
        (
            "NOAUTH",
            "it requires a password: use redis://:PASSWORD@HOST, or add ?password-file=FILE to the URL",
        ),
        ("WRONGPASS", "correct the user or the password in the store's URL"),
        ("OOM command not allowed", "its memory is full: raise maxmemory, or delete unneeded data"),
        ("NOPERM", "`tenure doctor` prints the rights that this user lacks"),
        // Of a master named by a sentinel.
        (
            "master at ",
            "during a failover, run the command again or use -w DURATION; `tenure doctor` asks each sentinel",
        ),
        ("Connection refused", "no server listens there: start it, or correct the store's URL"),
        ("failed to lookup address", "correct the host in the store's URL"),
    ];
    known.iter().find(|(said, _)| message.contains(said)).map(|(_, advice)| *advice)
}

pub(crate) fn of_error(error: &tenure::Error) -> u8 {
    if error.is_invalid() || error.is_unsupported() {
        USAGE
    } else if error.is_mismatch() {
        MISMATCH
    } else if error.is_lost() {
        LOST
    } else if error.is_unreachable() || error.is_refused() || error.is_unknown() {
        STORE
    } else {
        OWN
    }
}

/// The exit code for CMD's exit status, as in a shell.
pub(crate) fn of_status(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => (code & 0xff) as u8,
        (None, Some(signal)) => of_raw_signal(signal),
        (None, None) => OWN,
    }
}

pub(crate) fn of_signal(signal: Signal) -> u8 {
    of_raw_signal(signal.as_raw())
}

fn of_raw_signal(signal: i32) -> u8 {
    128 + (signal & 0x7f) as u8
}

/// The exit code for a CMD that could not be started, as in a shell.
pub(crate) fn of_exec(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }
}

#[cfg(test)]
mod tests {
    use std::fmt::{self, Display};

    use super::*;

    #[test]
    fn a_cause_that_was_already_told_is_not_told_twice() {
        #[derive(Debug)]
        struct Outer(io::Error);
        impl Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("cannot read")
            }
        }
        impl Error for Outer {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        assert_eq!(chain(&Outer(io::Error::other("the disk"))), "cannot read: the disk");
    }

    #[test]
    fn the_status_of_the_command_is_passed_on() {
        for code in 0..=255 {
            assert_eq!(i32::from(of_status(ExitStatus::from_raw(code << 8))), code);
        }
    }

    #[test]
    fn a_signal_is_128_and_its_number() {
        assert_eq!(of_status(ExitStatus::from_raw(15)), 143);
        assert_eq!(of_status(ExitStatus::from_raw(9)), 137);
        assert_eq!(of_status(ExitStatus::from_raw(11 | 0x80)), 139, "a core dump changes nothing");
        assert_eq!(of_status(ExitStatus::from_raw(64)), 192, "the last real-time signal");
        assert_eq!(of_signal(Signal::INT), 130);
    }

    #[test]
    fn what_cannot_be_run_is_told_from_what_is_not_there() {
        assert_eq!(of_exec(&io::Error::from_raw_os_error(2)), 127);
        for number in [7, 8, 13, 20] {
            assert_eq!(of_exec(&io::Error::from_raw_os_error(number)), 126);
        }
    }

    #[test]
    fn what_a_store_says_is_followed_by_what_to_do() {
        assert!(
            advice("refused: NOAUTH Authentication required").is_some_and(|it| it.contains("password-file"))
        );
        assert!(advice("Connection refused (os error 111)").is_some_and(|it| it.contains("start it")));
        assert!(advice("refused: OOM command not allowed").is_some_and(|it| it.contains("maxmemory")));
        let of_sentinels = |who: &str| {
            let text = format!("no master of service `s` was found ({who}a:1: not sent: Connection refused)");
            advice(&text).unwrap_or_default()
        };
        assert!(of_sentinels("master at ").contains("failover") && of_sentinels("").contains("start it"));
        assert_eq!(advice("no answer within 1s"), None);
    }

    #[test]
    fn a_name_that_cannot_be_right_is_a_usage_error() {
        assert_eq!(Failure::from(tenure::LockName::new("").expect_err("no name")).code, 64);
    }
}
