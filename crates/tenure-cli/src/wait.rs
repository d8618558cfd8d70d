//! `tenure wait`: waits until a lock is free.

use std::time::Duration;

use tenure::{Holder, LockName, Status};

use crate::cli::{Target, Wait};
use crate::exit::{BUSY, Failure, MISMATCH};
use crate::waiting::{LOOK, until_gone};
use crate::{ancestors, clock, status, store};

/// Maximum poll interval.
const LONGEST: Duration = Duration::from_secs(1);

/// Polls until the lock is free; returns the exit code.
pub(crate) async fn wait(args: &Wait) -> Result<u8, Failure> {
    let Target { name, store } = &args.target;
    let locks = store::open_existing(store)?;
    let limit = args.wait.map(|limit| clock::now() + limit);
    let Some(found) = store::unless_absent(&locks, locks.inspect(name)).await?? else { return Ok(0) };
    let above = ancestors::above();
    let is_above = |holder: &Holder| holder.owner.as_ref().is_some_and(|owner| above.contains(owner));
    if limit.is_none() && found.holders.iter().any(is_above) {
        let (name, holders) = (&found.name, status::holders(&found));
        let message = format!(
            "lock {name:?} is held by a run that started this one, which would wait for itself: {holders}; use -w \
             DURATION to wait anyway"
        );
        return Err(Failure::new(BUSY, message));
    }
    let locks = locks.with(|options| options.op_timeout(LOOK))?;
    let look = async || Ok(locks.inspect(name).await?.map(a_lock).transpose());
    let Some(found) = until_gone(limit, LONGEST, look).await? else { return Ok(0) };
    let (name, holders) = (LockName::new(name)?, status::holders(&found));
    Err(Failure::new(BUSY, format!("lock {name:?} is held by {holders}")))
}

/// Refuses what other programs keep at the name and may never remove.
fn a_lock(found: Status) -> Result<Status, Failure> {
    match found.foreign().filter(|what| !what.starts_with("a string") && what != "a hash") {
        Some(what) => Err(Failure::new(MISMATCH, format!("{:?} is not a lock: it is {what}", found.name))),
        None => Ok(found),
    }
}
