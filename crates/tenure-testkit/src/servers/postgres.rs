//! A PostgreSQL server of its own for one test, on a socket in a temporary directory.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::geteuid;
use tempfile::TempDir;

use super::eventually;
use super::process::Process;

/// The user `nobody`, as whom the server runs where the test is root: PostgreSQL refuses root.
const NOBODY: u32 = 65534;

/// One `postgres` without TCP and without durability. Dropping it ends the server and removes its
/// directory.
#[derive(Debug)]
pub struct Postgres {
    /// Declared first, so that the process is gone before its directory is.
    process: Process,
    programs: PathBuf,
    dir: TempDir,
}

impl Postgres {
    /// An empty server with the superuser and the database `postgres`.
    ///
    /// # Panics
    /// If the server cannot be had, with its log in the message.
    pub fn start() -> Self {
        let programs = programs();
        let dir = tempfile::Builder::new().prefix("tenure-").tempdir().expect("a temporary directory");
        let data = dir.path().join("data");
        fs::create_dir(&data).expect("a writable temporary directory");
        give_to_nobody(&data); // initdb makes it private
        give_to_nobody(dir.path());
        let path = |path: &Path| path.to_str().expect("a temporary directory in UTF-8").to_owned();
        let (data, socket) = (path(&data), path(dir.path()));

        let initdb = path(&programs.join("initdb"));
        let wanted = ["-D", &data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"];
        let words = as_nobody(&initdb, &wanted);
        let made = Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).output();
        let made = made.unwrap_or_else(|error| panic!("{}: {error}", words[0]));
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));

        let postgres = path(&programs.join("postgres"));
        let settings = ["-D", &data, "-k", &socket, "-h", "", "-F", "-c", "max_connections=50"];
        let words = as_nobody(&postgres, &settings);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let log = dir.path().join("log");
        let process = Process::start(Path::new(words[0]), &words[1..], &[], &log).expect("setpriv");
        let mut server = Self { process, programs, dir };
        eventually("PostgreSQL answers", Duration::from_secs(30), || {
            let ended = server.process.has_ended();
            assert!(!ended, "it ended: {}", fs::read_to_string(&log).unwrap_or_default());
            let asked = server.psql().args(["-c", "SELECT 1"]).stderr(Stdio::null()).output();
            asked.expect("psql").status.success()
        });
        server
    }

    /// Where it is, in the form that libpq and `tokio_postgres` read: `host=DIR user=postgres`.
    pub fn config(&self) -> String {
        format!("host={} user=postgres dbname=postgres", self.dir.path().display())
    }

    /// The client `psql`: bare values, and of an error its SQLSTATE.
    pub fn psql(&self) -> Command {
        let mut psql = Command::new(self.programs.join("psql"));
        psql.args(["-X", "-q", "-A", "-t", "-v", "VERBOSITY=sqlstate", "-U", "postgres", "-h"]);
        psql.arg(self.dir.path()).arg("postgres").stdin(Stdio::null());
        psql
    }
}

impl Drop for Postgres {
    /// An immediate shutdown. A killed server would leave shared memory in the system.
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

/// Where the test is root, the directory becomes that of the user as whom the server runs.
pub(super) fn give_to_nobody(dir: &Path) {
    if geteuid().is_root() {
        chown(dir, Some(NOBODY), Some(NOBODY)).expect("root may give files away");
        fs::set_permissions(dir, Permissions::from_mode(0o755)).expect("our directory");
    }
}

/// The words of a command as a user that databases accept. A server must end with its test, and a
/// change of user undoes the first `setpriv` of [`Process::start`]: so there is another.
pub(super) fn as_nobody(program: &str, arguments: &[&str]) -> Vec<String> {
    let id = NOBODY.to_string();
    let user = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "--"];
    let bound = ["setpriv", "--pdeathsig", "QUIT", "--", program];
    let user = if geteuid().is_root() { &user[..] } else { &[] };
    [user, &bound, arguments].concat().into_iter().map(str::to_owned).collect()
}

/// The directory of the newest server's programs. Debian does not put them on the path.
fn programs() -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let version = |dir: &Path| dir.parent()?.file_name()?.to_str()?.parse::<u32>().ok();
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut debian: Vec<_> = debian.map(|entry| entry.path().join("bin")).collect();
    debian.sort_by_key(|dir| std::cmp::Reverse(version(dir)));
    let has_all = |dir: &PathBuf| ["initdb", "postgres", "psql"].iter().all(|name| dir.join(name).exists());
    let found = debian.into_iter().chain(env::split_paths(&path)).find(has_all);
    found.expect("no PostgreSQL server; the tests need one: apt-get install postgresql")
}
