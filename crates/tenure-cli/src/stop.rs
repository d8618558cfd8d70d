//! `tenure stop`: asks commands that run under a lock to end.

use std::time::Duration;

use tenure::{Election, LastRun, LockName, Locks, OncePer, Outcome, Owner, Status};

use crate::cli::Stop;
use crate::exit::{BUSY, FREE, Failure};
use crate::output::{self, Line, Span};
use crate::uses::Uses;
use crate::waiting::{LOOK, until_gone};
use crate::{clock, status, store, table, uses};

/// Maximum poll interval.
const LONGEST: Duration = Duration::from_millis(500);

/// Asks the holders to stop, and waits until they have; returns the exit code.
pub(crate) async fn stop(args: &Stop) -> Result<u8, Failure> {
    match (args.election, args.job) {
        (true, _) => store::must_be_named(&args.store, "an election")?,
        (_, true) => store::must_be_named(&args.store, "a job of --once-per")?,
        _ => {}
    }
    let locks = store::open_existing(&args.store)?;
    let name = &*args.name;
    let of = |locks: &Locks| {
        Ok::<_, Failure>(match (args.election, args.job) {
            (true, _) => Of::Election(locks.election(name, "")?),
            (_, true) => Of::Job(locks.once_per(name, uses::ANY_PERIOD)?),
            _ => Of::Lock(locks.clone(), LockName::new(name)?),
        })
    };
    let limit = clock::now() + args.wait;
    let meant = of(&locks)?;
    let Some(asked) = store::unless_absent(&locks, meant.ask(&args.reason)).await?? else {
        if let Of::Lock(..) = meant
            && let Some(hint) = Uses::of(&locks, name).await.hint(name)
        {
            output::complain(hint);
        }
        return output::print("free\n").map(|()| FREE);
    };
    let of = of(&locks.with(|options| options.op_timeout(LOOK))?)?;
    let look = async || Ok(Ok(of.holders().await?.and_then(|found| found.of(&asked))));
    match until_gone(Some(limit), LONGEST, look).await? {
        None => output::print(format_args!("stopped: {}\n", Line(&asked.shown))).map(|()| 0),
        Some(_) if args.wait.is_zero() => {
            output::print(format_args!("asked: {}\n", Line(&asked.shown))).map(|()| 0)
        }
        Some(still) => Err(Failure::new(BUSY, of.is_still_held(&still))),
    }
}

/// What the addressed holders hold.
enum Of {
    Lock(Locks, LockName),
    Election(Election),
    Job(OncePer),
}

struct Holders {
    owners: Vec<Owner>,
    shown: String,
    /// The status, for a lock.
    status: Option<Status>,
    /// The time left of its lease, for a job.
    left: Option<Duration>,
}

impl Of {
    /// Asks the holders to stop, and returns them.
    async fn ask(&self, reason: &str) -> tenure::Result<Option<Holders>> {
        Ok(match self {
            Self::Lock(locks, name) => locks.request_stop(name.clone(), reason).await?.map(Holders::of_lock),
            Self::Election(election) => {
                election.request_stop(reason).await?.map(|leader| Holders::one(leader.owner))
            }
            Self::Job(job) => job.request_stop(reason).await?.map(Holders::of_run),
        })
    }

    async fn holders(&self) -> tenure::Result<Option<Holders>> {
        Ok(match self {
            Self::Lock(locks, name) => locks.inspect(name.clone()).await?.map(Holders::of_lock),
            Self::Election(election) => election.leader().await?.map(|leader| Holders::one(leader.owner)),
            Self::Job(job) => {
                let run = job.last().await?.filter(|run| run.outcome == Outcome::Running);
                run.map(Holders::of_run)
            }
        })
    }

    fn is_still_held(&self, Holders { shown, left, .. }: &Holders) -> String {
        match self {
            Self::Lock(_, name) => format!(
                "lock {name:?} is still held by {shown}; `kill -9` that process, which ends its command too, \
                 or, if it is gone, `tenure release --force`"
            ),
            Self::Election(election) => {
                format!("election {:?} is still led by {shown}; `kill -9` that process", election.name())
            }
            Self::Job(job) => {
                let ends = left.map_or(String::new(), |left| {
                    format!(", or, if it is dead, wait: its lock ends in {} by itself", Span(left))
                });
                format!("job {:?} is still run by {shown}; `kill -9` that process{ends}", job.name())
            }
        }
    }
}

impl Holders {
    fn of_lock(status: Status) -> Self {
        let owners = status.holders.iter().filter_map(|holder| holder.owner.clone()).collect();
        Self { owners, shown: status::holders(&status), status: Some(status), left: None }
    }

    fn of_run(run: LastRun) -> Self {
        Self { left: run.remaining, ..Self::one(run.owner) }
    }

    fn one(owner: Owner) -> Self {
        Self { shown: table::who(&owner), owners: vec![owner], status: None, left: None }
    }

    /// Restricts the holders to those that were asked; `None` if there are none left.
    fn of(self, asked: &Self) -> Option<Self> {
        let was_asked = |owner: &Owner| asked.owners.contains(owner);
        if !self.owners.iter().any(was_asked) {
            return None;
        }
        Some(match self.status {
            Some(mut status) => {
                status.holders.retain(|holder| holder.owner.as_ref().is_some_and(was_asked));
                Self::of_lock(status)
            }
            None => self,
        })
    }
}
