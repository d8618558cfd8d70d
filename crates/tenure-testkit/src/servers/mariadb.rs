//! MariaDB for one test, on a socket in a temporary directory.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::eventually;
use super::postgres::{as_nobody, give_to_nobody};
use super::process::Process;

/// A `mariadbd` without TCP and without durability. Dropping it ends the server and removes its directory.
#[derive(Debug)]
pub struct MariaDb {
    /// Declared first, so that the process ends before its directory is removed.
    _process: Process,
    dir: TempDir,
}

/// Several servers at once can exceed the system's limit of asynchronous I/O requests.
const NO_AIO: &str = "--innodb-use-native-aio=0";
/// A temporary directory per server, because a starting server deletes the temporary tables that it finds.
const TEMPORARY: &str = "tmp";

impl MariaDb {
    /// A server with the superuser `root`, without a password, and the empty database `app`.
    ///
    /// # Panics
    /// If the server cannot be started, with its log in the message.
    pub fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("tenure-").tempdir().expect("a temporary directory");
        give_to_nobody(dir.path());
        let path = |path: &Path| path.to_str().expect("a temporary directory in UTF-8").to_owned();
        let data = format!("--datadir={}", path(&dir.path().join("data")));
        let temporary = dir.path().join(TEMPORARY);
        fs::create_dir(&temporary).expect("a directory in a new one");
        give_to_nobody(&temporary);
        let temporary = format!("--tmpdir={}", path(&temporary));
        let socket = format!("--socket={}", path(&socket(dir.path())));

        let install = path(&program("mariadb-install-db"));
        let wanted = ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"];
        let words =
            as_nobody(&install, &[&wanted[..], &["--skip-name-resolve", NO_AIO, &data, &temporary]].concat());
        let made = Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).output();
        let made = made.unwrap_or_else(|error| panic!("{}: {error}", words[0]));
        let said = [made.stdout, made.stderr].concat();
        assert!(made.status.success(), "mariadb-install-db: {}", String::from_utf8_lossy(&said));

        let server = path(&program("mariadbd"));
        let pid = format!("--pid-file={}", path(&dir.path().join("pid")));
        let settings = ["--no-defaults", "--skip-networking", NO_AIO, "--innodb-flush-log-at-trx-commit=0"];
        let words = as_nobody(&server, &[&settings[..], &[&data, &temporary, &socket, &pid]].concat());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let log = dir.path().join("log");
        let mut process = Process::start(Path::new(words[0]), &words[1..], &[], &log).expect("setpriv");
        eventually("MariaDB answers", Duration::from_secs(30), || {
            assert!(!process.has_ended(), "it ended: {}", fs::read_to_string(&log).unwrap_or_default());
            let mut client = client(dir.path());
            client.args(["-e", "CREATE DATABASE IF NOT EXISTS app"]).stderr(Stdio::null());
            client.output().expect("the client mariadb").status.success()
        });
        Self { _process: process, dir }
    }

    /// The client `mariadb` in the database `app`. Prints bare values, and the SQLSTATE of errors.
    pub fn client(&self) -> Command {
        let mut client = client(self.dir.path());
        client.arg("app");
        client
    }
}

fn client(dir: &Path) -> Command {
    let mut client = Command::new(program("mariadb"));
    client.args(["--no-defaults", "--default-character-set=utf8mb4", "-u", "root", "-N", "-s", "-n", "-S"]);
    client.arg(socket(dir)).stdin(Stdio::null());
    client
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("socket")
}

/// A program of the server. Debian installs the server itself in a directory that only root has on the path.
fn program(name: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let dirs = env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/bin".into()]);
    let found = dirs.map(|dir| dir.join(name)).find(|file| file.exists());
    found.unwrap_or_else(|| {
        panic!("no {name}; the tests need it: apt-get install mariadb-server-core mariadb-client-core")
    })
}
