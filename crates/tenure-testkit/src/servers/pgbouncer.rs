//! PgBouncer in transaction mode in front of a test's PostgreSQL server.

use std::fs;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tempfile::TempDir;

use super::postgres::Postgres;
use super::process::{Process, give_to_nobody, program};
use super::{directory, eventually};

/// A `pgbouncer`. Dropping it ends the process and removes its directory.
#[derive(Debug)]
pub struct PgBouncer {
    /// Declared first, so that the process ends before its directory is removed.
    _process: Process,
    dir: TempDir,
}

impl PgBouncer {
    /// A pooler with five connections to the server.
    ///
    /// # Panics
    /// If it cannot be started, with its log in the message.
    pub fn start(server: &Postgres) -> Self {
        let dir = directory();
        let path = dir.path().to_str().expect("a temporary directory in UTF-8");
        let config = format!(
            "[databases]\npostgres = host={} user=postgres\n[pgbouncer]\nunix_socket_dir = {path}\n\
             listen_port = 5432\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 5\n",
            server.directory()
        );
        let file = dir.path().join("pgbouncer.ini");
        fs::write(&file, config).expect("a writable temporary directory");
        give_to_nobody(dir.path());
        let (program, log) = (program("pgbouncer", "pgbouncer"), dir.path().join("log"));
        let mut process = Process::start_as_nobody(&program, &[file.to_str().expect("UTF-8")], &log);
        let socket = dir.path().join(".s.PGSQL.5432");
        eventually("PgBouncer answers", Duration::from_secs(30), || {
            assert!(!process.has_ended(), "it ended: {}", fs::read_to_string(&log).unwrap_or_default());
            UnixStream::connect(&socket).is_ok()
        });
        Self { _process: process, dir }
    }

    /// The URL of a store in this schema.
    pub fn url(&self, schema: &str) -> String {
        let directory = self.dir.path().to_str().expect("UTF-8").replace('/', "%2F");
        format!("postgres://postgres@{directory}/postgres?schema={schema}&pgbouncer=1")
    }
}
