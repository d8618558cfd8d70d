//! PostgreSQL for one test, on a socket in a temporary directory, optionally with a standby that can be
//! promoted.

use std::env;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::authority::Certificate;
use super::disk::Disk;
use super::port::Port;
use super::process::{Process, give_to_nobody, run_as_nobody};
use super::{directory, eventually, sweep_dirs_at_exit};

/// The port number in the name of the socket.
const PORT: u16 = 5432;

/// A `postgres`, without durability unless it has a [`Disk`]. Dropping it ends the server and removes its directory.
#[derive(Debug)]
pub struct Postgres {
    /// Declared first, so that the process ends before its directory is removed.
    process: Process,
    programs: PathBuf,
    dir: TempDir,
    /// The TCP port, if it has one.
    port: Option<Port>,
    disk: Disk,
}

impl Postgres {
    /// An empty server with the superuser and database `postgres`, without TCP.
    ///
    /// # Panics
    /// Like each function here: if the server cannot be started, with its log in the message.
    pub fn start() -> Self {
        Self::made(None, Disk::Unused)
    }

    /// Like `start`, with the durability of this disk, and an additional loopback port.
    pub fn start_on(disk: Disk) -> Self {
        Self::made(Some(Port::claim()), disk)
    }

    fn made(port: Option<Port>, disk: Disk) -> Self {
        let (programs, dir) = (programs(), place());
        make(&programs, dir.path());
        Self::launched_on(programs, dir, port, disk)
    }

    /// Like `start`, with an additional loopback port that requires TLS and shows this certificate. The role
    /// `secret` needs a password there.
    pub fn with_tls(certificate: &Certificate) -> Self {
        let (programs, dir) = (programs(), place());
        make(&programs, dir.path());
        let data = dir.path().join("data");
        for (from, to) in [(&certificate.cert, "server.crt"), (&certificate.key, "server.key")] {
            let to = data.join(to);
            fs::copy(from, &to).expect("a certificate");
            give_to_nobody(&to);
            fs::set_permissions(&to, Permissions::from_mode(0o600)).expect("our file");
        }
        let hba = "local all all trust\nhostssl all secret 127.0.0.1/32 scram-sha-256\n\
                   hostssl all all 127.0.0.1/32 trust\n";
        fs::write(data.join("pg_hba.conf"), hba).expect("its settings");
        Self::launched(programs, dir, Some(Port::claim()))
    }

    /// An empty server with an additional loopback port, without TLS.
    pub fn with_port() -> Self {
        Self::start_on(Disk::Unused)
    }

    /// A standby that replicates this server until it is promoted.
    pub fn standby(&self) -> Self {
        let dir = place();
        copy(self, dir.path());
        Self::launched(self.programs.clone(), dir, None)
    }

    /// Restarts a crashed server as a standby of `primary`, at its old address.
    pub fn follow(&mut self, primary: &Self) {
        let data = self.dir.path().join("data");
        fs::remove_dir_all(&data).expect("our directory");
        make_data(self.dir.path());
        copy(primary, self.dir.path());
        self.restart();
    }

    fn launched(programs: PathBuf, dir: TempDir, port: Option<Port>) -> Self {
        Self::launched_on(programs, dir, port, Disk::Unused)
    }

    fn launched_on(programs: PathBuf, dir: TempDir, port: Option<Port>, disk: Disk) -> Self {
        let process = launch(&programs, dir.path(), port.as_ref(), disk);
        let mut server = Self { process, programs, dir, port, disk };
        server.answers();
        server
    }

    /// Makes commits wait for a standby. Returns once one is replicating synchronously.
    pub fn wait_for_standby(&self) {
        self.run("ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.run("SELECT pg_reload_conf()");
        eventually("a standby is synchronous", Duration::from_secs(30), || {
            self.run("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") != "0"
        });
    }

    /// Promotes a standby, and waits until it is the primary.
    pub fn promote(&self) {
        self.run("SELECT pg_promote()");
        eventually("it is the primary", Duration::from_secs(30), || {
            self.run("SELECT pg_is_in_recovery()") == "f"
        });
    }

    /// Stops the processes that send changes to standbys: a commit that does not wait for a standby is lost
    /// with this server.
    pub fn hold_back_changes(&self) {
        let senders = self.run("SELECT pid FROM pg_stat_replication");
        assert!(!senders.is_empty(), "no standby follows");
        for sender in senders.lines() {
            let pid = sender.parse().ok().and_then(Pid::from_raw).expect("a process");
            kill_process(pid, Signal::STOP).expect("a process of the server");
        }
    }

    /// Waits until the server answers.
    fn answers(&mut self) {
        eventually("PostgreSQL answers", Duration::from_secs(30), || {
            assert!(!self.process.has_ended(), "it ended: {}", self.log());
            let asked = self.psql().args(["-c", "SELECT 1"]).stderr(Stdio::null()).output();
            asked.expect("psql").status.success()
        });
    }

    /// For a server in a `static`, which is never dropped: removes its directory when this process ends.
    #[must_use]
    pub fn until_exit(self) -> Self {
        sweep_dirs_at_exit([self.dir.path()]);
        self
    }

    /// Ends the server like a crash: unfinished transactions are lost.
    pub fn crash(&mut self) {
        // Stopped senders would not notice the shutdown, and must not send anything any more.
        let senders = self.psql().args(["-c", "SELECT pid FROM pg_stat_replication"]).output();
        self.process.quit();
        let senders = senders.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
        for sender in senders.unwrap_or_default().lines() {
            if let Some(pid) = sender.parse().ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        eventually("PostgreSQL ends", Duration::from_secs(10), || self.process.has_ended());
    }

    /// Kills all processes of the server at once, as if its machine had lost power, but for what the system has
    /// not written yet.
    pub fn kill(&mut self) {
        // A stopped server starts no further process.
        self.process.stop();
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.process.id()));
        let children = children.unwrap_or_default();
        self.process.kill();
        for child in children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
            let _ = kill_process(child, Signal::KILL);
        }
        // One that lives would keep the memory that the next server wants.
        let lives = |pid: &str| {
            fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
        };
        eventually("PostgreSQL ends", Duration::from_secs(10), || {
            self.process.has_ended() && !children.split_whitespace().any(lives)
        });
        let _ = fs::remove_file(self.dir.path().join("data/postmaster.pid"));
    }

    /// Restarts the server with so many connections, of which three are for superusers.
    pub fn limit_connections(&mut self, most: u32) {
        self.run(&format!("ALTER SYSTEM SET max_connections = {most}"));
        self.crash();
        self.restart();
    }

    /// Restarts the server after a crash, with its data.
    pub fn restart(&mut self) {
        self.process = launch(&self.programs, self.dir.path(), self.port.as_ref(), self.disk);
        self.answers();
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        let log = fs::read(self.dir.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// The memory of its processes, in bytes.
    pub fn memory(&self) -> u64 {
        self.process.memory()
    }

    /// The URL of a store in this schema, as the superuser.
    pub fn url(&self, schema: &str) -> String {
        self.url_as("postgres", schema)
    }

    /// The URL of a store in this schema, as another user.
    pub fn url_as(&self, user: &str, schema: &str) -> String {
        format!("postgres://{user}@{}/postgres?schema={schema}", self.place())
    }

    /// The socket's directory and port, as a host in a URL.
    pub fn place(&self) -> String {
        format!("{}:{}", self.directory().replace('/', "%2F"), self.number())
    }

    /// The loopback port.
    ///
    /// # Panics
    /// If it was started without one.
    pub fn address(&self) -> SocketAddr {
        self.port.as_ref().expect("a server with a port").address()
    }

    fn number(&self) -> u16 {
        self.port.as_ref().map_or(PORT, Port::number)
    }

    /// The directory of its socket.
    pub fn directory(&self) -> &str {
        self.dir.path().to_str().expect("a temporary directory in UTF-8")
    }

    /// The path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join(format!(".s.PGSQL.{}", self.number()))
    }

    /// Runs SQL as the superuser. Returns the values, one row per line.
    ///
    /// # Panics
    /// If the server refuses it.
    pub fn run(&self, sql: &str) -> String {
        let done = self.psql().args(["-c", sql]).output().expect("psql");
        assert!(done.status.success(), "{sql}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).expect("text").trim_end().to_owned()
    }

    /// The connection string for libpq and `tokio_postgres`: `host=DIR user=postgres`.
    pub fn config(&self) -> String {
        let (dir, port) = (self.dir.path().display(), self.number());
        format!("host={dir} port={port} user=postgres dbname=postgres")
    }

    /// The client `psql`. Prints bare values, and the SQLSTATE of errors.
    pub fn psql(&self) -> Command {
        let mut psql = Command::new(self.programs.join("psql"));
        psql.args(["-X", "-q", "-A", "-t", "-v", "VERBOSITY=sqlstate", "-U", "postgres", "-h"]);
        psql.arg(self.dir.path()).args(["-p", &self.number().to_string(), "postgres"]).stdin(Stdio::null());
        psql
    }
}

impl Drop for Postgres {
    /// An immediate shutdown; a killed server would leave shared memory segments behind.
    fn drop(&mut self) {
        self.process.quit();
        for _ in 0..1_000 {
            if self.process.has_ended() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn place() -> TempDir {
    let dir = directory();
    make_data(dir.path());
    give_to_nobody(dir.path());
    dir
}

fn make_data(dir: &Path) {
    let data = dir.join("data");
    fs::create_dir(&data).expect("a writable temporary directory");
    give_to_nobody(&data);
    fs::set_permissions(&data, Permissions::from_mode(0o700)).expect("our directory");
}

/// Copies a server's data into a directory, for a standby.
fn copy(primary: &Postgres, dir: &Path) {
    let data = dir.join("data");
    let data = data.to_str().expect("a temporary directory in UTF-8");
    let (from, port) = (primary.directory(), primary.number().to_string());
    let wanted = ["-h", from, "-p", &port, "-U", "postgres", "-D", data, "-R", "-X", "stream", "-c", "fast"];
    run_as_nobody(&primary.programs.join("pg_basebackup"), &wanted);
}

/// Initializes an empty server in a directory.
fn make(programs: &Path, dir: &Path) {
    let data = dir.join("data");
    let wanted = data.to_str().expect("a temporary directory in UTF-8");
    let wanted = ["-D", wanted, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"];
    run_as_nobody(&programs.join("initdb"), &wanted);
    let settings = File::options().append(true).open(data.join("postgresql.conf"));
    settings.and_then(|mut file| file.write_all(b"max_connections = 300\n")).expect("its settings");
}

/// Starts the server on the data in a directory.
fn launch(programs: &Path, dir: &Path, port: Option<&Port>, disk: Disk) -> Process {
    let path = |path: &Path| path.to_str().expect("a temporary directory in UTF-8").to_owned();
    let (data, socket) = (path(&dir.join("data")), path(dir));
    let (host, number) = match port {
        Some(port) => ("127.0.0.1", port.number().to_string()),
        None => ("", PORT.to_string()),
    };
    let mut settings = vec!["-D", &data, "-k", &socket, "-h", host, "-p", &number];
    if disk == Disk::Unused {
        settings.push("-F");
    }
    if dir.join("data/server.crt").exists() {
        settings.extend(["-c", "ssl=on"]);
    }
    let command = disk.command(&path(&programs.join("postgres")), dir);
    let words: Vec<&str> = command.iter().map(String::as_str).chain(settings).collect();
    Process::start_as_nobody(Path::new(words[0]), &words[1..], &dir.join("log"))
}

/// The directory with the programs of the server on the path, or else of the newest one that Debian has beside it.
fn programs() -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let version = |dir: &Path| dir.parent()?.file_name()?.to_str()?.parse::<u32>().ok();
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut debian: Vec<_> = debian.map(|entry| entry.path().join("bin")).collect();
    debian.sort_by_key(|dir| std::cmp::Reverse(version(dir)));
    let has_all = |dir: &PathBuf| {
        ["initdb", "postgres", "psql", "pg_basebackup"].iter().all(|name| dir.join(name).exists())
    };
    let found = env::split_paths(&path).chain(debian).find(has_all);
    found.expect("no PostgreSQL server; the tests need one: apt-get install postgresql")
}
