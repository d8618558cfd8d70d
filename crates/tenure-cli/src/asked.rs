//! Runs a subcommand's requests, and reports failures.

use std::fmt::Display;

use crate::exit::{self, Failure};
use crate::output::Voice;
use crate::{limits, output, reaper, warnings};

/// Runs requests with timers and signals; returns the exit code.
pub(crate) fn run(voice: Voice, question: impl Future<Output = Result<u8, Failure>>) -> u8 {
    let _printer = (!voice.quiet).then(|| warnings::say(voice.verbose));
    // Single-threaded: the kernel kills a run's command when the *thread* that started it ends, and the main
    // thread lives longest.
    let code = limits::check().and_then(|()| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::own("cannot start", &error))?;
        runtime.block_on(async {
            let orphans =
                reaper::reap_orphans().map_err(|error| Failure::own("cannot catch signals", &error))?;
            if let Some(orphans) = orphans {
                runtime.spawn(orphans);
            }
            question.await
        })
    });
    code.unwrap_or_else(|failure| {
        voice.say(failure.message);
        failure.code
    })
}

/// Prints a text without using a store; returns the exit code.
pub(crate) fn nothing_but(text: impl Display) -> u8 {
    match output::print(text) {
        Ok(()) => 0,
        Err(error) => {
            output::complain(format_args!("cannot print: {error}"));
            exit::OWN
        }
    }
}
