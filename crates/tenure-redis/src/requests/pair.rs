//! Mutexes for which no client waits, by plain commands: a server carries them out in half the time
//! that a script takes.
//!
//! An acquisition is `SET name OWNER NX PX ttl`, `INCR tenure:fence`, `GET name`. It holds if the
//! first says OK, the second a token, and the third this owner. A script decides everything else:
//! it knows what stands at the name, and what the plain commands have left there. A release is
//! `DELIFEQ name OWNER`, `PUBLISH`, on servers that have that, or a short script.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value};

use crate::command::command;
use crate::connection::pipeline::Pipeline;
use crate::connection::scriptless::{Delete, HAS_DELETE};
use crate::replies::failure;
use crate::requests::script::RELEASE;
use crate::requests::{RequestContext, answered, keys, warn_unheard};
use crate::topology::Terms;
use tenure_core::moment::Moment;
use tenure_core::name::LockName;
use tenure_core::owner::Owner;
use tenure_core::planted::{Bug, planted};
use tenure_core::protocol::{Answer, Fence, LockSpec, Op, ReleaseScope, Verb};
use tenure_core::runtime::Runtime;
use tenure_core::store::Failure;

/// While a lock is busy, and for this long at least, the script asks for it: it says by whom, and
/// writes nothing. Its token tells people the moment of the grant.
const BUSY: Duration = Duration::from_secs(1);
/// No waiter sleeps longer.
const LONGEST: Duration = Duration::from_secs(30);
/// So many names and owners are remembered at most.
const REMEMBERED: usize = 4_096;

/// What is remembered of the locks that this client asked for.
#[derive(Default)]
pub(crate) struct Pairs {
    recent: Mutex<Recent>,
    is_off: AtomicBool,
    /// The user may not delete by comparison.
    deletes_not: AtomicBool,
}

#[derive(Default)]
struct Recent {
    /// Until when a name counts as busy.
    busy: BTreeMap<LockName, Moment>,
    /// Who was granted by plain commands, so that its value is its owner alone.
    bare: BTreeSet<Owner>,
}

/// What plain commands have come to.
pub(crate) enum Tried {
    Answered(Answer),
    /// What a script has said.
    Said(Value),
    /// The script decides. `may_hold`: it may find what they have left.
    Undecided {
        may_hold: bool,
    },
}

impl Tried {
    pub(crate) const NOT: Self = Self::Undecided { may_hold: false };
}

/// Whether plain commands may be tried for this request: on a server that alone has the lock, and
/// grants it alone.
pub(crate) fn is_for(op: &Op, context: RequestContext) -> bool {
    op.rule == LockSpec::Mutex
        && context.terms == Terms::default()
        && !context.asking
        && !context.space.has_slots
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
        // Nothing in here panics half-way.
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the scripts decide everything.
    pub(crate) fn turn_off(&self) {
        self.is_off.store(true, Ordering::Relaxed);
    }

    /// Tries it by plain commands.
    pub(crate) async fn ask(
        &self,
        runtime: &dyn Runtime,
        store: &Arc<str>,
        pipeline: &Pipeline,
        op: &Op,
        context: RequestContext,
        deadline: Moment,
    ) -> Result<Tried, Failure> {
        if self.is_off.load(Ordering::Relaxed) {
            return Ok(Tried::NOT);
        }
        match op.verb {
            Verb::Acquire { ttl_ms, .. } => self.acquire(runtime, pipeline, op, ttl_ms, deadline).await,
            _ => self.release(store, pipeline, op, context, deadline).await,
        }
    }

    async fn acquire(
        &self,
        runtime: &dyn Runtime,
        pipeline: &Pipeline,
        op: &Op,
        ttl_ms: u64,
        deadline: Moment,
    ) -> Result<Tried, Failure> {
        let now = runtime.now();
        let newest = match pipeline.tokens.newest(now) {
            Some(newest) if pipeline.is_direct => newest,
            _ if planted(Bug::PairUnraised) => 0,
            _ => return Ok(Tried::NOT),
        };
        if self.recent().was_busy(&op.name, now) {
            return Ok(Tried::NOT);
        }
        let (name, owner) = (op.name.as_str(), op.owner.as_str());
        let pair = [
            command(&["SET", name, owner, "NX", "PX", &ttl_ms.to_string()]),
            command(&["INCR", keys::COUNTER]),
            command(&["GET", name]),
        ];
        // Once for each connection, beside its first pair.
        let asks = pipeline.delete.get().is_none().then(|| command(&HAS_DELETE));
        let was_asked = asks.is_some();
        let mut replies = pipeline.ask_all(pair.into_iter().chain(asks), deadline).await?;
        if was_asked && let Some(said) = replies.pop() {
            pipeline.delete.get_or_init(|| Delete::read(&said));
        }
        let [set, counted, got] = &replies[..] else { return Ok(Tried::NOT) };
        let is_own =
            matches!(got, Value::BulkString(value) if value == owner.as_bytes()) || planted(Bug::PairUnread);
        if let (Value::Okay, Value::Int(token), true) = (set, counted, is_own)
            && let Ok(token) = u64::try_from(*token)
            && (pipeline.tokens.accepts(token, newest, now) || planted(Bug::PairUncounted))
        {
            if matches!(pipeline.delete.get(), Some(Some(_))) && !self.deletes_not.load(Ordering::Relaxed) {
                self.recent().granted(&op.owner);
            }
            return Ok(Tried::Answered(Answer::Held { fence: token }));
        }
        for reply in &replies {
            if let Value::ServerError(error) = reply {
                // A server that takes no writes may be another by the time it does.
                pipeline.tokens.forget();
                if error.code() == "NOPERM" {
                    pipeline.tokens.refuse();
                }
            }
        }
        Ok(Tried::Undecided { may_hold: *set == Value::Okay })
    }

    /// Takes in what a script has said of a mutex.
    pub(crate) fn learned(&self, name: &LockName, answer: &Answer, now: Moment) {
        match answer {
            Answer::Busy { left_ms, .. } => {
                let left = left_ms.map_or(LONGEST, Duration::from_millis);
                self.recent().found_busy(name, now + left.clamp(BUSY, LONGEST));
            }
            Answer::NoLock { .. } => self.recent().found_busy(name, now + BUSY),
            Answer::Held { .. } => self.recent().found_held(name, now + BUSY),
            _ => {}
        }
    }

    async fn release(
        &self,
        store: &Arc<str>,
        pipeline: &Pipeline,
        op: &Op,
        context: RequestContext,
        deadline: Moment,
    ) -> Result<Tried, Failure> {
        let (name, owner, space) = (op.name.as_str(), op.owner.as_str(), context.space);
        let channel = keys::channel(space.db, op.rule, name);
        let publish = space.publish.command();
        let is_bare = self.recent().bare.remove(&op.owner);
        if let Some(Some(delete)) = pipeline.delete.get().filter(|_| is_bare) {
            let all = [delete.of(name, owner), command(&[publish, &channel, owner])];
            let replies = pipeline.ask_all(all, deadline).await?;
            if let [Value::Int(1), told] = &replies[..] {
                if let Value::ServerError(error) = told {
                    warn_unheard(store, op, &error.to_string());
                }
                return Ok(Tried::Answered(Answer::Released { left: 0 }));
            }
            if let Some(Value::ServerError(_)) = replies.first() {
                self.deletes_not.store(true, Ordering::Relaxed);
            }
            return Ok(Tried::NOT);
        }
        let request = op.request.to_string();
        let script =
            |verb, text| -> Cmd { command(&[verb, text, "1", name, owner, &request, &channel, publish]) };
        let mut value = pipeline.ask(&script("EVALSHA", RELEASE.sha), deadline).await?;
        if let Value::ServerError(error) = &value
            && failure::is_no_script(error)
        {
            value = pipeline.ask(&script("EVAL", RELEASE.text), deadline).await?;
        }
        // What it says of itself is checked as every script's reply is.
        match answered(pipeline, value)? {
            Value::Nil => Ok(Tried::NOT),
            value => Ok(Tried::Said(value)),
        }
    }
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

    /// What is forgotten costs a second question.
    fn found_busy(&mut self, name: &LockName, until: Moment) {
        if self.busy.len() >= REMEMBERED {
            self.busy.clear();
        }
        self.busy.insert(name.clone(), until);
    }

    /// It was granted after it was busy: who waits for it asks again before long.
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
