//! `tenure stop`: asks the commands that run under a lock to end.
#![expect(
    clippy::disallowed_methods,
    reason = "a timer of this command's own; the clock of leases is the library's"
)]

use std::time::Duration;

use tenure::{Holder, LockName, Status};
use tokio::time::sleep;

use crate::cli::Stop;
use crate::exit::{BUSY, FREE, Failure};
use crate::output;
use crate::{clock, status, store};

/// The longest pause between two questions.
const LONGEST: Duration = Duration::from_millis(500);

/// Asks, and waits until those who held the lock hold it no more; returns the code to exit with.
pub(crate) async fn stop(args: &Stop) -> Result<u8, Failure> {
    let locks = store::open_existing(&args.store)?;
    let limit = clock::now() + args.wait;
    let Some(asked) = locks.request_stop(&args.name, &args.reason).await? else {
        return print("free\n").map(|()| FREE);
    };
    let mut pause = Duration::from_millis(20);
    loop {
        let left = limit.saturating_sub(clock::now());
        let Some(still) = still_held(locks.inspect(&args.name).await?, &asked) else {
            return print(&format!("stopped: {}\n", status::holders(&asked))).map(|()| 0);
        };
        if args.wait.is_zero() {
            return print(&format!("asked: {}\n", status::holders(&asked))).map(|()| 0);
        }
        if left.is_zero() {
            let (name, holders) = (LockName::new(&args.name)?, status::holders(&still));
            let message = format!(
                "lock {name:?} is still held by {holders}; `tenure release --force` ends the hold \
                 itself, and its command then runs on until it notices"
            );
            return Err(Failure { code: BUSY, message });
        }
        sleep(pause.min(left)).await;
        pause = (pause * 3 / 2).min(LONGEST);
    }
}

/// Those of the holders that were asked who hold it still.
fn still_held(found: Option<Status>, asked: &Status) -> Option<Status> {
    let mut found = found?;
    let was_asked = |holder: &Holder| asked.holders.iter().any(|one| one.owner == holder.owner);
    found.holders.retain(was_asked);
    (!found.holders.is_empty()).then_some(found)
}

fn print(line: &str) -> Result<(), Failure> {
    output::print(line).map_err(|error| Failure::own("cannot print", &error))
}
