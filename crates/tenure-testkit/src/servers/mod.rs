//! Real servers, each started for one test and removed with it.
//!
//! Each [`Server`] is a `redis-server` process with its own loopback port and Unix socket, empty and without
//! persistence. The program is `$TENURE_REDIS_SERVER`, or `redis-server` on the path; if it is missing, the
//! test fails with a hint what to install.
//!
//! ```no_run
//! use tenure_testkit::servers::{Config, Server};
//!
//! let server = Server::start();
//! server.command(&["SET", "key", "value"]);
//! server.stop(); // nothing answers any more
//! server.cont();
//! server.restart_with(Config::new().password("secret")); // empty, on the same port
//! let masters: [Server; 5] = Server::several();
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `authority` | TLS certificates |
//! | `between` | relays that cut the members of a cluster from each other |
//! | `client` | a small synchronous Redis client |
//! | `clock` | a server's own wall clock |
//! | `cluster` | Redis Cluster |
//! | `config` | settings of a Redis server |
//! | `etcd` | etcd, one or several members |
//! | `launch` | starting a Redis server |
//! | `mariadb` | MariaDB |
//! | `members` | stopping, killing and restarting the members of a cluster |
//! | `pgbouncer` | PgBouncer in transaction mode |
//! | `port` | loopback ports that no other test takes |
//! | `postgres` | PostgreSQL, optionally with a standby |
//! | `process` | a child process that cannot outlive its handle |
//! | `reply` | replies in a form that tests compare |
//! | `sentinel` | a Redis master with replicas and sentinels |
//! | `zookeeper` | ZooKeeper, one or several servers |
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "real processes take real time and threads"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

mod authority;
mod between;
mod client;
mod clock;
mod cluster;
mod config;
mod disk;
mod etcd;
mod launch;
mod mariadb;
mod members;
mod pgbouncer;
pub(crate) mod port;
mod postgres;
mod process;
mod reply;
mod sentinel;
mod zookeeper;

pub use authority::{Authority, Certificate};
pub use client::Client;
pub use clock::Clock;
pub use cluster::Cluster;
pub use config::Config;
pub use disk::Disk;
pub use etcd::Etcd;
pub use mariadb::MariaDb;
pub use members::{Ensemble, Members};
pub use pgbouncer::PgBouncer;
pub use postgres::Postgres;
pub use process::stop;
pub use reply::Value;
pub use sentinel::Sentinels;
pub use zookeeper::ZooKeeper;

use launch::{inspector, launch};
use port::Port;
use process::Process;

/// Adds parameters to the query of a store's URL, as in `acks=2&restart-grace=30s`.
pub fn with_query(url: &str, query: &str) -> String {
    let separator = if query.is_empty() {
        ""
    } else if url.contains('?') {
        "&"
    } else {
        "?"
    };
    format!("{url}{separator}{query}")
}

/// A `redis-server`. Dropping it, also by a panicking test, kills the process and removes its directory.
#[derive(Debug)]
pub struct Server {
    /// Declared first, so that the process ends before its directory is removed.
    running: Mutex<Running>,
    port: Port,
    clock: Option<Clock>,
    dir: TempDir,
}

#[derive(Debug)]
struct Running {
    process: Option<Process>,
    config: Config,
    /// For `command`. Kept open, so that it works even when the server accepts no more connections.
    inspector: Option<Client>,
}

impl Server {
    /// A server with the defaults.
    ///
    /// # Panics
    /// Like each function here: if the server cannot be started, with its log in the message.
    pub fn start() -> Self {
        Self::start_with(Config::new())
    }

    /// A server with its own clock: [`Server::clock`].
    pub fn with_clock() -> Self {
        Self::start_with(Config::new().clock())
    }

    /// Several independent servers.
    pub fn several<const N: usize>() -> [Self; N] {
        std::array::from_fn(|_| Self::start())
    }

    /// A server with these settings.
    pub fn start_with(config: Config) -> Self {
        let dir = directory();
        let clock = config.clock.then(|| Clock::install(dir.path()).expect("a writable temporary directory"));
        let (port, process) = (0..20)
            .find_map(|_| {
                let port = if config.is_node { Port::claim_with_bus() } else { Port::claim() };
                launch(dir.path(), &port, &config).map(|process| (port, process))
            })
            .expect("one of twenty free ports can be bound");
        let running = Running { process: Some(process), config, inspector: None };
        Self { running: Mutex::new(running), port, clock, dir }
    }

    /// Starts several servers with the same settings in parallel.
    fn together(count: usize, config: &Config) -> Vec<Self> {
        let start = |_| {
            let config = config.clone();
            thread::spawn(|| Self::start_with(config))
        };
        let starts: Vec<_> = (0..count).map(start).collect();
        starts.into_iter().map(|start| start.join().expect("a server")).collect()
    }

    /// A server that is loading its data and answers with an error meanwhile, for about `time` or until
    /// [`Server::finish_loading`].
    pub fn loading(time: Duration) -> Self {
        const KEYS: u32 = 500;
        let config = || Config::new().keep_data().set("save", "3600 1");
        let server = Self::start_with(config());
        // Each value is as long as what the server loads between two checks of its clients.
        let fill = "for i = 1, ARGV[1] do
            redis.call('SET', 'key' .. i, redis.sha1hex(i):rep(26))
        end";
        server.command(&["CONFIG", "SET", "rdbcompression", "no"]);
        server.command(&["EVAL", fill, "0", &KEYS.to_string()]);
        server.command(&["SAVE"]);
        let delay = (time / KEYS).as_micros().to_string();
        server.restart_with(
            config().set("key-load-delay", &delay).set("loading-process-events-interval-bytes", "1024"),
        );
        server
    }

    /// `redis://127.0.0.1:PORT` without a user, or `rediss://` if the port speaks TLS.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme(), self.address())
    }

    /// `redis`, or `rediss` for TLS.
    fn scheme(&self) -> &'static str {
        if self.running().config.tls { "rediss" } else { "redis" }
    }

    /// Whether a key exists.
    ///
    /// # Panics
    /// If the server is down.
    pub fn has(&self, key: &str) -> bool {
        self.command(&["EXISTS", key]).int() == 1
    }

    /// `redis+unix://` and the path of the server's socket.
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// The server's address. It stays the same over restarts.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The path of the server's Unix socket.
    pub fn socket(&self) -> PathBuf {
        launch::socket(self.dir.path())
    }

    /// Runs one command as a user with all rights; a server error is a reply.
    ///
    /// # Panics
    /// Without an answer within 5 s.
    pub fn command<A: AsRef<[u8]>>(&self, arguments: &[A]) -> Value {
        self.try_command(arguments).unwrap_or_else(|error| {
            let name = arguments.first().map(|name| name.as_ref().escape_ascii().to_string());
            panic!("{} to the server at {}: {error}", name.unwrap_or_default(), self.address())
        })
    }

    /// Like `command`, returning I/O errors.
    ///
    /// # Errors
    /// As [`Client::command`]. The next command reconnects.
    pub fn try_command<A: AsRef<[u8]>>(&self, arguments: &[A]) -> io::Result<Value> {
        let mut running = self.running();
        let mut client = match running.inspector.take() {
            Some(client) => client,
            None => inspector(self.dir.path())?,
        };
        let reply = client.command(arguments)?;
        running.inspector = Some(client);
        Ok(reply)
    }

    /// A new connection as a user with all rights.
    ///
    /// # Errors
    /// As [`Client::command`].
    pub fn client(&self) -> io::Result<Client> {
        inspector(self.dir.path())
    }

    /// Whether a new TCP connection gets any reply within `time`.
    pub fn answers_within(&self, time: Duration) -> bool {
        Client::dial(self.address()).and_then(|client| client.with_timeout(time).command(&["PING"])).is_ok()
    }

    /// A section of INFO, by field.
    pub fn info(&self, section: &str) -> BTreeMap<String, String> {
        fields(&self.command(&["INFO", section]))
    }

    /// Number of calls of each command since the start or `CONFIG RESETSTAT`, including those by scripts. The
    /// kit itself adds `info`, and what the test sends by [`Server::command`].
    pub fn info_commandstats(&self) -> BTreeMap<String, u64> {
        let calls = |stats: &str| stats.split(',').find_map(|stat| stat.strip_prefix("calls=")?.parse().ok());
        let stats = self.info("commandstats").into_iter();
        stats
            .filter_map(|(name, stats)| Some((name.strip_prefix("cmdstat_")?.to_owned(), calls(&stats)?)))
            .collect()
    }

    /// Waits until this many replicas have received everything written so far. A replica that just connected
    /// may receive nothing for up to a second although its link counts as up. Sets `key` for a moment.
    ///
    /// # Panics
    /// If they have not within 4 s.
    pub fn replicates(&self, replicas: u32, key: &str) {
        let mut client = self.client().expect("a connection");
        let mut tell = |words: &[&str]| client.command(words).expect("an answer");
        assert_eq!(tell(&["SET", key, "", "PX", "1"]).text(), "OK");
        let by = tell(&["WAIT", &replicas.to_string(), "4000"]).int();
        assert!(by >= replicas.into(), "{by} of {replicas} replicas follow within 4 s");
    }

    /// The server's clock.
    ///
    /// # Panics
    /// If it was started without one: [`Server::with_clock`], [`Config::clock`].
    pub fn clock(&self) -> &Clock {
        self.clock.as_ref().expect("the server was started with a clock")
    }

    /// The process id.
    ///
    /// # Panics
    /// If the server was killed.
    pub fn pid(&self) -> u32 {
        self.running().process().id()
    }

    /// Whether it is neither killed nor stopped.
    pub fn is_running(&self) -> bool {
        self.running().process.as_ref().is_some_and(|process| !process.is_stopped())
    }

    /// Stops the process (SIGSTOP): its connections stay open and nothing answers.
    ///
    /// # Panics
    /// If the server was killed.
    pub fn stop(&self) {
        self.running().process().stop();
    }

    /// Resumes a stopped server (SIGCONT).
    ///
    /// # Panics
    /// If the server was killed.
    pub fn cont(&self) {
        self.running().process().cont();
    }

    /// Kills the process (SIGKILL). On return, its port refuses connections.
    pub fn kill(&self) {
        let mut running = self.running();
        running.inspector = None;
        running.process = None;
    }

    /// Kills the process if it runs, and starts an empty server on the same port and socket with the same
    /// settings.
    ///
    /// # Panics
    /// As [`Server::start`].
    pub fn restart(&self) {
        let config = self.running().config.clone();
        self.restart_with(config);
    }

    /// Like `restart`, with other settings.
    ///
    /// # Panics
    /// As [`Server::start`], and if the settings have a clock but the server was started without one.
    pub fn restart_with(&self, config: Config) {
        assert!(!config.clock || self.clock.is_some(), "a clock must be there from the start");
        self.kill();
        if !config.keeps_data {
            let _ = fs::remove_file(self.dir.path().join("dump.rdb"));
            let _ = fs::remove_dir_all(self.dir.path().join("appendonlydir"));
            let _ = fs::remove_file(self.dir.path().join("appendonly.aof")); // where a server before 7 has it
        }
        let config = if self.clock.is_some() { config.clock() } else { config };
        let mut running = self.running();
        running.process = launch(self.dir.path(), &self.port, &config);
        assert!(running.process.is_some(), "a client took {} while its server was down", self.address());
        running.config = config;
    }

    /// Whether the server is still loading its data.
    pub fn is_loading(&self) -> bool {
        self.info("persistence")["loading"] == "1"
    }

    /// Lets the server load the rest without delay.
    pub fn finish_loading(&self) {
        self.command(&["CONFIG", "SET", "key-load-delay", "0"]);
    }

    /// The server's log since its last start.
    pub fn log(&self) -> String {
        launch::log(self.dir.path())
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    fn process(&self) -> &Process {
        self.process.as_ref().expect("the server runs")
    }
}

/// Polls until `it` holds, every 2 ms.
///
/// # Panics
/// After `limit`, with `what` in the message.
pub fn eventually(what: &str, limit: Duration, mut it: impl FnMut() -> bool) {
    let start = Instant::now();
    while !it() {
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A temporary directory.
fn directory() -> TempDir {
    tempfile::Builder::new().prefix("tenure-").tempdir().expect("a temporary directory")
}

/// Removes the directories of servers in a `static` when this process ends.
fn sweep_at_exit<'a>(servers: impl IntoIterator<Item = &'a Server>) {
    sweep_dirs_at_exit(servers.into_iter().map(|server| server.dir.path()));
}

/// Like `sweep_at_exit`, for any directories.
fn sweep_dirs_at_exit<'a>(dirs: impl IntoIterator<Item = &'a Path>) {
    let mut sweeper = Command::new("sh");
    sweeper.args(["-c", "cat; rm -rf \"$@\"", "sweeper"]).args(dirs);
    sweeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // The shell waits for the end of a pipe that this process never closes.
    mem::forget(sweeper.spawn().expect("a shell"));
}

/// Parses the lines `field:value` of INFO.
fn fields(info: &Value) -> BTreeMap<String, String> {
    let lines = info.text().lines().filter_map(|line| line.split_once(':'));
    lines.map(|(field, value)| (field.to_owned(), value.to_owned())).collect()
}
