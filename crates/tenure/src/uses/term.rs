use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;

use super::log::{Word, append, checked_payload, unreadable};
use super::stop::{self, StopRequest};
use super::{RecordHandle, put};
use crate::engine::lost::Lost;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::metrics::UseResult;
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::record::{Record, RecordAnswer, Then};
use crate::sync::Locked;

/// The term of a leader, returned by [`Election::campaign`](crate::Election::campaign).
///
/// Dropping it resigns in the background, without an entry for the observers.
///
/// ```
/// # tenure::block_on(async {
/// let election = tenure::Locks::memory().election("scheduler", "host-1:8080")?;
/// let term = election.campaign().await?;
/// assert!(term.is_current());
/// term.resign().await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[must_use = "a leader resigns when its term is dropped"]
pub struct Term {
    guard: Guard,
    record: RecordHandle,
    published: Box<Locked<Published>>,
    /// Dropped after the guard.
    reported: Option<ReportedTerm>,
}

/// What a term has published.
struct Published {
    payload: Arc<str>,
    /// The log as last written by this term. Nobody else writes it during the term, so further writes need not
    /// read it first.
    written: Option<Record>,
}

/// Reports the end of the term as a metric on drop.
struct ReportedTerm(RecordHandle);

impl Drop for ReportedTerm {
    fn drop(&mut self) {
        self.0.engine().metrics.election_goes_on(&self.0.lock.name);
    }
}

impl Term {
    pub(super) fn new(guard: Guard, record: RecordHandle, payload: Arc<str>) -> Self {
        let published = Box::new(Locked::new(Published { payload, written: None }));
        Self { guard, record, published, reported: None }
    }

    /// The term as a fencing token: greater than that of every earlier term. See [`Guard::fence`].
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let election = tenure::Locks::memory().election("scheduler", "")?;
    /// assert!(election.campaign().await?.fence() > 0);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn fence(&self) -> u64 {
        self.guard.fence()
    }

    /// The owner: new for each term.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let election = tenure::Locks::memory().election("scheduler", "")?;
    /// # let term = election.campaign().await?;
    /// println!("led by {}", term.owner());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn owner(&self) -> &Owner {
        self.guard.owner()
    }

    /// Whether this candidate still leads. Becomes false before another can lead, by
    /// [`grace`](crate::Options::grace) and a margin, even if this process was paused.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let election = tenure::Locks::memory().election("scheduler", "")?;
    /// # let term = election.campaign().await?;
    /// if term.is_current() {
    ///     // a step that is over before the grace is
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn is_current(&self) -> bool {
        self.guard.is_held() || planted(Bug::LeaderToldLate)
    }

    /// The guard of the lock, held for as long as the term lasts.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Time for which [`is_current`](Self::is_current) stays true if no further renewal succeeds.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// A future that resolves once this candidate no longer leads: see [`Guard::lost`].
    pub fn lost(&self) -> Lost {
        if planted(Bug::LeaderToldLate) { Lost::never() } else { self.guard.lost() }
    }

    /// Waits until the leader is [asked to stop](crate::Election::request_stop), as
    /// [`Locks::stop_requested`](crate::Locks::stop_requested) does.
    ///
    /// ```no_run
    /// # tenure::block_on(async {
    /// # let election = tenure::Locks::memory().election("scheduler", "")?;
    /// let term = election.campaign().await?;
    /// let request = term.stop_requested().await?; // beside the work, in a `select!`
    /// println!("{} asks to stop: {}", request.by, request.reason);
    /// term.resign().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Nothing is lost: the request remains in the store.
    ///
    /// # Errors
    /// `is_refused` if the user may not read the record. Retries while the store does not answer.
    pub fn stop_requested(&self) -> impl Future<Output = Result<StopRequest>> + Send + use<> {
        stop::requested(stop::record_of(&self.record, stop::OF_LEADER), self.owner().clone())
    }

    /// Publishes another payload, of at most 4 KiB, to the observers.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let election = tenure::Locks::memory().election("scheduler", "starting")?;
    /// let mut term = election.campaign().await?;
    /// term.update("ready").await?;
    /// assert_eq!(election.leader().await?.unwrap().payload, "ready");
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// The request may still be carried out.
    ///
    /// # Errors
    /// `is_lost` if this candidate no longer leads; `is_invalid` if the payload is too long;
    /// `is_unreachable`, `is_unknown` and `is_refused`.
    pub async fn update(&mut self, payload: impl Into<String>) -> Result<()> {
        self.change(payload.into()).await
    }

    /// As [`update`](Self::update). One call at a time.
    pub(crate) async fn change(&self, payload: String) -> Result<()> {
        let payload = checked_payload(payload)?;
        self.write(Word::Updated, &payload).await?;
        self.published.lock().payload = payload;
        Ok(())
    }

    /// Stops leading and hands over to the next candidate at once.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let election = tenure::Locks::memory().election("scheduler", "")?;
    /// election.campaign().await?.resign().await?;
    /// assert!(election.leader().await?.is_none());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// If the future is dropped, the resignation continues in the background.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn resign(self) -> Result<()> {
        let Self { reported: _reported, guard, record, published } = self;
        let (payload, written) = {
            let mut published = published.lock();
            (Arc::clone(&published.payload), published.written.take())
        };
        record.count(UseResult::Resigned);
        let (owner, fence) = (guard.owner().clone(), guard.fence());
        let append = |log: Option<&Record>| append(log, Word::Resigned, fence, &owner, &payload);
        let log = match &written {
            Some(log) => append(Some(log)),
            None => record.read().await.ok().and_then(|seen| append(seen.record.as_ref())),
        };
        match log {
            // Sent together, because the lock is free right after the release.
            Some(log) => {
                let mut put = put(&owner, Duration::MAX, log);
                if record.engine().store.capabilities().client_decides {
                    put.then = Then::Release;
                    guard.set_ending();
                    if let Ok(RecordAnswer::Stored { .. }) = record.put(put).await {
                        guard.ended();
                        return Ok(());
                    }
                    return guard.release().await;
                }
                put.then = Then::Tell;
                join(record.put(put), guard.release()).await.1
            }
            None => guard.release().await,
        }
    }

    /// Reports the term as a metric.
    pub(super) fn report(&mut self) {
        self.record.engine().metrics.elected(&self.record.lock.name, self.owner(), self.guard.holds());
        self.reported = Some(ReportedTerm(self.record.clone()));
    }

    pub(super) async fn write(&self, word: Word, payload: &str) -> Result<()> {
        // Unknown until the write is answered.
        let before = self.published.lock().written.take();
        let before = match before {
            Some(written) => Some(written),
            None => self.record.read_granted(Some(self.owner())).await?.record,
        };
        let (owner, fence) = (self.guard.owner(), self.fence());
        let log = append(before.as_ref(), word, fence, owner, payload);
        let log = log.ok_or_else(|| unreadable(&self.record))?;
        let mut put = put(owner, Duration::MAX, log);
        put.then = Then::Tell;
        let value = Arc::clone(&put.value);
        match self.record.put(put).await? {
            RecordAnswer::Stored { at_us } => {
                self.record.count(match word {
                    Word::Updated => UseResult::Updated,
                    _ => UseResult::Elected,
                });
                self.published.lock().written = Some(Record { at_us, value });
                Ok(())
            }
            _ => {
                let (name, store) = (&self.record.lock.name, self.record.engine().store.url());
                Err(Error::lost(name, store, "another candidate may lead"))
            }
        }
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term").field("guard", &self.guard).finish_non_exhaustive()
    }
}
