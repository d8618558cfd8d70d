//! What is held while a command runs: locks, the turn of a job, or a leader's term.

use std::future::pending;
use std::process::ExitStatus;
use std::slice;
use std::time::Duration;

use futures_util::future::{FutureExt, select_all};
use tenure::{Frees, Guard, Locks, Lost, MultiGuard, Result, StopRequest, Term, Turn};

use crate::exit::of_status;

pub(crate) enum Held {
    /// NAME itself comes first: see `kind::all`.
    Locks(MultiGuard),
    Turn(Turn),
    Term(Term),
}

impl Held {
    /// The guards, that of NAME itself first.
    pub(crate) fn guards(&self) -> &[Guard] {
        match self {
            Self::Locks(guards) => guards,
            Self::Turn(turn) => slice::from_ref(turn.guard()),
            Self::Term(term) => slice::from_ref(term.guard()),
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.guards().iter().map(Guard::remaining).min().unwrap_or_default()
    }

    pub(crate) fn lost(&self) -> Lost {
        match self {
            Self::Locks(guards) => guards.lost(),
            Self::Turn(turn) => turn.lost(),
            Self::Term(term) => term.lost(),
        }
    }

    /// Waits until the holder of one of the locks is asked to stop, if the store supports that.
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

    /// Ends the hold after the command exited with `status`. A failed job may run again within its window.
    pub(crate) async fn end(self, status: ExitStatus) -> Result<()> {
        match self {
            Self::Turn(turn) => {
                let turn = turn.exit_code(of_status(status).into());
                if status.success() { turn.succeed().await } else { turn.fail(status).await }
            }
            held => held.give_back("").await,
        }
    }

    /// What is reported if [`end`](Self::end) gets no answer.
    pub(crate) fn if_not_ended(&self) -> &'static str {
        match self {
            Self::Turn(turn) if turn.frees() == Frees::FailureOrLoss => {
                "result not stored, and the run counts as lost: the job may run again in this window"
            }
            Self::Turn(_) => {
                "result not stored, and the run counts as lost: the job does not run again in this window"
            }
            Self::Locks(_) | Self::Term(_) => "lock not released; others wait until its lease ends",
        }
    }

    /// Releases the hold; marks a job as failed, for this reason.
    pub(crate) async fn give_back(self, why: &str) -> Result<()> {
        match self {
            Self::Locks(guards) => guards.release().await,
            Self::Turn(turn) => turn.fail(why).await,
            Self::Term(term) => term.resign().await,
        }
    }
}

/// The request; pending forever if the store does not support it.
async fn told(requested: impl Future<Output = Result<StopRequest>>) -> StopRequest {
    match requested.await {
        Ok(request) => request,
        Err(_) => pending().await,
    }
}
