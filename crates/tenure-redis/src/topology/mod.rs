//! Which servers keep the locks, how they form a store, and how to log in.
//!
//! | module | what it holds |
//! |---|---|
//! | `sentinel` | master discovery through Sentinel |
//! | `slots` | slot ranges and redirects of a cluster |
//! | `url` | parsing of store URLs |

pub(crate) mod sentinel;
pub(crate) mod slots;
pub(crate) mod url;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tenure_core::credentials::Provider;
use tenure_core::name::Namespace;
pub use tenure_core::net::Address;
use tenure_core::net::Tls;
use tenure_core::net::url::Login;
use tenure_core::protocol::lease;
use tenure_core::store::Capabilities;

/// Characters that a service name must not have in a URL.
const SERVICE: &AsciiSet = &CONTROLS.add(b'%').add(b'?').add(b'/');

/// The servers of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Server(Target),
    /// The master of a Sentinel service.
    Sentinel(Sentinels),
    /// Seed nodes of a cluster. Always database 0.
    Cluster(Vec<Target>),
    /// Independent servers that form a quorum.
    Quorum(Vec<Target>),
}

/// A server, and how to log in.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// The address.
    pub address: Address,
    /// Login, TLS, guarantees and namespace.
    pub access: Access,
}

/// How to log in: database, credentials and TLS; the conditions under which the server grants locks; and the
/// namespace of their keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// The database number.
    pub db: u32,
    /// User and password; without a user, the server's default user.
    pub(crate) login: Login,
    /// Called at each dial instead of using `login`.
    pub(crate) provider: Option<Provider>,
    /// TLS settings; `None` for plain TCP.
    pub(crate) tls: Option<Tls>,
    /// The guarantees.
    pub guarantees: Guarantees,
    /// Begins all keys and channels.
    pub namespace: Namespace,
}

/// Conditions under which locks are granted. Part of the store's URL, because all clients of a lock must
/// agree on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guarantees {
    /// Replicas that must confirm each grant and renewal; 0 for none.
    pub acks: u32,
    /// How long a server that may have lost leases grants nothing.
    pub restart_grace: Option<Duration>,
}

/// The sentinels to ask for the master.
#[derive(Clone, PartialEq, Eq)]
pub struct Sentinels {
    /// The sentinels.
    pub at: Vec<Target>,
    /// The service name under which they monitor the master.
    pub service: String,
    pub(crate) master: Access,
}

impl Topology {
    /// Has `provider` supply the login at each dial. `false` if the URL has a login, too.
    pub(crate) fn ask_for_login(&mut self, provider: &Provider) -> bool {
        let mut accesses: Vec<&mut Access> = match self {
            Self::Server(target) => vec![&mut target.access],
            Self::Sentinel(sentinels) => vec![&mut sentinels.master],
            Self::Cluster(at) | Self::Quorum(at) => at.iter_mut().map(|target| &mut target.access).collect(),
        };
        accesses.iter_mut().all(|access| {
            access.provider = Some(provider.clone());
            access.login == Login::default()
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
                let service = utf8_percent_encode(service, SERVICE);
                of("sentinel", at, &format_args!("/{service}/{}{}", master.db, master.query('?')))
            }
            Self::Cluster(at) => of("cluster", at, &self.access().query('?')),
            Self::Quorum(at) => {
                let access = self.access();
                of("quorum", at, &format_args!("/{}{}", access.db, access.query('?')))
            }
        }
    }
}

impl Target {
    /// The URL without credentials.
    pub fn shown(&self) -> Arc<str> {
        let Self { address, access } = self;
        let (db, scheme) = (access.db, access.scheme());
        match address {
            Address::Tcp(..) => format!("{scheme}://{address}/{db}{}", access.query('?')).into(),
            Address::Unix(_) => format!("{scheme}+unix://{address}?db={db}{}", access.query('&')).into(),
        }
    }

    /// Another server with the same login.
    #[must_use]
    pub fn at(&self, address: Address) -> Self {
        Self { address, access: self.access.clone() }
    }
}

impl Access {
    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "rediss" } else { "redis" }
    }

    /// The guarantees and the namespace as URL query parameters, starting with `separator`; empty if there are none.
    fn query(&self, mut separator: char) -> String {
        let mut query = String::new();
        let mut part = |key: &str, value: &str| {
            query.push(separator);
            query.push_str(&format!("{key}={value}"));
            separator = '&';
        };
        let Guarantees { acks, restart_grace } = self.guarantees;
        if acks > 0 {
            part("acks", &acks.to_string());
        }
        if let Some(grace) = restart_grace {
            let whole = grace.subsec_millis() == 0;
            let text =
                if whole { format!("{}s", grace.as_secs()) } else { format!("{}ms", grace.as_millis()) };
            part("restart-grace", &text);
        }
        if self.namespace != Namespace::default() {
            part("namespace", self.namespace.as_str());
        }
        query
    }
}

impl Guarantees {
    /// What a store with these guarantees supports.
    pub(crate) fn capabilities(self, member: Result<(), &'static str>) -> Capabilities {
        Capabilities {
            messages_grant: self == Self::default(),
            reports_records: true,
            place_kept: Some(lease::PLACE_KEPT),
            restart_grace: self.restart_grace,
            confirms: self.acks > 0,
            member,
            ..Capabilities::SERVER
        }
    }
}

/// Omits the password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({})", self.shown())
    }
}

/// Omits the password.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("db", &self.db).field("tls", &self.tls).finish_non_exhaustive()
    }
}

/// Omits the passwords.
impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sentinels").field(&self.service).field(&self.at).finish()
    }
}
