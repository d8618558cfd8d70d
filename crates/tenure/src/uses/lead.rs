//! Leads an election again and again.

use std::fmt;
use std::future::{Future, pending};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};

use super::election::Election;
use super::term::Term;
use super::{is_permanent, patient_backoff};
use crate::error::Result;
use crate::events::{event, text};
use crate::guard::unless_lost;

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
        let engine = self.record.engine();
        let (mut end, mut failures, mut short) = (pin!(end), 0, 0);
        // A store that refuses from the start needs its user.
        if let Err(error) = self.leader().await
            && !error.is_unreachable()
            && !error.is_unknown()
        {
            return Err(error);
        }
        loop {
            let campaign = match select(end.as_mut(), pin!(self.campaign())).await {
                Either::Left(_) => return Ok(()),
                Either::Right((campaign, _)) => campaign,
            };
            let begun = engine.now();
            let attempt = match campaign {
                Ok(term) => {
                    let led = match select(end.as_mut(), pin!(unless_lost(term.lost(), work.clone()(&term))))
                        .await
                    {
                        Either::Left(_) => None,
                        Either::Right((led, _)) => Some(led),
                    };
                    // An event reports a lost term.
                    if let Some(Err(_)) = led {
                        continue;
                    }
                    // A term that cannot be resigned ends with its lease.
                    let _ = term.resign().await;
                    match led {
                        Some(Ok(Err(failure))) => self.warn_of_failure(&failure),
                        Some(_) => {}
                        None => return Ok(()),
                    }
                    failures = 0;
                    short = if engine.now().since(begun) < LONG { short + 1 } else { 1 };
                    short
                }
                Err(error) if is_permanent(&error) => return Err(error),
                Err(error) => {
                    self.warn_of_failure(&error);
                    failures += 1;
                    failures
                }
            };
            let pause = engine.now() + engine.jittered(patient_backoff(attempt - 1));
            if let Either::Left(_) = select(end.as_mut(), engine.runtime.sleep_until(pause)).await {
                return Ok(());
            }
        }
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
