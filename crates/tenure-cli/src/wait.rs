//! `tenure wait`: until a lock is free.
#![expect(
    clippy::disallowed_methods,
    reason = "a timer of this command's own; the clock of leases is the library's"
)]

use std::time::Duration;

use tenure::LockName;
use tokio::time::sleep;

use crate::cli::Wait;
use crate::exit::{BUSY, Failure};
use crate::{clock, status, store};

/// The longest pause between two questions.
const LONGEST: Duration = Duration::from_secs(1);

/// Asks until the lock is free; returns the code to exit with.
pub(crate) async fn wait(args: &Wait) -> Result<u8, Failure> {
    let locks = store::open_existing(&args.store)?;
    let limit = args.wait.map(|limit| clock::now() + limit);
    let mut pause = Duration::from_millis(20);
    loop {
        let Some(found) = locks.inspect(&args.name).await? else { return Ok(0) };
        let left = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(clock::now()));
        if left.is_zero() {
            let (name, holders) = (LockName::new(&args.name)?, status::holders(&found));
            return Err(Failure { code: BUSY, message: format!("lock {name:?} is held by {holders}") });
        }
        sleep(pause.min(left)).await;
        pause = (pause * 3 / 2).min(LONGEST);
    }
}
