//! `tenure wait`: waits until a lock is free.
#![expect(
    clippy::disallowed_methods,
    reason = "a timer of this command's own; the clock of leases is the library's"
)]

use std::time::Duration;

use tenure::{Holder, LockName};
use tokio::time::sleep;

use crate::cli::Wait;
use crate::exit::{BUSY, Failure, MISMATCH};
use crate::waiting::{LOOK, Silence};
use crate::{ancestors, clock, status, store};

/// Maximum poll interval.
const LONGEST: Duration = Duration::from_secs(1);

/// Polls until the lock is free; returns the exit code.
pub(crate) async fn wait(args: &Wait) -> Result<u8, Failure> {
    let locks = store::open_existing(&args.store)?;
    let limit = args.wait.map(|limit| clock::now() + limit);
    let mut pause = Duration::from_millis(20);
    let mut last = store::unless_absent(&locks, locks.inspect(&args.name)).await??;
    let locks = locks.with(|options| options.op_timeout(LOOK))?;
    let mut silence = Silence::default();
    let above = ancestors::above();
    let is_above = |holder: &Holder| holder.owner.as_ref().is_some_and(|owner| above.contains(owner));
    if let Some(found) = last.as_ref().filter(|found| limit.is_none() && found.holders.iter().any(is_above)) {
        let (name, holders) = (&found.name, status::holders(found));
        let message = format!(
            "lock {name:?} is held by a run that started this one, which would wait for itself: {holders}; use -w \
             DURATION to wait anyway"
        );
        return Err(Failure { code: BUSY, message });
    }
    loop {
        let Some(found) = &last else { return Ok(0) };
        if let Some(what) = found.foreign().filter(|what| !what.starts_with("a string") && what != "a hash") {
            let message = format!("{:?} is not a lock: it is {what}", found.name);
            return Err(Failure { code: MISMATCH, message });
        }
        let left = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(clock::now()));
        if left.is_zero() {
            let (name, holders) = (LockName::new(&args.name)?, status::holders(found));
            return Err(Failure { code: BUSY, message: format!("lock {name:?} is held by {holders}") });
        }
        sleep(pause.min(left)).await;
        pause = (pause * 3 / 2).min(LONGEST);
        match locks.inspect(&args.name).await {
            Ok(found) => {
                last = found;
                silence.ends();
            }
            Err(error) if limit.is_some_and(|limit| clock::now() >= limit) => return Err(error.into()),
            Err(error) => silence.outlasts(error, "still waiting")?,
        }
    }
}
