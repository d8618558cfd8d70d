//! `tenure release --force`: ends what holds a lock.

use std::time::Duration;

use tenure::{ForcedRelease, LockName, Locks, Status};

use crate::cli::Release;
use crate::exit::{BUSY, Failure};
use crate::output::{self, Span};
use crate::{status, store};

/// Ends it, and prints what it was; returns whether there was something, as the code to exit with.
pub(crate) async fn release(args: &Release) -> Result<u8, Failure> {
    let locks = store::open_existing(&args.store)?;
    let ended = match (args.token, args.foreign) {
        (Some(token), _) => with_token(&locks, &args.name, token).await?,
        (None, true) => locks.force_release_foreign(&args.name).await?,
        (None, false) => locks.force_release(&args.name).await?,
    };
    let code = status::tell(&locks, "was held", &args.name, ended.as_ref(), args.json)?;
    if let Some(line) = ended.as_ref().filter(|_| !args.json).and_then(runs_on) {
        output::print(line).map_err(|error| Failure::own("cannot print", &error))?;
    }
    Ok(code)
}

/// Ends the hold with this token only. What holds the lock instead is told.
async fn with_token(locks: &Locks, name: &str, token: u64) -> Result<Option<Status>, Failure> {
    match locks.force_release_token(name, token).await? {
        ForcedRelease::Free => Ok(None),
        ForcedRelease::Ended(status) => Ok(Some(status)),
        ForcedRelease::Other(status) => {
            let (name, holders) = (LockName::new(name)?, status::holders(&status));
            let message = format!("lock {name} is not held with token {token}; it is held by {holders}");
            Err(Failure { code: BUSY, message })
        }
        other => unreachable!("all that a release can find: {other:?}"),
    }
}

/// How long a command of the holders may run on: it ends before the lease would have ended.
fn runs_on(ended: &Status) -> Option<String> {
    if ended.foreign().is_some() {
        return None;
    }
    let leases: Option<Vec<Duration>> = ended.holders.iter().map(|holder| holder.remaining).collect();
    Some(match leases?.into_iter().max()? {
        longest if ended.holders.len() == 1 => {
            format!("its command may run for up to {} more, until it notices\n", Span(longest))
        }
        longest => {
            format!("their commands may run for up to {} more, until they notice\n", Span(longest))
        }
    })
}
