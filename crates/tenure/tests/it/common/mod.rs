//! A store asked directly, without the engine above it, which would ask again.

pub(crate) mod overlap;

use std::sync::Arc;
use std::time::Duration;

use tenure::internals::protocol::{Answer, Bind, Fence, Op, Rule, Verb, Whose};
use tenure::internals::store::Failure;
use tenure::internals::store::redis::Redis;
use tenure::internals::{Driver, Store};
use tenure::{LockName, Owner, block_on};

/// Long enough for anything that answers.
pub(crate) const WITHIN: Duration = Duration::from_secs(3);

/// One owner who asks one store.
pub(crate) struct Asker {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) driver: Arc<Driver>,
    pub(crate) owner: Owner,
    pub(crate) within: Duration,
}

pub(crate) type Said = Result<Answer, Failure>;

impl Asker {
    pub(crate) fn new(url: &str) -> Self {
        let driver = Driver::start().expect("a thread");
        let store = Arc::new(Redis::open(url, Arc::clone(&driver) as _).expect("a store"));
        Self { store, driver, owner: Owner::new("asker").expect("an owner"), within: WITHIN }
    }

    /// Another owner on the same store.
    pub(crate) fn other(&self) -> Self {
        let (store, driver) = (Arc::clone(&self.store), Arc::clone(&self.driver));
        Self { store, driver, owner: Owner::new("other").expect("an owner"), within: self.within }
    }

    pub(crate) fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    pub(crate) fn op(&self, name: &str, verb: Verb) -> Op {
        let name = LockName::new(name).expect("a name");
        Op { name, rule: Rule::Mutex, owner: self.owner.clone(), request: 1, verb }
    }

    pub(crate) fn ask(&self, name: &str, verb: Verb) -> Said {
        block_on(self.store.call(self.op(name, verb), self.within)).map(|reply| reply.answer)
    }

    pub(crate) fn acquire(&self, name: &str) -> Said {
        self.ask(name, acquire())
    }

    pub(crate) fn renew(&self, name: &str) -> Said {
        self.ask(name, Verb::Renew { ttl_ms: 30_000, hold: 1, bind: None, weight: None })
    }

    pub(crate) fn release(&self, name: &str) -> Said {
        self.ask(name, release())
    }
}

pub(crate) fn acquire() -> Verb {
    Verb::Acquire { ttl_ms: 30_000, hold: 1, fence: Fence::Assign, wait_ms: None, bind: Bind::Process }
}

pub(crate) fn release() -> Verb {
    Verb::Release { hold: 1, fence: Fence::Assign, whose: Whose::Mine }
}

pub(crate) fn held(said: &Said) -> bool {
    matches!(said, Ok(Answer::Held { .. }))
}

/// The text of a refusal; a panic if it is none.
pub(crate) fn refusal(said: Said) -> String {
    match said {
        Err(failure @ Failure::Refused(_)) => failure.to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

/// Why it was certainly not carried out; a panic if it was, or may have been.
pub(crate) fn not_sent(said: Said) -> String {
    match said {
        Err(failure @ Failure::NotSent(_)) => failure.to_string(),
        other => panic!("sent: {other:?}"),
    }
}
