//! Commands to one server of a store, for a diagnosis: `tenure doctor` asks by these what no lock
//! needs to know.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use tokio::sync::oneshot;

use crate::connection::{Connection, Connector, Network};
use crate::replies::failure::not_sent;
use crate::requests::keys;
use crate::resp::Value;
use crate::resp::encode::command;
use crate::topology::{Address, Sentinels, Target, Terms, Topology};
use tenure_core::error::{Error, Result};
use tenure_core::net::by;
use tenure_core::runtime::{Driver, Runtime};
use tenure_core::store::Failure;

/// How long one answer is waited for.
const ANSWER: Duration = Duration::from_secs(2);

/// One connection to one server, in the database and with the login and TLS of a URL. No lock is
/// asked for on it.
pub struct Console {
    driver: Arc<Driver>,
    connection: Connection,
    target: Target,
}

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsoleReply {
    /// Nothing is there.
    Nil,
    /// A number.
    Int(i64),
    /// A text; what is not UTF-8 is replaced.
    Text(String),
    /// An error, its code first.
    Error(String),
    /// Several; of a map, keys and values in turn.
    Items(Vec<Self>),
}

/// On RESP3 the server confirms these by a push, in place of a reply.
const CONFIRMED_BY_PUSH: [&str; 4] = ["SUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "SUNSUBSCRIBE"];

impl Console {
    /// Connects and logs in, whatever the role of the server is.
    ///
    /// # Errors
    /// `is_unreachable` without an answer in time, `is_refused` where the login is wrong.
    pub async fn open(target: &Target) -> Result<Self> {
        let url = target.shown();
        let driver = Driver::start().map_err(|error| Error::no_thread(&url, error))?;
        let runtime = Arc::clone(&driver) as Arc<dyn Runtime>;
        let connector = Connector::new(Arc::clone(&runtime), Network::of(&runtime), target.clone());
        // Streams are opened by a task of the driver, whatever the caller's runtime can do.
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

    /// Sends one command; an error of the server is a reply.
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
            Some(Err(failure)) => not_sent(failure),
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
    /// Who logs in there; the server's default user if none.
    pub fn user(&self) -> Option<&str> {
        self.access.user.as_deref()
    }

    /// On what terms locks are granted there.
    pub fn terms(&self) -> Terms {
        self.access.terms
    }
}

impl Sentinels {
    /// The server of the service at this address.
    pub fn server(&self, address: Address) -> Target {
        Target { address, access: self.master.clone() }
    }
}

impl Topology {
    /// On what terms its servers grant locks.
    pub fn terms(&self) -> Terms {
        match self {
            Self::Server(target) => target.access.terms,
            Self::Sentinel(sentinels) => sentinels.master.terms,
            Self::Cluster(at) | Self::Quorum(at) => {
                at.first().map(|target| target.access.terms).unwrap_or_default()
            }
        }
    }
}

/// The key of the counter of tokens, on a server or for this lock on a cluster.
pub fn fence_key(name: &str, in_cluster: bool) -> String {
    if in_cluster { keys::counter_in_slot(name) } else { keys::COUNTER.to_owned() }
}

/// The key of a lock's highest ballot, on a member of a quorum.
pub fn ballot_key(name: &str) -> String {
    keys::ballot(name)
}

/// The channel of the mutex of this name.
pub fn wake_channel(db: u32, name: &str) -> String {
    keys::channel(db, tenure_core::protocol::LockSpec::Mutex, name)
}

/// A pattern of SCAN for the keys that begin so.
pub fn keys_with(prefix: &str) -> String {
    keys::pattern(prefix)
}
