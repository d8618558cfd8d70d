//! Locks that nobody waits for by plain commands, which cost the server half the time of a script, or less.
//!
//! An acquisition is `SET name VALUE NX PX ttl`, `INCR tenure:fence`, `GET name`. It succeeds if SET replies
//! OK, INCR a valid token, and GET this value: the owner, and for a queue its kind, capacity and weight.
//! Everything else is decided by the script, which reads what is at the key and can tell what the plain commands
//! left there. A release is `DELIFEQ name VALUE` or a short script, and for a mutex `PUBLISH`: another client that
//! wants to wait in a queue turns the value into a sorted set, and then the script decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use crate::connection::scriptless::{Delete, HAS_DELETE};
use crate::replies::{Reading, failure};
use crate::requests;
use crate::requests::script::{RELEASE, solo};
use crate::requests::{RoutedRequest, keys, warn_unheard};
use crate::resp::ServerError;
use crate::resp::parse::{Replies, Reply, Tape};
use crate::topology::Guarantees;
use tenure_core::moment::Moment;
use tenure_core::name::LockName;
use tenure_core::owner::Owner;
use tenure_core::planted::{Bug, planted};
use tenure_core::protocol::{Answer, Fence, LockSpec, Op, ReleaseScope, Verb};
use tenure_core::runtime::Runtime;
use tenure_core::store::Failure;
use tenure_core::sync::Locked;

/// Minimum time for which a busy lock is acquired by script: the script names the holder and writes nothing.
/// Tokens from scripts also show the time of the grant.
const BUSY: Duration = Duration::from_secs(1);
/// Maximum time for which a lock counts as busy.
const LONGEST: Duration = Duration::from_secs(30);
/// Maximum number of names, and of owners, remembered.
const REMEMBERED: usize = 4_096;

/// What this client remembers of the locks it requested.
#[derive(Default)]
pub(crate) struct Pairs {
    recent: Locked<Recent>,
    // Relaxed: set only before the first request.
    is_off: AtomicBool,
    /// The user may not run the compare-and-delete command.
    // Relaxed: never unset; who reads it late has one more command refused.
    deletes_not: AtomicBool,
}

#[derive(Default)]
struct Recent {
    /// Until when a name counts as busy.
    busy: BTreeMap<LockName, Moment>,
    /// Owners granted by plain commands: their value is without a token.
    bare: BTreeSet<Owner>,
}

pub(crate) enum PairOutcome {
    /// The lock is held, with this token.
    Held(u64),
    /// The lock is released. The message about it reached this many subscribers.
    Released { reached: u64 },
    /// The reply of a script.
    Said(Reading),
    /// The script has to decide. `may_hold` if the plain commands may have taken the lock.
    Undecided { may_hold: bool },
}

impl PairOutcome {
    pub(crate) const NOT: Self = Self::Undecided { may_hold: false };
}

/// Whether plain commands may be tried: only on a server that grants alone, with neither `acks` nor `restart-grace`.
pub(crate) fn is_for(&RoutedRequest { op, context, .. }: &RoutedRequest<'_>) -> bool {
    let fits = match op.spec {
        LockSpec::Mutex => true,
        LockSpec::Queue(queue_spec) => queue_spec.weight <= queue_spec.capacity,
        LockSpec::Reentrant => false,
    };
    fits && context.guarantees == Guarantees::default()
        && !context.asking
        && match op.verb {
            Verb::Acquire { fence, .. } => !matches!(fence, Fence::Ballot(_)),
            Verb::Release { fence, whose, .. } => {
                !matches!(fence, Fence::Ballot(_)) && whose == ReleaseScope::Own
            }
            _ => false,
        }
}

impl Pairs {
    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock()
    }

    pub(crate) fn turn_off(&self) {
        self.is_off.store(true, Ordering::Relaxed);
    }

    pub(crate) async fn ask(
        &self,
        runtime: &dyn Runtime,
        store: &Arc<str>,
        routed: &RoutedRequest<'_>,
    ) -> Result<PairOutcome, Failure> {
        if self.is_off.load(Ordering::Relaxed) {
            return Ok(PairOutcome::NOT);
        }
        match routed.op.verb {
            Verb::Acquire { ttl_ms, .. } => self.acquire(runtime, routed, ttl_ms).await,
            _ => self.release(store, routed).await,
        }
    }

    async fn acquire(
        &self,
        runtime: &dyn Runtime,
        routed: &RoutedRequest<'_>,
        ttl_ms: u64,
    ) -> Result<PairOutcome, Failure> {
        let RoutedRequest { op, pipeline, context, deadline } = *routed;
        let now = runtime.now();
        let slot = keys::counter_slot(context.space, op.name.as_str());
        let newest = match pipeline.tokens.newest(slot, now) {
            Some(newest) if pipeline.is_direct => newest,
            _ if planted(Bug::PairUnraised) => 0,
            _ => return Ok(PairOutcome::NOT),
        };
        if self.recent().was_busy(&op.name, now) {
            return Ok(PairOutcome::NOT);
        }
        let (name, owner, solo) = (op.name.as_str(), op.owner.as_str(), solo(op.spec));
        // Once per connection, together with the first pair.
        let asks = pipeline.delete.get().is_none();
        let pair = pipeline.send(deadline, |out| {
            out.begin(6).arg("SET").arg(name).parts(&[owner, &solo]).arg("NX").arg("PX").number(ttl_ms);
            out.begin(2).arg("INCR").arg(&*keys::counter(context.space, name));
            out.command(&["GET", name]);
            if asks {
                out.command(&HAS_DELETE);
            }
        });
        let pair = pair?.read(|tape| Pair::read(tape.replies(), [owner, &solo], asks)).await?;
        if let Some(delete) = pair.delete {
            pipeline.delete.get_or_init(|| delete);
        }
        if let (true, Some(token), true) = (pair.is_set, pair.token, pair.is_own || planted(Bug::PairUnread))
            && (pipeline.tokens.accepts(slot, token, newest, now) || planted(Bug::PairUncounted))
        {
            let deletes = matches!(pipeline.delete.get(), Some(Some(_)));
            if op.spec != LockSpec::Mutex || deletes && !self.deletes_not.load(Ordering::Relaxed) {
                self.recent().granted(&op.owner);
            }
            return Ok(PairOutcome::Held(token));
        }
        if pair.is_refused {
            pipeline.tokens.refuse();
        }
        if pair.is_refused || pair.is_failed {
            // A server that accepts no writes may have been replaced by the time it does.
            pipeline.tokens.forget();
        }
        Ok(PairOutcome::Undecided { may_hold: pair.is_set })
    }

    /// Learns from a script's answer. `was_free` if the script found nothing at the key.
    pub(crate) fn learned(&self, runtime: &dyn Runtime, op: &Op, answer: &Answer, was_free: bool) {
        let (name, now) = (&op.name, runtime.now());
        match answer {
            Answer::Busy { left_ms, .. } => {
                let left = left_ms.map_or(LONGEST, Duration::from_millis);
                self.recent().found_busy(name, now + left.clamp(BUSY, LONGEST));
            }
            Answer::NoLock { .. } | Answer::Waiting { .. } => self.recent().found_busy(name, now + BUSY),
            // Nobody waits in a queue that did not exist.
            Answer::Held { .. } if was_free && op.spec != LockSpec::Mutex => {
                self.recent().busy.remove(name);
            }
            // Others share it: it is a sorted set.
            Answer::Held { .. } if op.spec != LockSpec::Mutex => self.recent().found_busy(name, now + BUSY),
            Answer::Held { .. } => self.recent().found_held(name, now + BUSY),
            _ => {}
        }
    }

    async fn release(&self, store: &Arc<str>, routed: &RoutedRequest<'_>) -> Result<PairOutcome, Failure> {
        let RoutedRequest { op, pipeline, context, deadline } = *routed;
        let (name, space, publishes) = (op.name.as_str(), context.space, op.spec == LockSpec::Mutex);
        let (owner, value) = (op.owner.as_str(), [op.owner.as_str(), &solo(op.spec)].concat());
        let is_bare = self.recent().bare.remove(&op.owner);
        if !is_bare && !publishes {
            // Most likely others wait.
            return Ok(PairOutcome::NOT);
        }
        let delete = pipeline.delete.get().copied().flatten();
        let delete = delete.filter(|_| is_bare && !self.deletes_not.load(Ordering::Relaxed));
        let send = |in_full: bool| {
            pipeline.send(deadline, |out| {
                match delete {
                    _ if planted(Bug::PairQueueDeleted) => _ = out.command(&["DEL", name]),
                    Some(delete) => delete.write(name, &value, out),
                    None => _ = RELEASE.call(out, in_full, 1, 2).arg(name).arg(&value).number(op.request),
                }
                if publishes {
                    // Not inside the script, where it costs the server nearly twice as much.
                    out.begin(3).arg(space.publish.command());
                    keys::with_channel(space, op.spec, name, |parts| _ = out.parts(parts));
                    out.arg(owner);
                }
            })
        };
        let by_script = delete.is_none() && !planted(Bug::PairQueueDeleted);
        let read = |tape: &mut Tape| ReleaseReplies::read(tape.replies(), &value, by_script, publishes);
        let mut said = send(false)?.read(read).await?;
        if said.deleted.as_ref().is_err_and(failure::is_no_script) {
            said = send(true)?.read(read).await?;
        }
        match said.deleted {
            Ok(Some(true)) => {
                let reached = said.reached.unwrap_or_else(|error| {
                    warn_unheard(store, op, space, &error.to_string());
                    0
                });
                Ok(PairOutcome::Released { reached })
            }
            Ok(Some(false)) => Ok(PairOutcome::NOT),
            Ok(None) => Ok(PairOutcome::Said(Err("a reply to another release"))),
            Err(error) if delete.is_some() => {
                // Any other error is of this key or moment, as of a lock that others wait for by now.
                let text = error.to_string();
                if refuses_command(text.as_bytes()) || text.contains("unknown command") {
                    self.deletes_not.store(true, Ordering::Relaxed);
                }
                Ok(PairOutcome::NOT)
            }
            Err(error) => Err(requests::refused(pipeline, &error)),
        }
    }
}

/// The replies to the commands of a release.
struct ReleaseReplies {
    /// Whether the holder's value was deleted; `None` if the reply does not belong to this release.
    deleted: Result<Option<bool>, ServerError>,
    /// How many subscribers were notified, or why none could be.
    reached: Result<u64, ServerError>,
}

impl ReleaseReplies {
    fn read(mut replies: Replies<'_>, value: &str, by_script: bool, publishes: bool) -> Self {
        let error = |text: &[u8]| ServerError::new(String::from_utf8_lossy(text).into_owned());
        let deleted = replies.head();
        let told = if publishes { replies.head() } else { Some(Reply::Int(0)) };
        let reached = match told {
            Some(Reply::Error(text)) => Err(error(text)),
            Some(Reply::Int(number)) => Ok(number.try_into().unwrap_or(0)),
            _ => Ok(0),
        };
        let deleted = match deleted {
            _ if !matches!(told, Some(Reply::Int(_) | Reply::Error(_))) => Ok(None),
            Some(Reply::Error(text)) => Err(error(text)),
            Some(Reply::Int(number @ 0..=1)) if !by_script => Ok(Some(number == 1)),
            Some(Reply::Nil) if by_script => Ok(Some(false)),
            Some(Reply::Bulk(deleted)) if by_script => {
                let rest = deleted.strip_prefix(value.as_bytes());
                Ok(rest.filter(|rest| matches!(rest, [] | [b'#', ..])).map(|_| true))
            }
            _ => Ok(None),
        };
        Self { deleted, reached }
    }
}

/// The replies to the plain commands of an acquisition.
struct Pair {
    is_set: bool,
    token: Option<u64>,
    /// GET returned what this client has set.
    is_own: bool,
    is_failed: bool,
    /// The user may not run one of the commands.
    is_refused: bool,
    /// The compare-and-delete command, if this pair queried for it.
    delete: Option<Option<Delete>>,
}

impl Pair {
    fn read(mut replies: Replies<'_>, [owner, solo]: [&str; 2], asks: bool) -> Self {
        let [set, counted, got] = [(); 3].map(|()| replies.head().unwrap_or(Reply::Nil));
        let errors = [set, counted, got].into_iter().filter_map(|reply| match reply {
            Reply::Error(error) => Some(error),
            _ => None,
        });
        Self {
            is_set: set == Reply::Simple(b"OK"),
            token: if let Reply::Int(token) = counted { token.try_into().ok() } else { None },
            is_own: matches!(got, Reply::Bulk(got) if got.strip_prefix(owner.as_bytes()) == Some(solo.as_bytes())),
            is_failed: errors.clone().next().is_some(),
            // Without the right to its key, none is counted.
            is_refused: errors.clone().any(refuses_command)
                || matches!(counted, Reply::Error(error) if error.starts_with(b"NOPERM ")),
            delete: asks.then(|| replies.value().as_ref().and_then(Delete::read)),
        }
    }
}

/// Whether the user may not run the command, rather than not use this key.
fn refuses_command(error: &[u8]) -> bool {
    error.starts_with(b"NOPERM ") && !String::from_utf8_lossy(error).contains(" key")
}

impl Recent {
    fn was_busy(&mut self, name: &LockName, now: Moment) -> bool {
        match self.busy.get(name) {
            Some(until) if now < *until => true,
            Some(_) => {
                self.busy.remove(name);
                false
            }
            None => false,
        }
    }

    /// Forgetting a name costs only a second round trip.
    fn found_busy(&mut self, name: &LockName, until: Moment) {
        if self.busy.len() >= REMEMBERED {
            self.busy.clear();
        }
        self.busy.insert(name.clone(), until);
    }

    /// A grant after the lock was busy: its waiters retry soon, so it still counts as busy for a while.
    fn found_held(&mut self, name: &LockName, until: Moment) {
        if let Some(busy) = self.busy.get_mut(name) {
            *busy = until;
        }
    }

    fn granted(&mut self, owner: &Owner) {
        if self.bare.len() >= REMEMBERED {
            self.bare.clear();
        }
        self.bare.insert(owner.clone());
    }
}
