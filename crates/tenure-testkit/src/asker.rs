//! Sends requests to a Redis store directly, bypassing the engine, which would retry failed ones.

use std::sync::Arc;
use std::time::Duration;

use tenure::internals::protocol::{Answer, Fence, Liveness, LockSpec, Op, ReleaseScope, Verb};
use tenure::internals::store::redis::Redis;
use tenure::internals::store::{Failure, StoreExt};
use tenure::internals::{Driver, Store};
use tenure::{LockName, Owner, block_on};

/// Default timeout of a request; no reply takes this long.
pub const WITHIN: Duration = Duration::from_secs(3);

/// One owner on one store.
#[derive(Debug)]
pub struct Asker {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The store's runtime.
    pub driver: Arc<Driver>,
    /// The owner of all requests.
    pub owner: Owner,
    /// Timeout of each request.
    pub within: Duration,
}

/// The result of a request.
pub type Said = Result<Answer, Failure>;

impl Asker {
    /// An owner on the store of a URL.
    ///
    /// # Panics
    /// If the URL is malformed.
    pub fn new(url: &str) -> Self {
        let driver = Driver::start().expect("a thread");
        let store = Arc::new(Redis::open(url, Arc::clone(&driver) as _).expect("a store"));
        Self { store, driver, owner: Owner::new("asker").expect("an owner"), within: WITHIN }
    }

    /// Another owner on the same store.
    #[must_use]
    pub fn other(&self) -> Self {
        let (store, driver) = (Arc::clone(&self.store), Arc::clone(&self.driver));
        Self { store, driver, owner: Owner::new("other").expect("an owner"), within: self.within }
    }

    /// Sets the timeout of each request.
    #[must_use]
    pub fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    /// A request for the mutex of this name.
    pub fn op(&self, name: &str, verb: Verb) -> Op {
        let name = LockName::new(name).expect("a name");
        Op { name, spec: LockSpec::Mutex, owner: self.owner.clone(), request: 1, verb }
    }

    /// Sends a request for the mutex of this name.
    ///
    /// # Errors
    /// As [`Store::call`].
    pub fn ask(&self, name: &str, verb: Verb) -> Said {
        block_on(self.store.request(self.op(name, verb), self.within))
    }

    /// Acquires with a lease of 30 s.
    ///
    /// # Errors
    /// As [`Store::call`].
    pub fn acquire(&self, name: &str) -> Said {
        self.ask(name, acquire())
    }

    /// Renews for 30 s.
    ///
    /// # Errors
    /// As [`Store::call`].
    pub fn renew(&self, name: &str) -> Said {
        self.ask(name, Verb::Renew { ttl_ms: 30_000, hold: 1, bind: None, weight: None })
    }

    /// Releases.
    ///
    /// # Errors
    /// As [`Store::call`].
    pub fn release(&self, name: &str) -> Said {
        self.ask(name, release())
    }
}

/// An acquisition with a lease of 30 s.
pub fn acquire() -> Verb {
    Verb::Acquire {
        ttl_ms: 30_000,
        hold: 1,
        fence: Fence::Assign,
        wait_ms: None,
        listens: None,
        bind: Liveness::Process,
    }
}

/// The matching release.
pub fn release() -> Verb {
    Verb::Release { hold: 1, fence: Fence::Assign, whose: ReleaseScope::Own }
}

/// Whether the lock was granted.
pub fn held(said: &Said) -> bool {
    matches!(said, Ok(Answer::Held { .. }))
}

/// The text of a refusal.
///
/// # Panics
/// If the request was not refused.
pub fn refusal(said: Said) -> String {
    match said {
        Err(failure @ Failure::Refused(_)) => failure.to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

/// The reason why the request was certainly not sent.
///
/// # Panics
/// If it may have been sent.
pub fn not_sent(said: Said) -> String {
    match said {
        Err(failure @ Failure::NotSent(_)) => failure.to_string(),
        other => panic!("sent: {other:?}"),
    }
}
