//! A PostgreSQL server of its own for one test, on a socket in a temporary directory.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::geteuid;
use tempfile::TempDir;

use super::process::Process;
use super::{eventually, sweep_dirs_at_exit};

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
        let data = path(&data);

        let initdb = path(&programs.join("initdb"));
        let wanted = ["-D", &data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"];
        let words = as_nobody(&initdb, &wanted);
        let made = Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).output();
        let made = made.unwrap_or_else(|error| panic!("{}: {error}", words[0]));
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));

        let process = launch(&programs, dir.path());
        let mut server = Self { process, programs, dir };
        server.answers();
        server
    }

    /// Waits until it answers.
    fn answers(&mut self) {
        eventually("PostgreSQL answers", Duration::from_secs(30), || {
            let log = self.dir.path().join("log");
            assert!(!self.process.has_ended(), "it ended: {}", fs::read_to_string(log).unwrap_or_default());
            let asked = self.psql().args(["-c", "SELECT 1"]).stderr(Stdio::null()).output();
            asked.expect("psql").status.success()
        });
    }

    /// The same for as long as this program runs, for a `static`: its directory is removed then.
    #[must_use]
    pub fn until_exit(self) -> Self {
        sweep_dirs_at_exit([self.dir.path()]);
        self
    }

    /// Ends it as a crash does: what was under way is lost.
    pub fn crash(&mut self) {
        self.process.quit();
        eventually("PostgreSQL ends", Duration::from_secs(10), || self.process.has_ended());
    }

    /// Starts it again after a crash, with what it had.
    pub fn restart(&mut self) {
        self.process = launch(&self.programs, self.dir.path());
        self.answers();
    }

    /// The URL of a store in this schema, as the superuser.
    pub fn url(&self, schema: &str) -> String {
        self.url_as("postgres", schema)
    }

    /// The same as another user.
    pub fn url_as(&self, user: &str, schema: &str) -> String {
        let directory = self.directory().replace('/', "%2F");
        format!("postgres://{user}@{directory}/postgres?schema={schema}")
    }

    /// The directory of its socket.
    pub fn directory(&self) -> &str {
        self.dir.path().to_str().expect("a temporary directory in UTF-8")
    }

    /// The path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join(".s.PGSQL.5432")
    }

    /// Runs SQL as the superuser, and returns the values of the rows, a line each.
    ///
    /// # Panics
    /// If the server refuses it.
    pub fn run(&self, sql: &str) -> String {
        let done = self.psql().args(["-c", sql]).output().expect("psql");
        assert!(done.status.success(), "{sql}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).expect("text").trim_end().to_owned()
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

/// Starts the server on the data in a directory.
fn launch(programs: &Path, dir: &Path) -> Process {
    let path = |path: &Path| path.to_str().expect("a temporary directory in UTF-8").to_owned();
    let (data, socket, postgres) = (path(&dir.join("data")), path(dir), path(&programs.join("postgres")));
    let settings = ["-D", &data, "-k", &socket, "-h", "", "-F", "-c", "max_connections=300"];
    let words = as_nobody(&postgres, &settings);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Process::start(Path::new(words[0]), &words[1..], &[], &dir.join("log")).expect("setpriv")
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
