use std::fmt;
use std::slice;
use std::sync::Arc;

use super::log::{Leader, Log, Word, checked_payload, unreadable};
use super::observer::Observer;
use super::term::Term;
use super::{RecordHandle, elections, stop};
use crate::engine::engine_handle::EngineHandle;
use crate::error::Result;
use crate::guard::unless_lost;
use crate::name::LockName;
use crate::options::Options;
use crate::owner::check_text;
use crate::protocol::{LockSpec, QueueSpec};

/// An election: one of many candidates leads, the others wait for their turn, and anyone can see who leads.
///
/// Use it for a long-running role that exactly one process should have. The payload tells others how to reach
/// the leader: an address, a version, any text of at most 4 KiB.
///
/// An `Election` is stateless and cheap to clone. Each [`campaign`](Self::campaign) is a separate candidate.
///
/// # Guarantees
/// - *One leader at a time* while its [`Term::is_current`], as with the [`FairMutex`](crate::FairMutex) that
///   it is built on.
/// - *Order*: candidates lead in order of arrival.
/// - *Terms increase*: the [`Term::fence`] of each leader is greater than that of all earlier ones.
/// - *A safety margin*: a leader that cannot renew stops [`grace`](Options::grace) before another can lead.
///   The default is a third of the lease: with a lease of 15 s, work stops 9.8 s after the last answered
///   renewal was sent, and another candidate leads after 15 s.
/// - *A log without silent gaps*: an [`Observer`] gets every change in order, or the number of those it
///   missed.
///
/// # Examples
/// ```
/// # tenure::block_on(async {
/// let locks = tenure::Locks::memory();
/// let election = locks.election("scheduler", "host-1:8080")?;
/// let done = election.lead(async |term| {
///     // … the work of the leader, dropped at its next await when it leads no more …
///     term.fence()
/// });
/// assert!(done.await? > 0);
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "an election does nothing until a campaign starts"]
pub struct Election {
    pub(super) record: RecordHandle,
    payload: Arc<str>,
}

impl Election {
    pub(crate) fn new(
        shared: &Arc<EngineHandle>,
        options: &Options,
        name: LockName,
        payload: String,
    ) -> Result<Self> {
        let mut options = options.clone();
        if options.grace.is_zero() {
            options.grace = options.lease() / 3;
        }
        let spec = LockSpec::Queue(QueueSpec::FAIR);
        let record = RecordHandle::new(shared, &Arc::new(options), elections::KIND, name, spec)?;
        Ok(Self { record, payload: checked_payload(payload)? })
    }

    /// The name, without the prefix.
    ///
    /// ```
    /// # let locks = tenure::Locks::memory();
    /// assert_eq!(locks.election("scheduler", "")?.name().as_str(), "scheduler");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn name(&self) -> &LockName {
        &self.record.lock.name
    }

    /// Waits until this candidate leads.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let term = tenure::Locks::memory().election("scheduler", "host-1")?.campaign().await?;
    /// assert!(term.is_current());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the candidate.
    ///
    /// # Errors
    /// As [`FairMutex::lock`](crate::FairMutex::lock); also `is_unsupported` if the server forbids scripts.
    pub async fn campaign(&self) -> Result<Term> {
        let lock = &self.record.lock;
        self.record.engine().metrics.campaigns(&lock.name);
        loop {
            let mut term = Term::new(lock.lock().await?, self.record.clone(), Arc::clone(&self.payload));
            match term.write(Word::Elected, &self.payload).await {
                Ok(()) if term.is_current() => {
                    term.report();
                    return Ok(term);
                }
                // The lease ended before the term began.
                Ok(()) => {}
                Err(error) if error.is_lost() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until this candidate leads, runs `work`, and resigns.
    ///
    /// If the term is lost, the work is dropped at its next await, before another candidate can lead. The
    /// term is checked before each poll, so a process that was paused takes no further step. A thread, a
    /// spawned task, or a loop that never awaits has to check [`Term::is_current`]. To lead again after a loss,
    /// use [`lead_forever`](Self::lead_forever).
    ///
    /// # Cancel safety
    /// The work is dropped first; the resignation continues in the background.
    ///
    /// # Errors
    /// `is_lost` if the term was lost during the work; the errors of [`campaign`](Self::campaign).
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// # let election = tenure::Locks::memory().election("scheduler", "host-1")?;
    /// election.lead(async |term| schedule(term.fence()).await).await?;
    /// # async fn schedule(term: u64) {}
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn lead<T>(&self, work: impl AsyncFnOnce(&Term) -> T) -> Result<T> {
        let term = self.campaign().await?;
        let value = unless_lost(term.lost(), work(&term)).await?;
        match term.resign().await {
            Err(error) if error.is_lost() => Err(error),
            _ => Ok(value),
        }
    }

    /// Returns the current leader, if any.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let election = tenure::Locks::memory().election("scheduler", "host-1")?;
    /// assert_eq!(election.leader().await?, None);
    /// let term = election.campaign().await?;
    /// assert_eq!(election.leader().await?.expect("this one").fence, term.fence());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Safe to drop: the request changes nothing.
    ///
    /// # Errors
    /// The errors of the store: `is_unreachable` and `is_refused`.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let mut record = self.record.read().await?.record;
        loop {
            let log = Log::decode(record.as_ref()).ok_or_else(|| unreadable(&self.record))?;
            let Some(last) = log.leader() else { return Ok(None) };
            let holders = self.record.holders().await?;
            if holders.iter().any(|(owner, _)| *owner == last.owner) {
                return Ok(Some(last.clone()));
            }
            // Another may have been elected between the two answers.
            let later = self.record.read().await?.record;
            if later == record {
                return Ok(None);
            }
            record = later;
        }
    }

    /// Asks the leader to stop, and returns it, or `None` if nobody leads. This does not end the term: a
    /// leader that waits for [`Term::stop_requested`] learns of it within 2 s.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let election = tenure::Locks::memory().election("scheduler", "host-1")?;
    /// let term = election.campaign().await?;
    /// let asked = election.request_stop("it hangs").await?.expect("one leads");
    /// assert_eq!(asked.fence, term.fence());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// The request may still be made.
    ///
    /// # Errors
    /// The errors of the store; also `is_invalid` if the reason is not valid.
    pub async fn request_stop(&self, reason: &str) -> Result<Option<Leader>> {
        check_text("a reason", reason)?;
        let Some(leader) = self.leader().await? else { return Ok(None) };
        let record = stop::record_of(&self.record, stop::OF_LEADER)?;
        stop::request(&record, slice::from_ref(&leader.owner), reason).await?;
        Ok(Some(leader))
    }

    /// Follows who leads: first the current leader, then every change in order. Any process can observe,
    /// candidate or not.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// use tenure::Change;
    ///
    /// let election = tenure::Locks::memory().election("scheduler", "host-1")?;
    /// let mut observer = election.observe();
    /// let term = election.campaign().await?;
    /// match observer.next().await? {
    ///     Change::Elected(leader) => assert_eq!(leader.fence, term.fence()),
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn observe(&self) -> Observer {
        Observer::new(self.record.clone())
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Election").field(self.name()).finish()
    }
}
