//! The Rust sides of `scripts/peers --store`, with the default settings of their libraries. An error ends the run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client as EtcdClient, LockOptions};
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::postgres::{PgAdvisoryLock, PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, MySqlConnection};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_postgres::{Client, NoTls, Statement};

use crate::Run;
use crate::sides::{Kind, Side, Tenure};

const POOL: usize = 16;
const OWNER: &str = "user/label@host:1234/0123456789abcdef0123456789abcdef";

pub(crate) async fn run(run: &Run, store: &str, side: &str, port: u64, ttl: Duration) {
    let address = format!("127.0.0.1:{port}");
    let url = match store {
        "postgres" => format!("postgres://postgres@{address}/postgres?sslmode=disable"),
        "mysql" => format!("mysql://root@{address}/app"),
        other => format!("{other}://{address}"),
    };
    match (store, side) {
        (_, "tenure") => run.on(Tenure::new(&url, ttl, Kind::Mutex)).await,
        (_, "tenure fair") => run.on(Tenure::new(&url, ttl, Kind::Fair)).await,
        ("postgres", "pool") => run.on(Pool::new(&url, ttl).await).await,
        ("postgres", "pg_advisory_lock") => run.on(Advisory::new(&url).await).await,
        ("postgres", "sqlx") => run.on(Sqlx::new(&url).await).await,
        ("mysql", "pool") => run.on(MysqlPool::new(&url, ttl).await).await,
        ("mysql", "GET_LOCK") => run.on(GetLock::new(&url).await).await,
        ("etcd", "etcd Lock") => run.on(EtcdLock::new(&address, ttl).await).await,
        _ => panic!("no side {side:?} on {store}"),
    }
}

/// A connection, and what ends with it.
async fn connect(url: &str) -> (Client, oneshot::Receiver<()>) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    let (ends, over) = oneshot::channel();
    tokio::spawn(async move {
        let _ = connection.await;
        let _ = ends.send(());
    });
    (client, over)
}

/// Rows of a table, changed by the connections of a pool. Nobody waits.
#[derive(Clone)]
struct Pool {
    give: mpsc::Sender<Pooled>,
    take: Arc<Mutex<mpsc::Receiver<Pooled>>>,
    seconds: f64,
}

struct Pooled {
    client: Client,
    insert: Statement,
    delete: Statement,
}

impl Pool {
    async fn new(url: &str, ttl: Duration) -> Self {
        let (give, take) = mpsc::channel(POOL);
        let (first, _) = connect(url).await;
        let table = "CREATE TABLE IF NOT EXISTS bare (name text PRIMARY KEY, owner text, ends timestamptz)";
        first.batch_execute(table).await.expect("a table");
        for _ in 0..POOL {
            let (client, _) = connect(url).await;
            let insert = "INSERT INTO bare AS b VALUES ($1, $2, clock_timestamp() + make_interval(secs => $3))
                ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, ends = excluded.ends
                WHERE b.ends < clock_timestamp() RETURNING ends";
            let insert = client.prepare(insert).await.expect("a statement");
            let delete = "DELETE FROM bare WHERE name = $1 AND owner = $2";
            let delete = client.prepare(delete).await.expect("a statement");
            give.try_send(Pooled { client, insert, delete }).map_err(drop).expect("room");
        }
        Self { give, take: Arc::new(Mutex::new(take)), seconds: ttl.as_secs_f64() }
    }

    async fn pooled(&self) -> Pooled {
        self.take.lock().await.recv().await.expect("a connection")
    }

    fn give_back(&self, pooled: Pooled) {
        self.give.try_send(pooled).map_err(drop).expect("room");
    }
}

impl Side for Pool {
    type Held = String;

    async fn lock(&self, key: &str) -> String {
        let pooled = self.pooled().await;
        let rows = pooled.client.query(&pooled.insert, &[&key, &OWNER, &self.seconds]).await;
        assert_eq!(rows.expect("rows").len(), 1, "the row was free");
        self.give_back(pooled);
        key.to_owned()
    }

    async fn unlock(&self, key: String) {
        let pooled = self.pooled().await;
        let deleted = pooled.client.execute(&pooled.delete, &[&key, &OWNER]).await;
        assert_eq!(deleted.expect("a count"), 1, "the row was there");
        self.give_back(pooled);
    }
}

/// `pg_advisory_lock`, with a connection for each task.
#[derive(Clone)]
struct Advisory {
    url: Arc<str>,
    client: Arc<(Client, [Statement; 2])>,
    over: Arc<Mutex<oneshot::Receiver<()>>>,
}

impl Advisory {
    async fn new(url: &str) -> Self {
        let (client, over) = connect(url).await;
        let sql = |name: &str| format!("SELECT {name}(hashtextextended($1, 0))");
        let lock = client.prepare(&sql("pg_advisory_lock")).await.expect("a statement");
        let unlock = client.prepare(&sql("pg_advisory_unlock")).await.expect("a statement");
        let over = Arc::new(Mutex::new(over));
        Self { url: url.into(), client: Arc::new((client, [lock, unlock])), over }
    }
}

impl Side for Advisory {
    type Held = String;

    async fn of_task(&self) -> Self {
        Self::new(&self.url).await
    }

    async fn lock(&self, key: &str) -> String {
        let (client, [lock, _]) = &*self.client;
        client.query(lock, &[&key]).await.expect("the lock");
        key.to_owned()
    }

    async fn unlock(&self, key: String) {
        let (client, [_, unlock]) = &*self.client;
        client.query(unlock, &[&key]).await.expect("a reply");
    }

    /// Whoever watches the connection itself hears that it has ended, and the lock with it.
    async fn lost(&self, _: String) {
        let _ = (&mut *self.over.lock().await).await;
    }
}

/// `PgAdvisoryLock` of sqlx, with a connection for each task.
#[derive(Clone)]
struct Sqlx {
    options: PgConnectOptions,
    state: Arc<Mutex<SqlxState>>,
}

struct SqlxState {
    connection: Option<PgConnection>,
    locks: BTreeMap<String, &'static PgAdvisoryLock>,
}

impl Sqlx {
    async fn new(url: &str) -> Self {
        let options: PgConnectOptions = url.parse().expect("a URL");
        let connection = options.connect().await.expect("a connection");
        let state = SqlxState { connection: Some(connection), locks: BTreeMap::new() };
        Self { options, state: Arc::new(Mutex::new(state)) }
    }
}

impl Side for Sqlx {
    type Held = sqlx::postgres::PgAdvisoryLockGuard<'static, PgConnection>;

    async fn of_task(&self) -> Self {
        let connection = self.options.connect().await.expect("a connection");
        let state = SqlxState { connection: Some(connection), locks: BTreeMap::new() };
        Self { options: self.options.clone(), state: Arc::new(Mutex::new(state)) }
    }

    async fn lock(&self, key: &str) -> Self::Held {
        let mut state = self.state.lock().await;
        let lock = || -> &'static PgAdvisoryLock { Box::leak(Box::new(PgAdvisoryLock::new(key))) };
        let lock = *state.locks.entry(key.to_owned()).or_insert_with(lock);
        let connection = state.connection.take().expect("a connection");
        drop(state);
        lock.acquire(connection).await.expect("the lock")
    }

    async fn unlock(&self, held: Self::Held) {
        let connection = held.release_now().await.expect("a reply");
        self.state.lock().await.connection = Some(connection);
    }
}

/// Rows of a table, changed by the connections of a pool. Nobody waits.
#[derive(Clone)]
struct MysqlPool {
    pool: MySqlPool,
    seconds: u64,
}

impl MysqlPool {
    async fn new(url: &str, ttl: Duration) -> Self {
        // A test of each connection before its use would double the round trips.
        let options = MySqlPoolOptions::new().max_connections(POOL as u32).min_connections(POOL as u32);
        let pool = options.test_before_acquire(false).connect(url).await.expect("a pool");
        let table = "CREATE TABLE IF NOT EXISTS bare (name varbinary(255) PRIMARY KEY, owner varbinary(255), ends bigint)";
        sqlx::query(table).execute(&pool).await.expect("a table");
        Self { pool, seconds: ttl.as_secs() }
    }
}

impl Side for MysqlPool {
    type Held = String;

    async fn lock(&self, key: &str) -> String {
        let insert = "INSERT INTO bare VALUES (?, ?, UNIX_TIMESTAMP() + ?) ON DUPLICATE KEY UPDATE
            owner = IF(ends < UNIX_TIMESTAMP(), VALUES(owner), owner),
            ends = IF(owner = VALUES(owner), VALUES(ends), ends)";
        let insert = sqlx::query(insert).bind(key).bind(OWNER).bind(self.seconds);
        let done = insert.execute(&self.pool).await.expect("a reply");
        assert_eq!(done.rows_affected(), 1, "the row was free");
        key.to_owned()
    }

    async fn unlock(&self, key: String) {
        let delete = sqlx::query("DELETE FROM bare WHERE name = ? AND owner = ?").bind(key).bind(OWNER);
        let done = delete.execute(&self.pool).await.expect("a reply");
        assert_eq!(done.rows_affected(), 1, "the row was there");
    }
}

/// `GET_LOCK`, with a connection for each task.
#[derive(Clone)]
struct GetLock {
    url: Arc<str>,
    connection: Arc<Mutex<MySqlConnection>>,
}

impl GetLock {
    async fn new(url: &str) -> Self {
        let options: MySqlConnectOptions = url.parse().expect("a URL");
        let connection = options.connect().await.expect("a connection");
        Self { url: url.into(), connection: Arc::new(Mutex::new(connection)) }
    }
}

impl Side for GetLock {
    type Held = String;

    async fn of_task(&self) -> Self {
        Self::new(&self.url).await
    }

    async fn lock(&self, key: &str) -> String {
        let mut connection = self.connection.lock().await;
        let lock = sqlx::query_scalar("SELECT GET_LOCK(?, 3600)").bind(key);
        let got: Option<i64> = lock.fetch_one(&mut *connection).await.expect("a reply");
        assert_eq!(got, Some(1), "the lock");
        key.to_owned()
    }

    async fn unlock(&self, key: String) {
        let mut connection = self.connection.lock().await;
        let unlock = sqlx::query_scalar("SELECT RELEASE_LOCK(?)").bind(key);
        let done: Option<i64> = unlock.fetch_one(&mut *connection).await.expect("a reply");
        assert_eq!(done, Some(1), "it was held");
    }
}

/// etcd's own Lock service, with a lease for each task, because tasks with one lease do not exclude each other.
#[derive(Clone)]
struct EtcdLock {
    client: EtcdClient,
    lease: i64,
    ttl: Duration,
    over: Arc<Mutex<oneshot::Receiver<()>>>,
}

impl EtcdLock {
    async fn new(address: &str, ttl: Duration) -> Self {
        let client = EtcdClient::connect([address], None).await.expect("a connection");
        Self::with(client, ttl).await
    }

    async fn with(mut client: EtcdClient, ttl: Duration) -> Self {
        let granted = client.lease_grant(ttl.as_secs() as i64, None).await.expect("a lease");
        let lease = granted.id();
        let (mut keeper, mut answers) = client.lease_keep_alive(lease).await.expect("a stream");
        let (ends, over) = oneshot::channel();
        tokio::spawn(async move {
            while keeper.keep_alive().await.is_ok()
                && matches!(answers.message().await, Ok(Some(answer)) if answer.ttl() > 0)
            {
                tokio::time::sleep(ttl / 3).await;
            }
            let _ = ends.send(());
        });
        Self { client, lease, ttl, over: Arc::new(Mutex::new(over)) }
    }
}

impl Side for EtcdLock {
    type Held = Vec<u8>;

    async fn of_task(&self) -> Self {
        Self::with(self.client.clone(), self.ttl).await
    }

    async fn lock(&self, key: &str) -> Vec<u8> {
        let options = LockOptions::new().with_lease(self.lease);
        let locked = self.client.clone().lock(key, Some(options)).await.expect("the lock");
        locked.key().to_vec()
    }

    async fn unlock(&self, key: Vec<u8>) {
        self.client.clone().unlock(key).await.expect("a reply");
    }

    /// Whoever renews the lease hears that it cannot.
    async fn lost(&self, _: Vec<u8>) {
        let _ = (&mut *self.over.lock().await).await;
    }
}
