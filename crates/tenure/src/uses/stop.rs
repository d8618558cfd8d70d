use std::sync::Arc;
use std::time::Duration;

use super::{RecordHandle, Watch, put};
use crate::engine::engine_handle::EngineHandle;
use crate::error::Result;
use crate::name::LockName;
use crate::options::Options;
use crate::owner::Owner;
use crate::protocol::LockSpec;
use crate::protocol::record::{Record, RecordAnswer};

/// A request to stop, returned by [`Locks::stop_requested`](crate::Locks::stop_requested),
/// [`Term::stop_requested`](crate::Term::stop_requested) and
/// [`Turn::stop_requested`](crate::Turn::stop_requested).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopRequest {
    /// The owner that made the request.
    pub by: Owner,
    /// The reason; may be empty.
    pub reason: String,
}

/// Polling interval of a holder.
const LOOK: Duration = Duration::from_secs(2);
/// The same where a subscription reports each request.
const LOOK_WATCHED: Duration = Duration::from_secs(60);
/// How long a request is kept. It names its holders, so an old request stops no one else.
const KEPT: Duration = Duration::from_secs(3_600);

/// The record beside a lock that contains the request.
pub(crate) fn record(
    shared: &Arc<EngineHandle>,
    options: &Arc<Options>,
    name: LockName,
) -> Result<RecordHandle> {
    RecordHandle::new(shared, options, "stop", name, LockSpec::Mutex)
}

/// The record beside the lock of an election or a job.
pub(crate) fn record_of(of: &RecordHandle, kind: &str) -> Result<RecordHandle> {
    let lock = &of.lock;
    RecordHandle::new(&lock.shared, &lock.options, kind, lock.name.clone(), LockSpec::Mutex)
}

/// Kinds of these records for elections and jobs.
pub(crate) const OF_LEADER: &str = "stop-elect";
pub(crate) const OF_JOB: &str = "stop-once";

/// Writes a request for these holders of a lock.
pub(crate) async fn request(record: &RecordHandle, holders: &[Owner], reason: &str) -> Result<()> {
    loop {
        let guard = record.lock.lock().await?;
        let by = guard.owner();
        let owners = holders.iter().map(Owner::as_str).collect::<Vec<_>>().join("\n");
        let value = format!("1 {by} {reason}\n{owners}\n");
        match record.put(put(by, KEPT, value.into_bytes())).await? {
            RecordAnswer::Stored { .. } => return guard.release().await,
            // The lease ended before the write.
            RecordAnswer::NotHeld => {}
            answer => return Err(record.unexpected_answer(&answer)),
        }
    }
}

/// Waits until this holder of a lock is asked to stop.
pub(crate) async fn requested(record: Result<RecordHandle>, owner: Owner) -> Result<StopRequest> {
    let record = record?;
    let (engine, lock) = (record.engine(), &record.lock);
    // Most holds end before the first look.
    let (mut watch, mut pause) = (Watch::default(), LOOK);
    loop {
        watch.wait(lock, engine.now() + pause).await;
        if engine.store.capabilities().reports_records {
            let _ = watch.open(lock, lock.options.op_timeout).await;
        }
        pause = if watch.is_open() { LOOK_WATCHED } else { LOOK };
        match record.read().await {
            Ok(seen) => {
                if let Some(request) = seen.record.as_ref().and_then(|record| read(record, &owner)) {
                    return Ok(request);
                }
            }
            // The store may answer again later.
            Err(error) if error.is_unreachable() || error.is_unknown() => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the request if it names this holder.
fn read(record: &Record, owner: &Owner) -> Option<StopRequest> {
    let text = std::str::from_utf8(&record.value).ok()?;
    let (head, owners) = text.strip_prefix("1 ")?.split_once('\n')?;
    let (by, reason) = head.split_once(' ')?;
    let is_for_it = owners.lines().any(|line| line == owner.as_str());
    is_for_it.then_some(StopRequest { by: by.parse().ok()?, reason: reason.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_by_the_holders_that_it_names() {
        let [by, one, two] = ["by", "one", "two"].map(|label| Owner::new(label).expect("an owner"));
        let value = |text: String| Record { at_us: 1, value: text.into_bytes().into() };
        let record = value(format!("1 {by} deploy at 9\n{one}\n"));
        let told = StopRequest { by: by.clone(), reason: "deploy at 9".into() };
        assert_eq!(read(&record, &one), Some(told));
        assert_eq!(read(&record, &two), None);
        for text in [String::new(), "1 ".into(), format!("2 {by} \n{one}\n"), format!("1 x \n{one}\n")] {
            assert_eq!(read(&value(text), &one), None);
        }
    }
}
