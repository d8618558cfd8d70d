//! MariaDB for one test, on a socket and a loopback port.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use tempfile::TempDir;

use super::authority::Certificate;
use super::port::Port;
use super::process::{Process, give_to_nobody, program, run_as_nobody};
use super::{directory, eventually, sweep_dirs_at_exit};

/// A `mariadbd` without fsync. Dropping it ends the server and removes its directory.
#[derive(Debug)]
pub struct MariaDb {
    /// Declared first, so that the process ends before its directory is removed.
    process: Option<Process>,
    dir: TempDir,
    port: Port,
    settings: Vec<String>,
}

const PACKAGES: &str = "mariadb-server-core mariadb-client-core";
/// Several servers at once can exceed the system's limit of asynchronous I/O requests.
const NO_AIO: &str = "--innodb-use-native-aio=0";
/// A small log, because the data of an empty server is copied for each start.
const SMALL_LOG: &str = "--innodb-log-file-size=8M";
/// A temporary directory per server, because a starting server deletes the temporary tables that it finds.
const TEMPORARY: &str = "tmp";

/// The data of an empty server with the superuser `root`, without a password. To make it takes seconds.
static EMPTY: LazyLock<PathBuf> = LazyLock::new(|| {
    let dir = place();
    let (data, temporary) = (option("datadir", dir.path(), "data"), option("tmpdir", dir.path(), TEMPORARY));
    let wanted = ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"];
    let settings = ["--skip-name-resolve", NO_AIO, SMALL_LOG, &data, &temporary];
    run_as_nobody(&program("mariadb-install-db", PACKAGES), &[&wanted[..], &settings].concat());
    sweep_dirs_at_exit([dir.path()]);
    dir.keep().join("data")
});

impl MariaDb {
    /// A server with the superuser `root`, without a password, and the empty database `app`.
    ///
    /// # Panics
    /// Like each function here: if the server cannot be started, with its log in the message.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Like `start`, with further settings, as `--name=value`.
    pub fn start_with(settings: &[&str]) -> Self {
        let mut server = Self::installed(settings.iter().map(|setting| (*setting).to_owned()).collect());
        server.restart();
        server.run("CREATE DATABASE IF NOT EXISTS app");
        server
    }

    /// Like `start`, with TLS and this certificate on its port.
    pub fn with_tls(certificate: &Certificate) -> Self {
        let mut server = Self::installed(Vec::new());
        for (from, name) in [(&certificate.cert, "cert"), (&certificate.key, "key")] {
            let to = server.dir.path().join(name);
            fs::copy(from, &to).expect("a certificate");
            give_to_nobody(&to);
            server.settings.push(format!("--ssl-{name}={}", path(&to)));
        }
        server.restart();
        server.run("CREATE DATABASE IF NOT EXISTS app");
        server
    }

    fn installed(settings: Vec<String>) -> Self {
        let dir = place();
        let copied = Command::new("cp").arg("-a").arg(&*EMPTY).arg(dir.path()).status().expect("cp");
        assert!(copied.success(), "the data of an empty server is copied");
        Self { process: None, dir, port: Port::claim(), settings }
    }

    /// Restarts the server after a crash, with its data.
    pub fn restart(&mut self) {
        let dir = self.dir.path();
        let port = format!("--port={}", self.port.number());
        let fixed = ["--no-defaults", "--bind-address=127.0.0.1", "--skip-name-resolve", NO_AIO, SMALL_LOG];
        let quick =
            ["--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=32M", "--max-connections=300"];
        let places = [
            option("datadir", dir, "data"),
            option("tmpdir", dir, TEMPORARY),
            option("socket", dir, "socket"),
            option("pid-file", dir, "pid"),
            port,
        ];
        let words = places.iter().chain(&self.settings).map(String::as_str);
        let words: Vec<&str> = fixed.into_iter().chain(quick).chain(words).collect();
        let log = dir.join("log");
        let mut process = Process::start_as_nobody(&program("mariadbd", PACKAGES), &words, &log);
        eventually("MariaDB answers", Duration::from_secs(60), || {
            assert!(!process.has_ended(), "it ended: {}", fs::read_to_string(&log).unwrap_or_default());
            let asked = client(dir).args(["-e", "SELECT 1"]).stderr(Stdio::null()).output();
            asked.expect("the client mariadb").status.success()
        });
        self.process = Some(process);
    }

    /// Kills the server: unfinished transactions are lost.
    pub fn crash(&mut self) {
        self.process = None;
    }

    /// Stops the process (SIGSTOP): its connections stay open and nothing answers.
    ///
    /// # Panics
    /// If it crashed.
    pub fn stop(&self) {
        self.process.as_ref().expect("a running server").stop();
    }

    /// Resumes a stopped server (SIGCONT).
    ///
    /// # Panics
    /// If it crashed.
    pub fn cont(&self) {
        self.process.as_ref().expect("a running server").cont();
    }

    /// For a server in a `static`, which is never dropped: removes its directory when this process ends.
    #[must_use]
    pub fn until_exit(self) -> Self {
        sweep_dirs_at_exit([self.dir.path()]);
        self
    }

    /// The URL of a store in this database, which is created, as the superuser.
    pub fn url(&self, database: &str) -> String {
        self.run(&format!("CREATE DATABASE IF NOT EXISTS {database}"));
        self.url_as("root", database)
    }

    /// The URL of a store in this database, as another user, with or without a password.
    pub fn url_as(&self, login: &str, database: &str) -> String {
        format!("mysql://{login}@{}/{database}", self.address())
    }

    /// The loopback port.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The path of its socket.
    pub fn socket(&self) -> PathBuf {
        socket(self.dir.path())
    }

    /// Runs SQL as the superuser in the database `mysql`. Returns the values, one row per line.
    ///
    /// # Panics
    /// If the server refuses it.
    pub fn run(&self, sql: &str) -> String {
        let done = client(self.dir.path()).args(["mysql", "-e", sql]).output().expect("the client mariadb");
        assert!(done.status.success(), "{sql}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).expect("text").trim_end().to_owned()
    }

    /// The client `mariadb` in the database `app`. Prints bare values, and the SQLSTATE of errors.
    pub fn client(&self) -> Command {
        let mut client = client(self.dir.path());
        client.arg("app");
        client
    }
}

fn client(dir: &Path) -> Command {
    let mut client = Command::new(program("mariadb", PACKAGES));
    client.args(["--no-defaults", "--default-character-set=utf8mb4", "-u", "root", "-N", "-s", "-n", "-S"]);
    client.arg(socket(dir)).stdin(Stdio::null());
    client
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("socket")
}

/// A directory of the server's user, with one for temporary files.
fn place() -> TempDir {
    let dir = directory();
    let temporary = dir.path().join(TEMPORARY);
    fs::create_dir(&temporary).expect("a directory in a new one");
    give_to_nobody(&temporary);
    give_to_nobody(dir.path());
    dir
}

fn option(name: &str, dir: &Path, file: &str) -> String {
    format!("--{name}={}", path(&dir.join(file)))
}

fn path(path: &Path) -> String {
    path.to_str().expect("a temporary directory in UTF-8").to_owned()
}
