//! Which servers keep the locks, how they belong together, and how to come in.

pub(crate) mod sentinel;
pub(crate) mod slots;
pub(crate) mod url;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::credentials::Provider;
use tenure_core::net::Tls;
use tenure_core::store::{Capabilities, HoldLiveness, Kinds, LeaseClock};

/// Servers that keep locks together, or one alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Server(Target),
    /// The server that sentinels call the master.
    Sentinel(Sentinels),
    /// Some servers of a cluster, which know the others. Their database is 0.
    Cluster(Vec<Target>),
    /// Servers that know nothing of each other.
    Quorum(Vec<Target>),
}

/// Where a connection goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// A host, by name or address, and a port.
    Tcp(String, u16),
    /// A socket of this machine.
    Unix(PathBuf),
}

/// A server, and how to come in.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// Where.
    pub address: Address,
    /// How.
    pub access: Access,
}

/// How to come in: which database, who logs in, whether the talk is encrypted, and on what terms
/// the server grants.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Which of the server's databases.
    pub db: u32,
    /// Who logs in; the server's default user if none.
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// Has the password; read at each dial, so a password that is changed needs no restart.
    pub(crate) password_file: Option<PathBuf>,
    /// Asked at each dial, in place of the three above.
    pub(crate) provider: Option<Provider>,
    /// Spoken in the clear if none.
    pub(crate) tls: Option<Tls>,
    /// On what terms locks are granted there.
    pub(crate) terms: Terms,
}

/// On what terms locks are granted. They belong to the store, because all clients of a lock have to
/// agree on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// So many replicas have to confirm a grant and each renewal.
    pub acks: u32,
    /// For so long a server that may have forgotten leases grants nothing.
    pub restart_grace: Option<Duration>,
}

/// Who is asked for the master.
#[derive(Clone, PartialEq, Eq)]
pub struct Sentinels {
    /// The sentinels.
    pub at: Vec<Target>,
    /// What they call the master and its replicas.
    pub service: String,
    /// How to come in at the master.
    pub(crate) master: Access,
}

impl Topology {
    /// The same servers, where this tells the login at each dial. `false` if the URL has a login
    /// too.
    pub(crate) fn ask_for_login(&mut self, provider: &Provider) -> bool {
        let mut accesses: Vec<&mut Access> = match self {
            Self::Server(target) => vec![&mut target.access],
            Self::Sentinel(sentinels) => vec![&mut sentinels.master],
            Self::Cluster(at) | Self::Quorum(at) => at.iter_mut().map(|target| &mut target.access).collect(),
        };
        accesses.iter_mut().all(|access| {
            access.provider = Some(provider.clone());
            access.user.is_none() && access.password.is_none() && access.password_file.is_none()
        })
    }

    /// The URL without credentials.
    pub fn shown(&self) -> Arc<str> {
        let of = |what: &str, at: &[Target], rest: &dyn fmt::Display| {
            let hosts: Vec<_> = at.iter().map(|target| target.address.to_string()).collect();
            let scheme = at.first().map_or("redis", |target| target.access.scheme());
            format!("{scheme}-{what}://{}{rest}", hosts.join(",")).into()
        };
        match self {
            Self::Server(target) => target.shown(),
            Self::Sentinel(Sentinels { at, service, master }) => {
                let service = Encoded(service, &SERVICE);
                of("sentinel", at, &format_args!("/{service}/{}{}", master.db, master.terms.after('?')))
            }
            Self::Cluster(at) => {
                let terms = at.first().map(|target| target.access.terms).unwrap_or_default();
                of("cluster", at, &terms.after('?'))
            }
            Self::Quorum(at) => {
                let db = at.first().map_or(0, |target| target.access.db);
                of("quorum", at, &format_args!("/{db}"))
            }
        }
    }
}

impl Target {
    /// The URL without credentials.
    pub fn shown(&self) -> Arc<str> {
        let (address, Access { db, terms, .. }) = (&self.address, &self.access);
        let scheme = self.access.scheme();
        match address {
            Address::Tcp(..) => format!("{scheme}://{address}/{db}{}", terms.after('?')).into(),
            Address::Unix(_) => format!("{scheme}+unix://{address}?db={db}{}", terms.after('&')).into(),
        }
    }

    /// Another server that lets us in the same way.
    #[must_use]
    pub fn at(&self, address: Address) -> Self {
        Self { address, access: self.access.clone() }
    }
}

impl Access {
    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "rediss" } else { "redis" }
    }
}

impl Terms {
    /// What servers can do that grant on these terms.
    pub(crate) fn capabilities(self) -> Capabilities {
        Capabilities {
            kinds: Kinds::All,
            clock: LeaseClock::Server,
            values: Ok(()),
            liveness: HoldLiveness::Lease,
            messages_grant: self == Self::default(),
            restart_grace: self.restart_grace,
        }
    }

    /// As the query of a URL, behind this separator; nothing if there are none.
    fn after(self, mut separator: char) -> String {
        let mut query = String::new();
        let mut part = |key: &str, value: String| {
            query.push(separator);
            query.push_str(&format!("{key}={value}"));
            separator = '&';
        };
        if self.acks > 0 {
            part("acks", self.acks.to_string());
        }
        if let Some(grace) = self.restart_grace {
            let whole = grace.subsec_millis() == 0;
            let text =
                if whole { format!("{}s", grace.as_secs()) } else { format!("{}ms", grace.as_millis()) };
            part("restart-grace", text);
        }
        query
    }
}

/// As in a URL.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", Encoded(&path.to_string_lossy(), &PATH)),
        }
    }
}

/// A path or a service as it stands in a URL: these, which would be read as something else, and
/// what would move the cursor are percent-encoded.
struct Encoded<'a>(&'a str, &'static [char]);

const PATH: [char; 2] = ['%', '?'];
const SERVICE: [char; 3] = ['%', '?', '/'];

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, char) in self.0.char_indices() {
            if self.1.contains(&char) || char.is_control() {
                self.0[at..at + char.len_utf8()].bytes().try_for_each(|byte| write!(f, "%{byte:02X}"))?;
            } else {
                write!(f, "{char}")?;
            }
        }
        Ok(())
    }
}

/// Without the password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({})", self.shown())
    }
}

/// Without the password.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("db", &self.db).field("tls", &self.tls).finish_non_exhaustive()
    }
}

/// Without the passwords.
impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sentinels").field(&self.service).field(&self.at).finish()
    }
}
