//! Raw commands to one server of a store, for diagnosis: `tenure doctor` queries what locking itself never
//! needs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use tokio::sync::oneshot;

use crate::connection::{Connection, Connector, Network};
use crate::requests::{Keyspace, Publish, keys};
use crate::resp::Value;
use crate::resp::encode::command;
use crate::topology::{Access, Address, Sentinels, Target, Topology};
use tenure_core::error::{Error, Result};
use tenure_core::name::Namespace;
use tenure_core::net::by;
use tenure_core::protocol::LockSpec;
use tenure_core::runtime::{Driver, Runtime};
use tenure_core::store::Failure;

/// Timeout for one reply.
const ANSWER: Duration = Duration::from_secs(2);

/// A connection to one server, with the database, login and TLS settings of a URL. Locks never use it.
pub struct Console {
    driver: Arc<Driver>,
    connection: Connection,
    target: Target,
}

/// A server's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsoleReply {
    /// Null.
    Nil,
    /// An integer.
    Int(i64),
    /// A string; invalid UTF-8 is replaced.
    Text(String),
    /// An error, its code first.
    Error(String),
    /// A list. A map is flattened to alternating keys and values.
    Items(Vec<Self>),
}

/// Commands that RESP3 servers confirm by a push instead of a reply.
const CONFIRMED_BY_PUSH: [&str; 4] = ["SUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "SUNSUBSCRIBE"];

impl Console {
    /// Connects and logs in, whatever the server's role.
    ///
    /// # Errors
    /// `is_unreachable` without an answer in time, `is_refused` if the login is rejected.
    pub async fn open(target: &Target) -> Result<Self> {
        let url = target.shown();
        let driver = Driver::start().map_err(|error| Error::no_thread(&url, error))?;
        let runtime = Arc::clone(&driver) as Arc<dyn Runtime>;
        let connector = Connector::new(Arc::clone(&runtime), Network::of(&runtime), target.clone());
        // The driver's task opens the stream, because the caller's runtime may not support I/O.
        let (tell, told) = oneshot::channel();
        let to = target.clone();
        runtime.spawn(
            async move {
                let _ = tell.send(connector.log_in_only(&to).await);
            }
            .boxed(),
        );
        let ended = |_| Failure::NotSent(Failure::cause("the thread of this connection has ended"));
        let connection = told.await.map_err(ended).flatten();
        let connection = connection.map_err(|failure| Error::unreached(&url, failure))?;
        let mut console = Self { driver, connection, target: target.clone() };
        if target.access.db != 0
            && let ConsoleReply::Error(error) =
                console.ask(&["SELECT", &target.access.db.to_string()]).await?
        {
            return Err(Error::unreached(&url, Failure::Refused(Failure::cause(error))));
        }
        Ok(console)
    }

    /// The local address, as a server shows it that nothing stands in front of.
    pub fn local(&self) -> Option<&str> {
        self.connection.local.as_deref()
    }

    /// Sends one command. A server error is a [`ConsoleReply::Error`].
    ///
    /// # Errors
    /// `is_unreachable` without an answer within 2 s.
    pub async fn ask(&mut self, words: &[&str]) -> Result<ConsoleReply> {
        let command = command(words);
        let deadline = self.driver.now() + ANSWER;
        let multiplexer = &self.connection.multiplexer;
        let answer = match CONFIRMED_BY_PUSH.iter().find(|verb| words.first() == Some(verb)) {
            Some(verb) => multiplexer.subscribe(&command, verb).left_future(),
            None => multiplexer.ask(&command).right_future(),
        };
        let reply = by(&*self.driver, deadline, answer).await;
        let failure = match reply {
            Some(Ok(value)) => return Ok(value.into()),
            Some(Err(failure)) => failure.not_sent(),
            None => Failure::NotSent(Failure::cause(format!("no answer within {ANSWER:?}"))),
        };
        Err(Error::unreached(&self.target.shown(), failure))
    }
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Console").field(&self.target).finish()
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.driver.stop();
    }
}

impl From<Value> for ConsoleReply {
    fn from(value: Value) -> Self {
        match value {
            Value::Nil => Self::Nil,
            Value::Int(number) => Self::Int(number),
            Value::BulkString(bytes) => Self::Text(String::from_utf8_lossy(&bytes).into_owned()),
            Value::SimpleString(text) => Self::Text(text),
            Value::Array(values) => Self::Items(values.into_iter().map(Self::from).collect()),
            Value::ServerError(error) => Self::Error(error.to_string()),
        }
    }
}

impl Target {
    /// The user to log in as; `None` for the server's default user.
    pub fn user(&self) -> Option<&str> {
        self.access.login.user.as_deref()
    }
}

impl Sentinels {
    /// The target for the service's server at this address.
    pub fn server(&self, address: Address) -> Target {
        Target { address, access: self.master.clone() }
    }
}

impl Topology {
    /// The servers of the URL.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        let targets = match self {
            Self::Server(target) => std::slice::from_ref(target),
            Self::Sentinel(Sentinels { at, .. }) | Self::Cluster(at) | Self::Quorum(at) => at,
        };
        targets.iter().map(|target| target.address.clone()).collect()
    }

    /// The login, the guarantees and the namespace of the servers that keep its locks.
    pub fn access(&self) -> Access {
        match self {
            Self::Server(target) => target.access.clone(),
            Self::Sentinel(sentinels) => sentinels.master.clone(),
            Self::Cluster(at) | Self::Quorum(at) => {
                at.first().map(|target| target.access.clone()).unwrap_or_default()
            }
        }
    }
}

/// The names that a lock has on a server.
#[derive(Debug)]
pub struct LockKeys {
    space: Keyspace,
    /// The lock's key.
    pub lock: String,
}

impl LockKeys {
    /// The lock of this name in a database.
    pub fn new(namespace: &Namespace, db: u32, name: &str, in_cluster: bool) -> Self {
        let length = namespace.as_str().len();
        let space = Keyspace { db, publish: Publish::Plain, has_slots: in_cluster, namespace: length };
        Self { space, lock: [namespace.as_str(), name].concat() }
    }

    /// The key of the token counter: one per database, or one per slot on a cluster.
    pub fn fence(&self) -> String {
        keys::counter(self.space, &self.lock).into_owned()
    }

    /// The key of the epoch.
    pub fn epoch(&self) -> String {
        keys::epoch(self.space, &self.lock).into_owned()
    }

    /// The key of the highest ballot, on a quorum member.
    pub fn ballot(&self) -> String {
        keys::ballot(self.space, &self.lock)
    }

    /// The wake-up channel of a mutex.
    pub fn wake(&self) -> String {
        keys::channel(self.space, LockSpec::Mutex, &self.lock)
    }

    /// The wake-up channel of a reentrant mutex.
    pub fn wake_reentrant(&self) -> String {
        keys::channel(self.space, LockSpec::Reentrant, &self.lock)
    }

    /// The channel of the messages that replicas confirm.
    pub fn acks(&self) -> String {
        keys::acks(self.space, &self.lock).into_owned()
    }
}

/// The SCAN pattern that matches keys with this prefix.
pub fn keys_with(prefix: &str) -> String {
    keys::pattern(prefix)
}
