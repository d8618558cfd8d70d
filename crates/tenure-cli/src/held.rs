//! What is held while a command runs: locks, the turn of a job, or the term of a leader.

use std::future::pending;
use std::process::ExitStatus;
use std::time::Duration;

use futures_util::future::{FutureExt, select_all};
use tenure::{Locks, Lost, MultiGuard, Owner, Result, StopRequest, Term, Turn};

pub(crate) enum Held {
    /// NAME itself is the first: see `kind::all`.
    Locks(MultiGuard),
    Turn(Turn),
    Term(Term),
}

impl Held {
    /// That of NAME itself, and the token of its grant.
    pub(crate) fn grant(&self) -> (&Owner, u64) {
        match self {
            Self::Locks(guards) => {
                let [guard, ..] = &**guards else { unreachable!("a multi-lock has at least one lock") };
                (guard.owner(), guard.fence())
            }
            Self::Turn(turn) => (turn.owner(), turn.fence()),
            Self::Term(term) => (term.owner(), term.fence()),
        }
    }

    pub(crate) fn owners(&self) -> Vec<&Owner> {
        match self {
            Self::Locks(guards) => guards.iter().map(|guard| guard.owner()).collect(),
            Self::Turn(_) | Self::Term(_) => vec![self.grant().0],
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        match self {
            Self::Locks(guards) => guards.is_held(),
            Self::Turn(turn) => turn.is_current(),
            Self::Term(term) => term.is_current(),
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self {
            Self::Locks(guards) => guards.remaining(),
            Self::Turn(turn) => turn.remaining(),
            Self::Term(term) => term.remaining(),
        }
    }

    pub(crate) fn lost(&self) -> Lost {
        match self {
            Self::Locks(guards) => guards.lost(),
            Self::Turn(turn) => turn.lost(),
            Self::Term(term) => term.lost(),
        }
    }

    /// Waits until the holder is asked to stop, of one of the locks, where the store can tell.
    pub(crate) async fn stop_requested(&self, locks: &Locks) -> StopRequest {
        let requested = match self {
            Self::Locks(guards) => {
                let requested = guards.iter().map(|guard| told(locks.stop_requested(guard)).boxed_local());
                return select_all(requested).await.0;
            }
            Self::Turn(turn) => turn.stop_requested().boxed_local(),
            Self::Term(term) => term.stop_requested().boxed_local(),
        };
        told(requested).await
    }

    /// The command has ended so. A job that failed may run again in its window.
    pub(crate) async fn end(self, status: ExitStatus) -> Result<()> {
        match self {
            Self::Turn(turn) if status.success() => turn.succeed().await,
            Self::Turn(turn) => turn.fail(status).await,
            held => held.give_back("").await,
        }
    }

    /// Gives it back; a job has failed, for this reason.
    pub(crate) async fn give_back(self, why: &str) -> Result<()> {
        match self {
            Self::Locks(guards) => guards.release().await,
            Self::Turn(turn) => turn.fail(why).await,
            Self::Term(term) => term.resign().await,
        }
    }
}

/// The request, where the store can tell of one.
async fn told(requested: impl Future<Output = Result<StopRequest>>) -> StopRequest {
    match requested.await {
        Ok(request) => request,
        Err(_) => pending().await,
    }
}
