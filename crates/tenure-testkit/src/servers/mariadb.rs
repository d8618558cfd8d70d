//! MariaDB for one test, on a socket and a loopback port, optionally with a replica that can be promoted. With
//! `TENURE_MYSQL` it is MySQL, from the files in this directory.

use std::env;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use tempfile::TempDir;

use super::authority::Certificate;
use super::disk::Disk;
use super::port::Port;
use super::process::{Process, give_to_nobody, program, run_as_nobody};
use super::{directory, eventually, sweep_dirs_at_exit};

/// A `mariadbd`, or `mysqld`, without fsync unless it has a [`Disk`]. Dropping it ends the server and removes its
/// directory.
#[derive(Debug)]
pub struct MariaDb {
    /// Declared first, so that the process ends before its directory is removed.
    process: Option<Process>,
    dir: TempDir,
    port: Port,
    settings: Vec<String>,
    disk: Disk,
}

const PACKAGES: &str = "mariadb-server-core mariadb-client-core";
/// Several servers at once can exceed the system's limit of asynchronous I/O requests.
const NO_AIO: &str = "--innodb-use-native-aio=0";
/// A small log, because the data of an empty server is copied for each start.
const SMALL_LOG: [&str; 2] = ["--innodb-log-file-size=8M", "--innodb-redo-log-capacity=32M"];
/// Enables TLS on MySQL.
const MYSQL_TLS: &str = "--tls-version=TLSv1.2,TLSv1.3";
/// A temporary directory per server, because a starting server deletes the temporary tables that it finds.
const TEMPORARY: &str = "tmp";

/// The files of MySQL, if that is to be tested.
static MYSQL: LazyLock<Option<PathBuf>> = LazyLock::new(|| env::var_os("TENURE_MYSQL").map(PathBuf::from));

/// The data of an empty server with the superuser `root`, without a password. To make it takes seconds.
static EMPTY: LazyLock<PathBuf> = LazyLock::new(|| {
    let dir = place();
    let (data, temporary) = (option("datadir", dir.path(), "data"), option("tmpdir", dir.path(), TEMPORARY));
    match &*MYSQL {
        Some(_) => {
            let file = dir.path().join("init");
            fs::write(&file, "CREATE USER root@'%'; GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;\n")
                .expect("a file");
            give_to_nobody(&file);
            let file = option("init-file", dir.path(), "init");
            let fixed = fixed();
            let fixed = fixed.iter().map(String::as_str);
            let words = fixed.chain(["--initialize-insecure", &file, &data, &temporary]);
            run_as_nobody(&server(), &words.collect::<Vec<_>>());
        }
        None => {
            let wanted = ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"];
            let settings = ["--skip-name-resolve", NO_AIO, SMALL_LOG[0], &data, &temporary];
            let words = [&wanted[..], &settings].concat();
            run_as_nobody(&program("mariadb-install-db", PACKAGES), &words);
        }
    }
    sweep_dirs_at_exit([dir.path()]);
    dir.keep().join("data")
});

/// The program of the server.
fn server() -> PathBuf {
    match &*MYSQL {
        Some(files) => files.join("usr/sbin/mysqld"),
        None => program("mariadbd", PACKAGES),
    }
}

/// The settings of every server.
fn fixed() -> Vec<String> {
    let mut fixed: Vec<String> = ["--no-defaults", "--skip-name-resolve", NO_AIO].map(str::to_owned).into();
    match &*MYSQL {
        Some(files) => {
            let share = files.join("usr/share");
            // Without TLS, as MariaDB.
            let settings = [SMALL_LOG[1], "--secure-file-priv=", "--mysqlx=0", "--tls-version="];
            fixed.extend(settings.map(str::to_owned));
            fixed.push(format!("--lc-messages-dir={}", path(&share.join("mysql"))));
            fixed.push(format!("--character-sets-dir={}", path(&share.join("mysql/charsets"))));
            fixed.push(format!("--plugin-dir={}", path(&files.join("usr/lib/mysql/plugin"))));
        }
        None => fixed.push(SMALL_LOG[0].to_owned()),
    }
    fixed
}

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
        Self::installed(settings.iter().map(|setting| (*setting).to_owned()).collect()).started()
    }

    /// Like `start`, with the durability of this disk.
    pub fn start_on(disk: Disk) -> Self {
        Self { disk, ..Self::installed(Vec::new()) }.started()
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
        server.settings.extend(MYSQL.is_some().then(|| MYSQL_TLS.to_owned()));
        server.started()
    }

    /// MySQL with the certificate that it makes for itself.
    pub fn with_own_certificate() -> Self {
        Self::start_with(&[MYSQL_TLS])
    }

    fn installed(settings: Vec<String>) -> Self {
        let dir = place();
        copy_empty(dir.path());
        Self { process: None, dir, port: Port::claim(), settings, disk: Disk::Unused }
    }

    fn started(mut self) -> Self {
        self.restart();
        self.run("CREATE DATABASE IF NOT EXISTS app");
        self
    }

    /// Restarts the server after a crash, with its data.
    pub fn restart(&mut self) {
        let dir = self.dir.path();
        let port = format!("--port={}", self.port.number());
        let fixed = fixed();
        let quick: &[&str] = match self.disk {
            Disk::Unused => {
                &["--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0", "--innodb-buffer-pool-size=32M"]
            }
            Disk::Synced | Disk::Slow(_) => &[],
        };
        let places = [
            option("datadir", dir, "data"),
            option("tmpdir", dir, TEMPORARY),
            option("socket", dir, "socket"),
            option("pid-file", dir, "pid"),
            port,
        ];
        let limits = ["--bind-address=127.0.0.1", "--max-connections=300"];
        let command = self.disk.command(&path(&server()), dir);
        let words = places.iter().chain(&self.settings).map(String::as_str);
        let words = limits.iter().chain(quick).copied().chain(words);
        let words: Vec<&str> = command.iter().chain(&fixed).map(String::as_str).chain(words).collect();
        let log = dir.join("log");
        let mut process = Process::start_as_nobody(Path::new(words[0]), &words[1..], &log);
        eventually("MariaDB answers", Duration::from_secs(60), || {
            assert!(!process.has_ended(), "it ended: {}", fs::read_to_string(&log).unwrap_or_default());
            let asked = client(dir).args(["-e", "SELECT 1"]).stderr(Stdio::null()).output();
            asked.expect("the client mariadb").status.success()
        });
        self.process = Some(process);
    }

    /// A primary and a replica that follows it, both with the database `app`, of the user `app`.
    pub fn with_replica() -> (Self, Self) {
        let make = |id: u32| {
            let id = format!("--server-id={id}");
            let mut settings = vec![&*id, "--log-bin=binlog", "--binlog-format=ROW", "--relay-log=relay"];
            settings.push(if MYSQL.is_some() { "--log-replica-updates" } else { "--log-slave-updates" });
            if MYSQL.is_some() {
                settings.extend(["--gtid-mode=ON", "--enforce-gtid-consistency=ON"]);
            }
            let mut server = Self::installed(settings.into_iter().map(str::to_owned).collect());
            server.restart();
            server
        };
        let (primary, replica) = (make(1), make(2));
        primary.run("CREATE DATABASE app; CREATE USER app; GRANT ALL ON app.* TO app");
        replica.follow(&primary);
        (primary, replica)
    }

    /// Commits wait for a replica, without a limit.
    pub fn wait_for_replica(&self) {
        let name = self.semi_synchronous("source", "master");
        self.run(&format!("SET GLOBAL {name}_wait_point = AFTER_SYNC"));
        self.run(&format!("SET GLOBAL {name}_timeout = 3600000"));
        self.run(&format!("SET GLOBAL {name}_enabled = 1"));
    }

    /// Loads the semi-synchronous plugin, and returns how its variables begin.
    fn semi_synchronous(&self, mysql: &str, mariadb: &str) -> String {
        let side = if MYSQL.is_some() { mysql } else { mariadb };
        let name = format!("rpl_semi_sync_{side}");
        if self.run(&format!("SHOW VARIABLES LIKE '{name}_enabled'")).is_empty() {
            self.run(&format!("INSTALL PLUGIN {name} SONAME 'semisync_{side}.so'"));
        }
        name
    }

    /// Replicates another server, and takes no writes.
    fn follow(&self, primary: &Self) {
        // MySQL's replica asks for it when it connects.
        primary.semi_synchronous("source", "master");
        let name = self.semi_synchronous("replica", "slave");
        self.run(&format!("SET GLOBAL {name}_enabled = 1"));
        self.run("SET GLOBAL read_only = 1");
        let port = primary.port.number();
        self.run(&match &*MYSQL {
            Some(_) => format!(
                "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {port}, SOURCE_USER = 'root',
                     SOURCE_AUTO_POSITION = 1, SOURCE_SSL = 0, GET_SOURCE_PUBLIC_KEY = 1, SOURCE_CONNECT_RETRY = 1;
                 START REPLICA"
            ),
            None => format!(
                "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = 'root',
                     MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1;
                 START SLAVE"
            ),
        });
        eventually("the replica is connected", Duration::from_secs(30), || match &*MYSQL {
            Some(_) => {
                let asked = "SELECT SERVICE_STATE FROM performance_schema.replication_connection_status";
                self.run(asked) == "ON"
            }
            None => self.run("SHOW SLAVE STATUS").contains("Waiting for master to send event"),
        });
    }

    /// Waits until this replica has all that its primary has committed.
    pub fn catches_up(&self, primary: &Self) {
        let position = |server: &Self| {
            server.run(match &*MYSQL {
                Some(_) => "SELECT @@GLOBAL.gtid_executed",
                None => "SELECT @@GLOBAL.gtid_current_pos",
            })
        };
        eventually("the replica catches up", Duration::from_secs(30), || position(self) == position(primary));
    }

    /// Stops receiving changes: what the primary commits now is lost with it.
    pub fn hold_back_changes(&self) {
        self.run(if MYSQL.is_some() { "STOP REPLICA IO_THREAD" } else { "STOP SLAVE IO_THREAD" });
    }

    /// Promotes a replica, after it has executed all that it has received.
    pub fn promote(&self) {
        self.hold_back_changes();
        eventually("the replica has executed all", Duration::from_secs(30), || match &*MYSQL {
            Some(_) => {
                let asked = "SELECT GTID_SUBSET(RECEIVED_TRANSACTION_SET, @@GLOBAL.gtid_executed)
                    FROM performance_schema.replication_connection_status";
                self.run(asked) == "1"
            }
            None => {
                let state = self.run("SHOW SLAVE STATUS");
                assert!(!state.contains("Error"), "{state}");
                state.contains("has read all relay log")
            }
        });
        self.run(if MYSQL.is_some() {
            "STOP REPLICA; RESET REPLICA ALL"
        } else {
            "STOP SLAVE; RESET SLAVE ALL"
        });
        self.run("SET GLOBAL read_only = 0");
    }

    /// Restarts a crashed primary with its data. It takes no writes, even for a moment.
    pub fn restart_read_only(&mut self) {
        self.settings.push("--read-only=1".to_owned());
        self.restart();
        self.settings.pop();
    }

    /// Replaces the data of an old primary, which may have committed what no replica has, by that of the new one,
    /// as its replica.
    pub fn rebuild(&mut self, primary: &Self) {
        self.crash();
        // A replica skips changes that were made under its own id, and the old data were.
        let id = self.settings.iter_mut().find(|setting| setting.starts_with("--server-id="));
        id.into_iter().for_each(|id| id.push('1'));
        let data = self.dir.path().join("data");
        fs::remove_dir_all(&data).expect("our directory");
        copy_empty(self.dir.path());
        self.restart_read_only();
        self.follow(primary);
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

    /// The directory of its data, where MySQL makes its own certificates and keys.
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
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

fn copy_empty(dir: &Path) {
    let copied = Command::new("cp").arg("-a").arg(&*EMPTY).arg(dir).status().expect("cp");
    assert!(copied.success(), "the data of an empty server is copied");
    // Each server has an identity of its own.
    let _ = fs::remove_file(dir.join("data/auto.cnf"));
}

fn client(dir: &Path) -> Command {
    let mut client = Command::new(match &*MYSQL {
        Some(files) => files.join("usr/bin/mysql"),
        None => program("mariadb", PACKAGES),
    });
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
