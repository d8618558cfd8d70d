//! Runs a subcommand's requests, and reports failures.

use std::fmt::Display;

use tokio::runtime::Runtime;

use crate::exit::Failure;
use crate::output::Voice;
use crate::{limits, output, reaper, warnings};

/// Runs requests with timers and signals; returns the exit code.
pub(crate) fn run(voice: Voice, question: impl Future<Output = Result<u8, Failure>>) -> u8 {
    let _printer = (!voice.quiet).then(|| warnings::say(voice.verbose));
    // Single-threaded: the kernel kills a run's command when the *thread* that started it ends, and the main
    // thread lives longest.
    let answer = with_runtime(async |runtime| {
        if let Some(orphans) = reaper::reap_orphans()? {
            runtime.spawn(orphans);
        }
        question.await
    });
    code(answer, voice)
}

/// Runs requests with timers and signals, on this thread.
pub(crate) fn with_runtime<T>(
    question: impl AsyncFnOnce(&Runtime) -> Result<T, Failure>,
) -> Result<T, Failure> {
    limits::check()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::own("cannot start", &error))?;
    runtime.block_on(question(&runtime))
}

/// The exit code; reports a failure.
pub(crate) fn code(answer: Result<u8, Failure>, voice: Voice) -> u8 {
    answer.unwrap_or_else(|failure| {
        voice.say(failure.message);
        failure.code
    })
}

/// Prints a text without using a store; returns the exit code.
pub(crate) fn nothing_but(text: impl Display) -> u8 {
    code(output::print(text).map(|()| 0), Voice::LOUD)
}
