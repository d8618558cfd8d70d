//! Counts the processes that wait for locks without a queue: the subscribers of their channels, less the holder.

use tenure_core::moment::Moment;
use tenure_core::name::LockName;
use tenure_core::protocol::{Found, LockSpec, parse_value};
use tenure_core::store::Failure;

use super::{Keyspace, Publish, keys};
use crate::connection::pipeline::Pipeline;
use crate::replies;
use crate::resp::Value;
use crate::resp::encode::{Commands, command};

/// A holder with a longer lease than this has subscribed once it has held for `SETTLED_US`. A hold starts to
/// listen after a second (`lease::listen_at`); before that it may still be subscribed as a former waiter.
const LISTENS_MS: u64 = 3_000;
const SETTLED_US: u64 = 2_000_000;

/// A held lock whose subscribers are counted.
pub(crate) struct CountedLock {
    channel: String,
    /// `None` if another program holds it, which has no subscription.
    holder: Option<CountedHolder>,
}

struct CountedHolder {
    fence: u64,
    left_ms: u64,
}

impl CountedLock {
    /// `key` is the lock's name in its namespace.
    pub(crate) fn of(space: Keyspace, key: &LockName, found: &Found) -> Self {
        let channel = keys::channel(space, LockSpec::of(found.kind, found.capacity), key.as_str());
        let holder = found.holders.first().and_then(|holder| {
            let (_, fence) = parse_value(&holder.value)?;
            Some(CountedHolder { fence, left_ms: holder.left_ms.unwrap_or(u64::MAX) })
        });
        Self { channel, holder }
    }

    /// The processes that wait, of this many subscribers.
    fn waiting(&self, subscribers: u64, now_us: u64) -> Option<u64> {
        let Some(CountedHolder { fence, left_ms }) = self.holder else { return Some(subscribers) };
        let is_settled = left_ms > LISTENS_MS && now_us.saturating_sub(fence) > SETTLED_US;
        match subscribers {
            0 => Some(0),
            // It is the holder or a waiter.
            1 if !is_settled => None,
            subscribers => Some(subscribers - 1),
        }
    }
}

/// Asks a server; all are unknown to a user without the right.
pub(crate) async fn ask(
    pipeline: &Pipeline,
    publish: Publish,
    locks: &[&CountedLock],
    deadline: Moment,
) -> Result<Vec<Option<u64>>, Failure> {
    let what = match publish {
        Publish::Plain => "NUMSUB",
        Publish::Sharded => "SHARDNUMSUB",
    };
    let mut commands: Commands = command(&["TIME"]);
    let channels = commands.begin(2 + locks.len()).arg("PUBSUB").arg(what);
    locks.iter().for_each(|lock| _ = channels.arg(&lock.channel));
    let said = pipeline.ask_all(&commands, deadline).await?;
    Ok(counted(&said, locks).unwrap_or_else(|| vec![None; locks.len()]))
}

fn counted(said: &[Value], locks: &[&CountedLock]) -> Option<Vec<Option<u64>>> {
    let [Value::Array(time), Value::Array(counts)] = said else { return None };
    let [seconds, micros] = &time[..] else { return None };
    let now_us = replies::number(seconds)? * 1_000_000 + replies::number(micros)?;
    let (counts, []) = counts.as_chunks::<2>() else { return None };
    let count = |(lock, [_, count]): (&&CountedLock, &[Value; 2])| {
        replies::int(count).and_then(|count| lock.waiting(count.into(), now_us))
    };
    (counts.len() == locks.len()).then(|| locks.iter().zip(counts).map(count).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_not_counted_and_what_could_be_the_holder_is_unknown() {
        let now_us = 1_800_000_000_000_000;
        let lock = |age_ms: u64, left_ms| {
            let holder = CountedHolder { fence: now_us - age_ms * 1_000, left_ms };
            CountedLock { channel: String::new(), holder: Some(holder) }
        };
        for (age_ms, left_ms, subscribers, expected) in [
            (10_000, 14_000, 1, Some(0)),
            (10_000, 14_000, 3, Some(2)),
            (10_000, 14_000, 0, Some(0)),
            (100, 14_000, 0, Some(0)),
            (100, 14_000, 1, None),
            (100, 14_000, 3, Some(2)),
            // A short lease, whose holder does not subscribe.
            (10_000, 1_000, 1, None),
        ] {
            let told = lock(age_ms, left_ms).waiting(subscribers, now_us);
            assert_eq!(told, expected, "{age_ms} {left_ms} {subscribers}");
        }
        let foreign = CountedLock { channel: String::new(), holder: None };
        assert_eq!(foreign.waiting(1, now_us), Some(1));
    }
}
