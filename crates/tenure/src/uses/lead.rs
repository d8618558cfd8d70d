//! Leads an election again and again.

use std::fmt;
use std::future::{Future, pending};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select};

use super::election::Election;
use super::term::Term;
use super::{is_permanent, patient_backoff};
use crate::engine::lost::{HoldEnd, Lost};
use crate::error::Result;
use crate::events::{event, text};
use crate::guard::unless_lost;
use crate::moment::Moment;

/// A term that lasted this long ends the backoff.
const LONG: Duration = Duration::from_secs(60);

impl Election {
    /// Leads again and again, for ever: [`lead_until`](Self::lead_until) without an end.
    ///
    /// ```no_run
    /// # tenure::block_on(async {
    /// # let election = tenure::Locks::memory().election("scheduler", "host-1")?;
    /// election.lead_forever(async |term| schedule(term.fence()).await).await?;
    /// # async fn schedule(term: u64) -> std::io::Result<()> { Ok(()) }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`lead`](Self::lead).
    ///
    /// # Errors
    /// As [`lead_until`](Self::lead_until).
    pub async fn lead_forever<T, E: fmt::Display>(
        &self,
        work: impl AsyncFnOnce(&Term) -> Result<T, E> + Clone,
    ) -> Result<()> {
        self.lead_until(pending(), work).await
    }

    /// Leads again and again until `end` completes, which drops the work at its next await, and resigns.
    ///
    /// A lost term makes this process a candidate again. If the work returns, with or without an error, the
    /// leader resigns and is a candidate again after a second, and after up to a minute if its terms are short.
    /// An unreachable or refusing store is asked again, at most a minute later. Events report errors. Each term gets
    /// a clone of the work, so that the future is `Send` if the work's is.
    ///
    /// # Cancel safety
    /// As [`lead`](Self::lead).
    ///
    /// # Errors
    /// `is_invalid`, `is_unsupported` if the server forbids scripts, and `is_mismatch`; also `is_refused` if the
    /// store refuses the first request.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// use std::future::Future;
    ///
    /// async fn serve(locks: tenure::Locks, shutdown: impl Future<Output = ()>) -> tenure::Result<()> {
    ///     let election = locks.election("scheduler", "host-1")?;
    ///     election.lead_until(shutdown, async |term| schedule(term.fence()).await).await
    /// }
    /// # async fn schedule(term: u64) -> std::io::Result<()> { Ok(()) }
    /// # serve(tenure::Locks::memory(), async {}).await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn lead_until<T, E: fmt::Display>(
        &self,
        end: impl Future<Output = ()>,
        work: impl AsyncFnOnce(&Term) -> Result<T, E> + Clone,
    ) -> Result<()> {
        let (mut end, mut candidacy) = (pin!(end), Candidacy::new(self.clone()));
        while let Some(term) = candidacy.campaign_until(end.as_mut()).await? {
            let led = match select(end.as_mut(), pin!(unless_lost(term.lost(), work.clone()(&term)))).await {
                Either::Left(_) => None,
                // An event reports a lost term.
                Either::Right((Err(_), _)) => continue,
                Either::Right((Ok(led), _)) => Some(led),
            };
            // A term that cannot be resigned ends with its lease.
            let _ = term.resign().await;
            match led {
                Some(Err(failure)) => self.warn_of_failure(&failure),
                Some(Ok(_)) => {}
                None => return Ok(()),
            }
        }
        Ok(())
    }

    fn warn_of_failure(&self, failure: &dyn fmt::Display) {
        event!(
            WARN,
            target: "tenure",
            "leader_failed",
            "cannot lead, or the leader's work failed: retrying",
            lock = text(&self.record.lock.name),
            store = text(self.record.engine().store.url()),
            failure = text(failure),
        );
    }
}

/// A candidate that leads again and again: what [`Election::lead_until`] keeps between its terms.
#[derive(Debug)]
pub struct Candidacy {
    election: Election,
    /// When the last term began, and its end.
    last: Option<(Moment, Lost)>,
    has_asked: bool,
    failures: u32,
    short: u32,
}

impl Candidacy {
    /// A candidate that has not led yet.
    pub fn new(election: Election) -> Self {
        Self { election, last: None, has_asked: false, failures: 0, short: 0 }
    }

    /// Waits as long as [`Election::lead_until`] does between terms, and until this candidate leads. Returns `None` once
    /// `end` completes.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the candidate.
    ///
    /// # Errors
    /// As [`Election::lead_until`].
    pub async fn campaign_until(&mut self, end: impl Future<Output = ()>) -> Result<Option<Term>> {
        let (mut end, election) = (pin!(end), self.election.clone());
        let engine = election.record.engine();
        // A store that refuses from the start needs its user.
        if !std::mem::replace(&mut self.has_asked, true)
            && let Err(error) = election.leader().await
            && !error.is_unreachable()
            && !error.is_unknown()
        {
            return Err(error);
        }
        let mut pause = self.last.take().and_then(|(begun, lost)| {
            if lost.now_or_never().and_then(HoldEnd::into_error).is_some() {
                return None;
            }
            self.short = if engine.now().since(begun) < LONG { self.short + 1 } else { 1 };
            Some(self.short)
        });
        loop {
            if let Some(attempt) = pause {
                let over = engine.now() + engine.jittered(patient_backoff(attempt - 1));
                if let Either::Left(_) = select(end.as_mut(), engine.runtime.sleep_until(over)).await {
                    return Ok(None);
                }
            }
            match select(end.as_mut(), pin!(election.campaign())).await {
                Either::Left(_) => return Ok(None),
                Either::Right((Ok(term), _)) => {
                    (self.last, self.failures) = (Some((engine.now(), term.lost())), 0);
                    return Ok(Some(term));
                }
                Either::Right((Err(error), _)) if is_permanent(&error) => return Err(error),
                Either::Right((Err(error), _)) => {
                    election.warn_of_failure(&error);
                    self.failures += 1;
                    pause = Some(self.failures);
                }
            }
        }
    }
}
