//! PgBouncer in transaction mode in front of a test's PostgreSQL server.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tempfile::TempDir;

use super::authority::Certificate;
use super::port::Port;
use super::postgres::Postgres;
use super::process::{Process, give_to_nobody, program};
use super::{directory, eventually};

/// A `pgbouncer`. Dropping it ends the process and removes its directory.
#[derive(Debug)]
pub struct PgBouncer {
    /// Declared first, so that the process ends before its directory is removed.
    _process: Process,
    dir: TempDir,
    /// The TCP port, if it has one.
    port: Option<Port>,
}

impl PgBouncer {
    /// A pooler with five connections to the server.
    ///
    /// # Panics
    /// If it cannot be started, with its log in the message.
    pub fn start(server: &Postgres) -> Self {
        Self::launched(server, directory(), None, "listen_port = 5432\nauth_type = any\n")
    }

    /// Like `start`, with an additional loopback port that requires TLS, and this certificate. A user has its own
    /// name as the password.
    pub fn with_tls(server: &Postgres, certificate: &Certificate, user: &str) -> Self {
        let (dir, port) = (directory(), Port::claim());
        for (from, to) in [(&certificate.cert, "cert"), (&certificate.key, "key")] {
            fs::copy(from, dir.path().join(to)).expect("a certificate");
            give_to_nobody(&dir.path().join(to));
        }
        fs::write(dir.path().join("users"), format!("\"{user}\" \"{user}\"\n")).expect("a file");
        let path = dir.path().display();
        let settings = format!(
            "listen_addr = 127.0.0.1\nlisten_port = {}\nclient_tls_sslmode = require\nclient_tls_cert_file = \
             {path}/cert\nclient_tls_key_file = {path}/key\nauth_type = scram-sha-256\nauth_file = {path}/users\n",
            port.number()
        );
        Self::launched(server, dir, Some(port), &settings)
    }

    fn launched(server: &Postgres, dir: TempDir, port: Option<Port>, settings: &str) -> Self {
        let path = dir.path().to_str().expect("a temporary directory in UTF-8");
        let config = format!(
            "[databases]\npostgres = host={} user=postgres\n[pgbouncer]\nunix_socket_dir = {path}\n\
             pool_mode = transaction\ndefault_pool_size = 5\n{settings}",
            server.directory()
        );
        let file = dir.path().join("pgbouncer.ini");
        fs::write(&file, config).expect("a writable temporary directory");
        give_to_nobody(dir.path());
        let (program, log) = (program("pgbouncer", "pgbouncer"), dir.path().join("log"));
        let mut process = Process::start_as_nobody(&program, &[file.to_str().expect("UTF-8")], &log);
        let number = port.as_ref().map_or(5432, Port::number);
        let socket = dir.path().join(format!(".s.PGSQL.{number}"));
        eventually("PgBouncer answers", Duration::from_secs(30), || {
            assert!(!process.has_ended(), "it ended: {}", fs::read_to_string(&log).unwrap_or_default());
            UnixStream::connect(&socket).is_ok()
        });
        Self { _process: process, dir, port }
    }

    /// The loopback port.
    ///
    /// # Panics
    /// If it has none.
    pub fn address(&self) -> SocketAddr {
        self.port.as_ref().expect("a pooler with a port").address()
    }

    /// The URL of a store in this schema.
    pub fn url(&self, schema: &str) -> String {
        let directory = self.dir.path().to_str().expect("UTF-8").replace('/', "%2F");
        format!("postgres://postgres@{directory}/postgres?schema={schema}&pgbouncer=1")
    }
}
