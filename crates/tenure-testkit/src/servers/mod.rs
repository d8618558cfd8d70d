//! Real servers, started for one test and gone with it.
//!
//! Each [`Server`] is a `redis-server` process on its loopback port and its unix socket,
//! empty, without persistence. The binary is `$TENURE_REDIS_SERVER`, or `redis-server` on the path;
//! where it is missing a test fails and says what to install.
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
use std::time::{Duration, Instant};

use tempfile::TempDir;

mod authority;
mod between;
mod client;
mod clock;
mod cluster;
mod config;
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
pub use etcd::Etcd;
pub use mariadb::MariaDb;
pub use pgbouncer::PgBouncer;
pub use postgres::Postgres;
pub use process::stop;
pub use reply::Value;
pub(crate) use reply::message;
pub use sentinel::Sentinels;
pub use zookeeper::ZooKeeper;

use launch::{inspector, launch};
use port::Port;
use process::Process;

/// A store's URL with these terms added to its query, as in `acks=2&restart-grace=30s`.
pub fn on_terms(url: &str, terms: &str) -> String {
    let separator = if terms.is_empty() {
        ""
    } else if url.contains('?') {
        "&"
    } else {
        "?"
    };
    format!("{url}{separator}{terms}")
}

/// One `redis-server`. Dropping it kills the process and removes its directory, also when the test
/// panics.
#[derive(Debug)]
pub struct Server {
    /// Declared first, so that the process is gone before its directory is.
    running: Mutex<Running>,
    port: Port,
    clock: Option<Clock>,
    dir: TempDir,
}

#[derive(Debug)]
struct Running {
    process: Option<Process>,
    config: Config,
    /// For `command`: kept open, so that it still works when the server takes no more connections.
    inspector: Option<Client>,
}

impl Server {
    /// A server with the defaults.
    ///
    /// # Panics
    /// Like each function here: if the server cannot be had, with its log in the message.
    pub fn start() -> Self {
        Self::start_with(Config::new())
    }

    /// A server whose clock the test moves: see [`Server::clock`].
    pub fn with_clock() -> Self {
        Self::start_with(Config::new().clock())
    }

    /// Several servers that know nothing of each other.
    pub fn several<const N: usize>() -> [Self; N] {
        std::array::from_fn(|_| Self::start())
    }

    /// A server with these settings.
    pub fn start_with(config: Config) -> Self {
        let dir = tempfile::Builder::new().prefix("tenure-").tempdir().expect("a temporary directory");
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

    /// A server that reads what it has kept, and says so instead of an answer, for about this time
    /// or until [`Server::finish_loading`].
    pub fn loading(time: Duration) -> Self {
        const KEYS: u32 = 500;
        let config = || Config::new().keep_data().set("save", "3600 1");
        let server = Self::start_with(config());
        // Each is as long as what is read between two looks at the clients.
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

    /// `redis://127.0.0.1:PORT`, without a user; `rediss://` where the port speaks TLS.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme(), self.address())
    }

    /// `redis`, or `rediss` where it speaks TLS.
    fn scheme(&self) -> &'static str {
        if self.running().config.tls { "rediss" } else { "redis" }
    }

    /// Whether there is something at a key.
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

    /// Where the server listens. It stays the same over restarts.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The server's socket in the file system.
    pub fn socket(&self) -> PathBuf {
        launch::socket(self.dir.path())
    }

    /// Sends one command, as a user who may do everything, and waits for the reply; an error of the
    /// server is a reply.
    ///
    /// # Panics
    /// Without an answer within 5 s.
    pub fn command<A: AsRef<[u8]>>(&self, arguments: &[A]) -> Value {
        self.try_command(arguments).unwrap_or_else(|error| {
            let name = arguments.first().map(|name| name.as_ref().escape_ascii().to_string());
            panic!("{} to the server at {}: {error}", name.unwrap_or_default(), self.address())
        })
    }

    /// The same, where no answer is an answer.
    ///
    /// # Errors
    /// As [`Client::command`]. The next command dials again.
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

    /// A connection of the test's own, as a user who may do everything.
    ///
    /// # Errors
    /// As [`Client::command`].
    pub fn client(&self) -> io::Result<Client> {
        inspector(self.dir.path())
    }

    /// Whether a new connection by TCP gets any answer within that time.
    pub fn answers_within(&self, time: Duration) -> bool {
        Client::dial(self.address()).and_then(|client| client.with_timeout(time).command(&["PING"])).is_ok()
    }

    /// A section of INFO, by field.
    pub fn info(&self, section: &str) -> BTreeMap<String, String> {
        fields(&self.command(&["INFO", section]))
    }

    /// How often each command was called since the start or `CONFIG RESETSTAT`, also by scripts.
    /// Those of the kit itself are `info` and what the test sends by [`Server::command`].
    pub fn info_commandstats(&self) -> BTreeMap<String, u64> {
        let calls = |stats: &str| stats.split(',').find_map(|stat| stat.strip_prefix("calls=")?.parse().ok());
        let stats = self.info("commandstats").into_iter();
        stats
            .filter_map(|(name, stats)| Some((name.strip_prefix("cmdstat_")?.to_owned(), calls(&stats)?)))
            .collect()
    }

    /// Waits until so many replicas have all that it was told so far. One that has just been
    /// connected is sent nothing for up to a second, though it says that the link is up. `key` is
    /// set for a moment.
    ///
    /// # Panics
    /// If they have it not within 4 s.
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

    /// Whether it was neither killed nor stopped.
    pub fn is_running(&self) -> bool {
        self.running().process.as_ref().is_some_and(|process| !process.is_stopped())
    }

    /// Stops the process where it stands (SIGSTOP): its connections stay open and nothing answers.
    ///
    /// # Panics
    /// If the server was killed.
    pub fn stop(&self) {
        self.running().process().stop();
    }

    /// Lets a stopped server go on.
    ///
    /// # Panics
    /// If the server was killed.
    pub fn cont(&self) {
        self.running().process().cont();
    }

    /// Kills the process (SIGKILL). When this returns its port refuses.
    pub fn kill(&self) {
        let mut running = self.running();
        running.inspector = None;
        running.process = None;
    }

    /// Kills the process if it runs, and starts an empty one on the same port and socket with the
    /// same settings.
    ///
    /// # Panics
    /// As [`Server::start`].
    pub fn restart(&self) {
        let config = self.running().config.clone();
        self.restart_with(config);
    }

    /// The same with other settings.
    ///
    /// # Panics
    /// As [`Server::start`], and for a clock in the settings of a server that was started without
    /// one.
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

    /// Whether it still reads what it has kept.
    pub fn is_loading(&self) -> bool {
        self.info("persistence")["loading"] == "1"
    }

    /// Lets it read the rest at once.
    pub fn finish_loading(&self) {
        self.command(&["CONFIG", "SET", "key-load-delay", "0"]);
    }

    /// What the server wrote into its log since its last start.
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

/// Waits until `it` holds, asking each few ms.
///
/// # Panics
/// After `limit`, with `what` in the message.
pub fn eventually(what: &str, limit: Duration, mut it: impl FnMut() -> bool) {
    let start = Instant::now();
    while !it() {
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Removes the directories of servers that are never dropped when this process ends, as the servers
/// do.
fn sweep_at_exit<'a>(servers: impl IntoIterator<Item = &'a Server>) {
    sweep_dirs_at_exit(servers.into_iter().map(|server| server.dir.path()));
}

/// The same for any directories.
fn sweep_dirs_at_exit<'a>(dirs: impl IntoIterator<Item = &'a Path>) {
    let mut sweeper = Command::new("sh");
    sweeper.args(["-c", "cat; rm -rf \"$@\"", "sweeper"]).args(dirs);
    sweeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // It waits for the end of a pipe that this process never closes.
    mem::forget(sweeper.spawn().expect("a shell"));
}

/// The lines `field:value` of INFO.
fn fields(info: &Value) -> BTreeMap<String, String> {
    let lines = info.text().lines().filter_map(|line| line.split_once(':'));
    lines.map(|(field, value)| (field.to_owned(), value.to_owned())).collect()
}
