//! What a server is started with.

use std::fmt::Write;
use std::path::Path;

use super::{Authority, Certificate};

/// The settings of a server beyond the defaults of the kit: no persistence, a free loopback port
/// and a unix socket.
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

    /// Adds a line to `redis.conf`: a directive, and its arguments with any quotes that they need.
    /// The last line of a name counts.
    #[must_use]
    pub fn set(mut self, directive: &str, arguments: &str) -> Self {
        self.lines.push(format!("{directive} {arguments}"));
        self
    }

    /// The default user needs this password (`requirepass`).
    #[must_use]
    pub fn password(self, password: &str) -> Self {
        self.set("requirepass", password)
    }

    /// Adds a user: its name, then its ACL rules. `default off` shuts every other client out.
    #[must_use]
    pub fn user(self, name_and_rules: &str) -> Self {
        self.set("user", name_and_rules)
    }

    /// The server gets its own clock, which the test moves:
    /// [`Server::clock`](super::Server::clock).
    #[must_use]
    pub fn clock(mut self) -> Self {
        self.clock = true;
        self
    }

    /// The server is to become a node of a [`Cluster`](super::Cluster).
    #[must_use]
    pub(super) fn node(mut self) -> Self {
        self.is_node = true;
        self.set("cluster-enabled", "yes")
    }

    /// A restart keeps what was saved (`SAVE`, an append-only file) instead of starting empty, and
    /// does not wait until it is loaded.
    #[must_use]
    pub fn keep_data(mut self) -> Self {
        self.keeps_data = true;
        self
    }

    /// The port speaks TLS only, with this certificate. Clients need one of the same authority,
    /// unless `tls-auth-clients no` is set too.
    #[must_use]
    pub fn tls(mut self, authority: &Authority, certificate: &Certificate) -> Self {
        self.tls = true;
        self.set("tls-ca-cert-file", &authority.ca().display().to_string())
            .set("tls-cert-file", &certificate.cert.display().to_string())
            .set("tls-key-file", &certificate.key.display().to_string())
    }

    /// The server is a sentinel.
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

/// The user as whom the kit itself connects, so that it still can when a test has locked every
/// other client out.
pub(super) const INSPECTOR: &str = "tenure-testkit";
