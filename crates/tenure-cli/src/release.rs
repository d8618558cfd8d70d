//! `tenure release`: ends a hold, by its owner or by force.

use std::time::Duration;

use tenure::{ForcedRelease, LockName, Owner, Status};

use crate::cli::Release;
use crate::exit::{BUSY, Failure, MISMATCH, USAGE};
use crate::output::{self, Span};
use crate::uses::Uses;
use crate::{acquire, status, store};

/// Ends the hold and prints it; returns the exit code.
pub(crate) async fn release(args: &Release) -> Result<u8, Failure> {
    if args.owner.is_none() && !args.force {
        let message = "say whose hold to release with --owner OWNER, or end all holds with --force";
        return Err(Failure::new(USAGE, message));
    }
    let (locks, name) = (store::open_existing(&args.target.store)?, &*args.target.name);
    if let Some(owner) = args.owner.as_ref().filter(|_| !args.force) {
        return acquire::release(&locks, name, owner).await;
    }
    let ended = async {
        Ok::<_, Failure>(match (&args.owner, args.token) {
            (Some(owner), _) => {
                let owner: Owner = owner.parse()?;
                ended(name, &format!("by {owner}"), locks.force_release_owner(name, &owner).await?)?
            }
            (None, Some(token)) => {
                ended(name, &format!("with token {token}"), locks.force_release_token(name, token).await?)?
            }
            (None, None) if args.foreign => locks.force_release_foreign(name).await?,
            (None, None) => locks.force_release(name).await.map_err(not_ours)?,
        })
    };
    let ended = store::unless_absent(&locks, ended).await??;
    let code = status::tell(&locks, "was held", name, ended.as_ref(), args.json)?;
    if ended.is_none()
        && !args.json
        && let Some(hint) = Uses::of(&locks, name).await.hint(name)
    {
        output::complain(hint);
    }
    if let Some(line) = ended.as_ref().and_then(runs_on).filter(|_| !args.json) {
        output::print(line)?;
    }
    Ok(code)
}

/// Adds a hint about the flag that releases another program's string.
fn not_ours(error: tenure::Error) -> Failure {
    let mut failure = Failure::from(error);
    if failure.code == MISMATCH && failure.message.contains("it is a string") {
        failure.message.push_str("; with --foreign it is released too");
    }
    failure
}

/// What a release of some holds only has ended; reports other holders.
fn ended(name: &str, aim: &str, came_to: ForcedRelease) -> Result<Option<Status>, Failure> {
    match came_to {
        ForcedRelease::Free => Ok(None),
        ForcedRelease::Ended(status) => Ok(Some(status)),
        ForcedRelease::Other(status) => {
            let (name, holders) = (LockName::new(name)?, status::holders(&status));
            Err(Failure::new(BUSY, format!("lock {name:?} is not held {aim}; it is held by {holders}")))
        }
        other => unreachable!("all that a release can find: {other:?}"),
    }
}

/// How long the holders may continue if no request or message of theirs gets through: until their leases would
/// have ended.
fn runs_on(ended: &Status) -> Option<String> {
    if ended.foreign().is_some() {
        return None;
    }
    let leases: Option<Vec<Duration>> = ended.holders.iter().map(|holder| holder.remaining).collect();
    let longest = Span(leases?.into_iter().max()?);
    Some(match ended.holders.len() {
        1 => format!("its holder may go on for up to {longest} more, if it cannot reach the store\n"),
        _ => format!("their holders may go on for up to {longest} more, if they cannot reach the store\n"),
    })
}
