use std::future::Future;
use std::ops::Range;
use std::slice::from_ref;
use std::time::{Duration, SystemTime};

use futures_util::future::{join_all, pending, select_all};

use crate::engine::lost::Lost;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::locks::Locks;
use crate::multi::MultiGuard;
use crate::owner::Owner;
use crate::rwguard::{ReadGuard, UpgradeableGuard, WriteGuard};
use crate::sync::Locked;
use crate::uses::stop::StopRequest;
use crate::uses::term::Term;
use crate::uses::turn::Turn;

/// A guard of any kind, which concurrent calls share.
#[derive(Debug)]
pub enum AnyGuard {
    /// Of one lock.
    Single(Guard, Locked<Side>),
    /// Of several locks.
    Multi(MultiGuard),
    /// Of an election.
    Term(Box<Term>),
    /// Of a job.
    Turn(Box<Turn>),
}

/// What a guard of a read-write lock may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// A reader, or the guard of another lock.
    Reader,
    /// The reader that may become the writer.
    Upgradeable,
    /// The writer.
    Writer,
}

macro_rules! from {
    ($type:ty, $guard:ident => $held:expr) => {
        impl From<$type> for AnyGuard {
            fn from($guard: $type) -> Self {
                $held
            }
        }
    };
}

from!(Guard, guard => Self::Single(guard, Locked::new(Side::Reader)));
from!(ReadGuard, guard => Self::Single(guard.into(), Locked::new(Side::Reader)));
from!(UpgradeableGuard, guard => Self::Single(guard.into(), Locked::new(Side::Upgradeable)));
from!(WriteGuard, guard => Self::Single(guard.into(), Locked::new(Side::Writer)));
from!(MultiGuard, guards => Self::Multi(guards));
from!(Term, term => Self::Term(Box::new(term)));
from!(Turn, turn => Self::Turn(Box::new(turn)));

impl AnyGuard {
    /// The guards of its locks, in the order of the locks.
    pub fn guards(&self) -> &[Guard] {
        match self {
            Self::Single(guard, _) => from_ref(guard),
            Self::Multi(guards) => guards,
            Self::Term(term) => from_ref(term.guard()),
            Self::Turn(turn) => from_ref(turn.guard()),
        }
    }

    /// The end of the hold: of several locks, the first loss.
    pub fn lost(&self) -> Lost {
        match self {
            Self::Multi(guards) => guards.lost(),
            Self::Term(term) => term.lost(),
            held => held.guards()[0].lost(),
        }
    }

    /// The window of the run of a job, and how late it began.
    pub fn window(&self) -> Option<(Range<SystemTime>, Duration)> {
        match self {
            Self::Turn(turn) => Some((turn.window(), turn.late_by())),
            _ => None,
        }
    }

    /// Whether it is the guard of a single lock, which [`detach`](Self::detach) and [`keep_for`](Self::keep_for) need.
    ///
    /// # Errors
    /// `is_invalid` for other guards.
    pub fn check_single(&self) -> Result<()> {
        match self {
            Self::Single(..) => Ok(()),
            _ => Err(not_single()),
        }
    }

    /// Waits for a request to stop: to the leader, to the runner of a job, or to the holder of any of the locks, whose
    /// stores are these in turn. Does not borrow the guard.
    pub fn stop_requested(
        &self,
        stores: &[Locks],
    ) -> impl Future<Output = Result<StopRequest>> + Send + use<> {
        type Asked = futures_util::future::BoxFuture<'static, Result<StopRequest>>;
        let asked: Vec<Asked> = match self {
            Self::Term(term) => vec![Box::pin(term.stop_requested())],
            Self::Turn(turn) => vec![Box::pin(turn.stop_requested())],
            held => {
                let guards = held.guards().iter().zip(stores.iter().cycle());
                guards.map(|(guard, locks)| Box::pin(locks.stop_requested(guard)) as Asked).collect()
            }
        };
        async move { if asked.is_empty() { pending().await } else { select_all(asked).await.0 } }
    }

    /// Asks the stores whether all locks are still held.
    ///
    /// # Errors
    /// As [`Guard::verify`].
    pub async fn verify(&self) -> Result<()> {
        match self {
            Self::Multi(guards) => guards.verify().await,
            held => held.guards()[0].verify().await,
        }
    }

    /// Renews all leases.
    ///
    /// # Errors
    /// As [`Guard::renew`].
    pub async fn renew(&self) -> Result<()> {
        join_all(self.guards().iter().map(Guard::renew)).await.into_iter().collect()
    }

    /// Sets the end of leases that are not renewed to `time` from now. In the store, a lease is never shortened.
    ///
    /// # Errors
    /// As [`Guard::renew`]; also `is_invalid`, as [`Guard::keep_for`].
    pub async fn renew_for(&self, time: Duration) -> Result<()> {
        join_all(self.guards().iter().map(|guard| guard.renew_for(time))).await.into_iter().collect()
    }

    /// As [`UpgradeableGuard::upgrade`]: false at the limit. One change at a time. If the future is dropped, the guard
    /// remains a reader's, and the store may still keep other readers out.
    ///
    /// # Errors
    /// As [`UpgradeableGuard::upgrade`]; `is_invalid` for other guards.
    pub async fn upgrade(&self, limit: Option<Duration>) -> Result<bool> {
        match self {
            Self::Single(guard, side) if *side.lock() == Side::Upgradeable => {
                let is_writer = guard.upgrade(limit).await?;
                if is_writer {
                    *side.lock() = Side::Writer;
                }
                Ok(is_writer)
            }
            _ => Err(Error::invalid("only an upgradeable reader can be upgraded")),
        }
    }

    /// As [`WriteGuard::downgrade`]. One change at a time. If the future is dropped, the store may have granted readers.
    ///
    /// # Errors
    /// As [`WriteGuard::downgrade`]; `is_invalid` for other guards.
    pub async fn downgrade(&self) -> Result<()> {
        match self {
            Self::Single(guard, side) if *side.lock() != Side::Reader => {
                guard.downgrade().await?;
                *side.lock() = Side::Reader;
                Ok(())
            }
            _ => Err(Error::invalid("only a writer or an upgradeable reader can be downgraded")),
        }
    }

    /// As [`Term::update`]. One change at a time.
    ///
    /// # Errors
    /// As [`Term::update`]; `is_invalid` for other guards.
    pub async fn update(&self, payload: String) -> Result<()> {
        match self {
            Self::Term(term) => term.change(payload).await,
            _ => Err(Error::invalid("only a leader has a payload")),
        }
    }

    /// Releases the locks: a leader resigns, and a run has succeeded.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn release(self) -> Result<()> {
        match self {
            Self::Single(guard, _) => guard.release().await,
            Self::Multi(guards) => guards.release().await,
            Self::Term(term) => term.resign().await,
            Self::Turn(turn) => turn.succeed().await,
        }
    }

    /// As [`release`](Self::release), but the run of a job has failed.
    ///
    /// # Errors
    /// As [`Turn::fail`].
    pub async fn fail(self, why: String) -> Result<()> {
        match self {
            Self::Turn(turn) => turn.fail(why).await,
            held => held.release().await,
        }
    }

    /// As [`Guard::detach`].
    ///
    /// # Errors
    /// As [`Guard::detach`], and as [`check_single`](Self::check_single); then the locks are released.
    pub async fn detach(self) -> Result<Owner> {
        self.into_single()?.detach().await
    }

    /// As [`Guard::keep_for`].
    ///
    /// # Errors
    /// As [`Guard::keep_for`], and as [`check_single`](Self::check_single); then the locks are released.
    pub async fn keep_for(self, time: Duration) -> Result<()> {
        self.into_single()?.keep_for(time).await
    }

    /// Gives up the guard of a single lock without a request: the lock stays taken until its lease is over. On the
    /// `file:` store it also becomes free when the process ends. Other guards are released in the background.
    pub fn leave(self) {
        if let Ok(guard) = self.into_single() {
            guard.ended();
        }
    }

    fn into_single(self) -> Result<Guard> {
        match self {
            Self::Single(guard, _) => Ok(guard),
            _ => Err(not_single()),
        }
    }
}

fn not_single() -> Error {
    Error::invalid("only the guard of a single lock can be detached or kept")
}
