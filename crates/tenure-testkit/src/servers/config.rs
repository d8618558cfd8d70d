//! Settings of a Redis server.

use std::fmt::Write;
use std::path::Path;

use super::{Authority, Certificate};

/// Settings beyond the kit's defaults: no persistence, a free loopback port and a Unix socket.
///
/// ```
/// use tenure_testkit::servers::Config;
/// let small = Config::new().set("maxmemory", "2mb").set("maxmemory-policy", "allkeys-lru");
/// let guarded = Config::new().password("secret").user("app on >other ~app:* &* +@all");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    lines: Vec<String>,
    pub(super) clock: bool,
    pub(super) keeps_data: bool,
    pub(super) tls: bool,
    pub(super) is_sentinel: bool,
    pub(super) is_node: bool,
}

impl Config {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line to `redis.conf`: a directive and its arguments, quoted where needed. The last line of a
    /// directive counts.
    #[must_use]
    pub fn set(mut self, directive: &str, arguments: &str) -> Self {
        self.lines.push(format!("{directive} {arguments}"));
        self
    }

    /// Sets the default user's password (`requirepass`).
    #[must_use]
    pub fn password(self, password: &str) -> Self {
        self.set("requirepass", password)
    }

    /// Adds a user: its name, then its ACL rules. `default off` locks all other clients out.
    #[must_use]
    pub fn user(self, name_and_rules: &str) -> Self {
        self.set("user", name_and_rules)
    }

    /// Gives the server its own clock: [`Server::clock`](super::Server::clock).
    #[must_use]
    pub fn clock(mut self) -> Self {
        self.clock = true;
        self
    }

    /// Makes the server a node of a [`Cluster`](super::Cluster).
    #[must_use]
    pub(super) fn node(mut self) -> Self {
        self.is_node = true;
        self.set("cluster-enabled", "yes")
    }

    /// Keeps saved data (`SAVE`, an append-only file) over restarts, and does not wait for it to load.
    #[must_use]
    pub fn keep_data(mut self) -> Self {
        self.keeps_data = true;
        self
    }

    /// Makes the port TLS only, with this certificate. Clients need a certificate of the same authority,
    /// unless `tls-auth-clients no` is set, too.
    #[must_use]
    pub fn tls(mut self, authority: &Authority, certificate: &Certificate) -> Self {
        self.tls = true;
        self.set("tls-ca-cert-file", &authority.ca().display().to_string())
            .set("tls-cert-file", &certificate.cert.display().to_string())
            .set("tls-key-file", &certificate.key.display().to_string())
    }

    #[must_use]
    pub(super) fn sentinel(mut self) -> Self {
        self.is_sentinel = true;
        self
    }

    /// The text of `redis.conf`.
    pub(super) fn file(&self, dir: &Path, port: u16, socket: &Path) -> String {
        let port = if self.tls { format!("port 0\ntls-port {port}") } else { format!("port {port}") };
        let mut file = format!(
            "bind 127.0.0.1\n{port}\nunixsocket {}\ndir {}\nsave \"\"\nappendonly no\nuser {INSPECTOR} on nopass ~* &* +@all\n",
            socket.display(),
            dir.display()
        );
        for line in &self.lines {
            writeln!(file, "{line}").expect("a string takes any text");
        }
        file
    }
}

/// The kit's own user, so that it can connect even when a test has locked all other clients out.
pub(super) const INSPECTOR: &str = "tenure-testkit";
