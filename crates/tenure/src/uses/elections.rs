//! The elections of a store: what their records tell.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use super::RecordHandle;
use super::listing::RecordListing;
use super::log::{Leader, Log};
use crate::engine::engine_handle::EngineHandle;
use crate::error::Result;
use crate::name::LockName;
use crate::options::Options;
use crate::protocol::record::Record;
use crate::protocol::{LockSpec, QueueSpec};
use crate::status::{Holder, Status};

/// The kind of an election's record.
pub(super) const KIND: &str = "elect";

/// The state of an [election](crate::Election) at the time the store answered.
///
/// ```
/// # tenure::block_on(async {
/// let locks = tenure::Locks::memory();
/// let term = locks.election("scheduler", "host-1:8080")?.campaign().await?;
/// let mut elections = locks.elections("")?;
/// let election = elections.next().await?.expect("one");
/// assert_eq!(election.leader.expect("one leads").fence, term.fence());
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ElectionStatus {
    /// The election's name, without the prefix.
    pub name: LockName,
    /// The leader; `None` if nobody leads.
    pub leader: Option<Leader>,
    /// The hold of the leader, with its lease.
    pub hold: Option<Holder>,
    /// The candidates that wait, in order.
    pub candidates: Vec<Holder>,
    /// Number of candidates that are not listed: see [`Status::unlisted`].
    pub unlisted: u64,
}

/// What a record tells of its election; `None` if it is not readable.
async fn status(handle: &RecordHandle, mut record: Record) -> Result<Option<ElectionStatus>> {
    let name = handle.lock.name.clone();
    loop {
        let Some(log) = Log::decode(Some(&record)) else { return Ok(None) };
        let Some(found) = handle.found().await? else {
            let (candidates, unlisted) = (Vec::new(), 0);
            return Ok(Some(ElectionStatus { name, leader: None, hold: None, candidates, unlisted }));
        };
        let Status { holders, waiters: candidates, unlisted, .. } = Status::new(name.clone(), found);
        let leader = log.leader();
        let leads = |holder: &Holder| holder.owner.as_ref() == leader.map(|leader| &leader.owner);
        let hold = holders.into_iter().find(leads);
        // Another may have been elected between the two answers.
        if hold.is_none()
            && let Some(later) = handle.read().await?.record.filter(|later| *later != record)
        {
            record = later;
            continue;
        }
        let leader = leader.filter(|_| hold.is_some()).cloned();
        return Ok(Some(ElectionStatus { name, leader, hold, candidates, unlisted }));
    }
}

/// Iterates over the elections of a store: see [`Locks::elections`](crate::Locks::elections).
#[derive(Debug)]
pub struct Elections(RecordListing<ElectionStatus>);

impl UnwindSafe for Elections {}
impl RefUnwindSafe for Elections {}

impl Elections {
    pub(crate) fn new(shared: &Arc<EngineHandle>, options: &Arc<Options>, prefix: &str) -> Result<Self> {
        let spec = LockSpec::Queue(QueueSpec::FAIR);
        RecordListing::new(shared, options, KIND, spec, prefix).map(Self)
    }

    /// Returns the next election, or `None` after the last one.
    ///
    /// # Cancel safety
    /// Elections may be missed: begin again.
    ///
    /// # Errors
    /// As [`Jobs::next`](crate::Jobs::next).
    pub async fn next(&mut self) -> Result<Option<ElectionStatus>> {
        let look = async |handle: RecordHandle, record, _| status(&handle, record).await;
        self.0.next(look).await
    }
}
