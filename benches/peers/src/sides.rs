//! The Rust sides, with the default settings of their libraries. An error ends the run.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Script, cmd, pipe};
use rslock::{LockGuard, LockManager};
use tenure::{Guard, Locks};

use crate::{LOST, TURNS};

pub(crate) trait Side: Clone + Send + Sync + 'static {
    type Held: Send + 'static;

    /// The client of one task. By default all tasks share one.
    fn of_task(&self) -> impl Future<Output = Self> + Send {
        async { self.clone() }
    }

    fn lock(&self, key: &str) -> impl Future<Output = Self::Held> + Send;

    fn unlock(&self, held: Self::Held) -> impl Future<Output = ()> + Send;

    /// Acquires these locks and keeps them renewed; counts held and lost ones.
    fn keep(&self, keys: Vec<String>) -> impl Future<Output = ()> + Send {
        let _ = keys;
        async { unreachable!("no run renews locks of this side") }
    }

    /// Ends when the holder is told that it has lost the lock. By default it is not.
    fn lost(&self, held: Self::Held) -> impl Future<Output = ()> + Send {
        async {
            let _held = held;
            std::future::pending().await
        }
    }
}

async fn connect(url: &str) -> MultiplexedConnection {
    let client = Client::open(url).expect("a URL");
    let config = AsyncConnectionConfig::new().set_response_timeout(None); // BLPOP waits
    client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection")
}

/// No lock: the minimal commands for a lock on one server, without a token and without waiting.
#[derive(Clone)]
pub(crate) struct Bare {
    connection: MultiplexedConnection,
    unlock: Script,
    ttl: u64,
}

const MINE: &str = "0123456789abcdef0123";

impl Bare {
    pub(crate) async fn new(url: &str, ttl: Duration) -> Self {
        let text =
            "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
        Self { connection: connect(url).await, unlock: Script::new(text), ttl: ttl.as_millis() as u64 }
    }
}

impl Side for Bare {
    type Held = String;

    async fn lock(&self, key: &str) -> String {
        let mut set = cmd("SET");
        set.arg(key).arg(MINE).arg("NX").arg("PX").arg(self.ttl);
        let set: Option<String> = set.query_async(&mut self.connection.clone()).await.expect("a reply");
        set.expect("a free key");
        key.to_owned()
    }

    async fn unlock(&self, key: String) {
        let mut connection = self.connection.clone();
        let deleted: u64 =
            self.unlock.key(key).arg(MINE).invoke_async(&mut connection).await.expect("a reply");
        assert_eq!(deleted, 1, "the key was there");
    }

    async fn keep(&self, keys: Vec<String>) {
        for key in &keys {
            self.lock(key).await;
            TURNS.fetch_add(1, Relaxed);
        }
        let (mut connection, ttl) = (self.connection.clone(), self.ttl);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(ttl / 3)).await;
                let mut renewals = pipe();
                for key in &keys {
                    renewals.cmd("PEXPIRE").arg(key).arg(ttl);
                }
                let renewed: Vec<u64> = renewals.query_async(&mut connection).await.expect("replies");
                LOST.fetch_add(renewed.iter().filter(|&&renewed| renewed == 0).count() as u64, Relaxed);
            }
        });
    }
}

/// No lock either: one entry of a list is passed around, and the server wakes the next task. One connection
/// per task, and no lease.
#[derive(Clone)]
pub(crate) struct BareTurns {
    url: String,
    connection: MultiplexedConnection,
}

impl BareTurns {
    pub(crate) async fn new(url: &str) -> Self {
        Self { url: url.to_owned(), connection: connect(url).await }
    }
}

impl Side for BareTurns {
    type Held = String;

    async fn of_task(&self) -> Self {
        Self::new(&self.url).await
    }

    async fn lock(&self, key: &str) -> String {
        let mut connection = self.connection.clone();
        let entry = cmd("BLPOP").arg(key).arg(0).query_async::<(String, String)>(&mut connection).await;
        entry.expect("an entry").0
    }

    async fn unlock(&self, key: String) {
        let mut connection = self.connection.clone();
        cmd("RPUSH").arg(key).arg("").query_async::<u64>(&mut connection).await.expect("a reply");
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Mutex,
    Fair,
    Write,
    Read,
    Permit,
}

#[derive(Clone)]
pub(crate) struct Tenure {
    locks: Locks,
    kind: Kind,
}

impl Tenure {
    pub(crate) fn new(url: &str, ttl: Duration, kind: Kind) -> Self {
        let locks = Locks::open(url).expect("a URL").with(|options| options.ttl(ttl)).expect("options");
        Self { locks, kind }
    }
}

impl Side for Tenure {
    type Held = Guard;

    async fn lock(&self, key: &str) -> Guard {
        let held = match self.kind {
            Kind::Mutex => self.locks.mutex(key).expect("a name").lock().await,
            Kind::Fair => self.locks.fair_mutex(key).expect("a name").lock().await,
            Kind::Write => self.locks.rwlock(key).expect("a name").write().await.map(Guard::from),
            Kind::Read => self.locks.rwlock(key).expect("a name").read().await.map(Guard::from),
            Kind::Permit => self.locks.semaphore(key, 4).expect("a name").acquire().await,
        };
        held.expect("the lock")
    }

    async fn unlock(&self, held: Guard) {
        held.release().await.expect("still held");
    }

    async fn lost(&self, held: Guard) {
        held.lost().await;
    }

    async fn keep(&self, keys: Vec<String>) {
        for key in keys {
            let side = self.clone();
            tokio::spawn(async move {
                let held = side.lock(&key).await;
                TURNS.fetch_add(1, Relaxed);
                held.lost().await;
                LOST.fetch_add(1, Relaxed);
            });
        }
    }
}

#[derive(Clone)]
pub(crate) struct Rslock {
    manager: LockManager,
    ttl: Duration,
}

impl Rslock {
    pub(crate) fn new(url: String, ttl: Duration) -> Self {
        Self { manager: LockManager::new(vec![url]), ttl }
    }
}

impl Side for Rslock {
    type Held = LockGuard;

    async fn lock(&self, key: &str) -> LockGuard {
        self.manager.acquire(key, self.ttl).await.expect("the lock")
    }

    async fn unlock(&self, held: LockGuard) {
        held.release().await;
    }

    async fn keep(&self, keys: Vec<String>) {
        for key in keys {
            let side = self.clone();
            tokio::spawn(async move {
                let held = async || {
                    TURNS.fetch_add(1, Relaxed);
                    std::future::pending::<()>().await;
                };
                let _ = side.manager.using(key.as_bytes(), side.ttl, held).await;
                LOST.fetch_add(1, Relaxed);
            });
        }
    }
}
