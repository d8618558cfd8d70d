//! Locks on Redis and Valkey: a single server or a Sentinel master here, Redis Cluster in [`Cluster`].
//!
//! A request is one script, invoked by its SHA-1 over a connection that all callers share. The script runs
//! the state machine of `tenure_core::protocol` on the server and judges leases by the server's clock.
//! Locks that nobody waits for use plain commands instead (`requests/pair.rs`).
//!
//! | module | what it holds |
//! |---|---|
//! | `cluster` | the store on a cluster: routing, redirects, the slot table and its refresh |
//! | `connection` | dialling, login, and the multiplexed connections |
//! | `console` | raw commands for `tenure doctor` |
//! | `fuzz` | fuzz tests of everything that parses server replies or URLs |
//! | `messages` | the Pub/Sub connection and its subscriptions |
//! | `replies` | strict parsing of script replies, classification of server errors |
//! | `requests` | scripts, keys and arguments of each request; the plain-command paths |
//! | `resp` | RESP2 and RESP3 encoding and parsing |
//! | `topology` | URLs, addresses, logins; Sentinel and cluster views |

mod cluster;
mod connection;
mod console;
#[cfg(test)]
mod fuzz;
mod messages;
mod replies;
mod requests;
mod resp;
mod topology;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;

pub use cluster::Cluster;
pub use connection::{Dial, DialAttempt, Dialled, Stream};
pub use console::{Console, ConsoleReply, LockKeys, keys_with};
pub use requests::scripted;
pub use resp::{ServerError, Value};
pub use topology::{Access, Address, Guarantees, Sentinels, Target, Topology};

use connection::{Connector, Network};
use requests::node::Node;
use requests::waiting::{self, CountedLock};
use requests::{Keyspace, Publish, RequestContext, RoutedRequest, refused};
use resp::encode::command;
use tenure_core::error::{Error, Result};
use tenure_core::name::{LockName, Namespace};
use tenure_core::net::Tls;
use tenure_core::net::url::TWO_LOGINS;
use tenure_core::protocol::record::RecordVerb;
use tenure_core::protocol::{Found, LockSpec, Verb};
use tenure_core::runtime::Runtime;
use tenure_core::store::{
    Capabilities, Cursor, Listener, Opening, Page, Placement, RecordPage, Signals, Store, StoreFuture,
    StoreReply, StoreRequest, Topic,
};

/// A store on one Redis or Valkey server, or on the master that sentinels name. Clones share its connections.
#[derive(Clone)]
pub struct Redis {
    runtime: Arc<dyn Runtime>,
    node: Arc<Node>,
    context: RequestContext,
    namespace: Namespace,
    /// Whether the server is resolved through sentinels.
    is_led: bool,
    url: Arc<str>,
}

/// Whether `scheme` is a URL scheme of this store.
#[must_use]
pub fn takes(scheme: &str) -> bool {
    Topology::knows(scheme)
}

/// The result of [`open`]ing a URL.
#[derive(Debug)]
pub enum Opened {
    /// One server, a Sentinel master, or a cluster.
    Store(Arc<dyn Store>),
    /// Independent servers that form a quorum.
    Members {
        /// One store per server.
        members: Vec<Arc<dyn Store>>,
        /// The URL without credentials.
        shown: Arc<str>,
    },
}

/// Opens the store that a URL names, without I/O.
///
/// # Errors
/// `is_invalid`, with the part of the URL that is wrong, or if the URL has a login besides `login`;
/// `is_unsupported` for TLS in a build without the feature `tls`.
pub fn open(opening: Opening<'_>) -> Result<Opened> {
    let Opening { url, runtime, login } = opening;
    let mut topology = Topology::parse(url)?;
    if login.is_some_and(|login| !topology.ask_for_login(&login)) {
        return Err(Error::invalid(TWO_LOGINS));
    }
    Ok(Opened::Store(match topology {
        Topology::Quorum(targets) => {
            let shown = Topology::Quorum(targets.clone()).shown();
            let member =
                |target| Arc::new(Redis::at(target, Arc::clone(&runtime)).of_quorum()) as Arc<dyn Store>;
            return Ok(Opened::Members { members: targets.into_iter().map(member).collect(), shown });
        }
        Topology::Cluster(seeds) => Arc::new(Cluster::at(seeds, runtime)),
        Topology::Server(target) => Arc::new(Redis::at(target, runtime)),
        Topology::Sentinel(sentinels) => Arc::new(Redis::led(sentinels, runtime)),
    }))
}

/// The URL without its login, if it is valid.
pub fn shown(url: &str) -> Option<String> {
    Topology::parse(url).ok().map(|topology| topology.shown().to_string())
}

/// What somebody in the network could do to the store of a URL.
pub fn exposure(url: &str) -> Option<&'static str> {
    let topology = Topology::parse(url).ok()?;
    Tls::exposure(topology.access().tls.as_ref(), &topology.addresses())
}

impl Redis {
    /// A store on the server or Sentinel service that a URL names. Connects on first use.
    ///
    /// # Errors
    /// `is_invalid`, with the part of the URL that is wrong; `is_unsupported` for cluster and quorum URLs.
    pub fn open(url: &str, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let topology = Topology::parse(url)?;
        let shown = topology.shown();
        let cannot =
            |why: &str| Error::unsupported(&shown, format!("store {shown} cannot be used yet: {why}"));
        match topology {
            Topology::Server(target) => Ok(Self::at(target, runtime)),
            Topology::Sentinel(sentinels) => Ok(Self::led(sentinels, runtime)),
            Topology::Cluster(_) => Err(cannot("it is not one server")),
            Topology::Quorum(_) => Err(cannot("a quorum is its own store")),
        }
    }

    /// A store on one server.
    pub fn at(target: Target, runtime: Arc<dyn Runtime>) -> Self {
        Self::over(target, Network::of(&runtime), runtime)
    }

    /// A store on whichever server the sentinels name as master.
    pub(crate) fn led(sentinels: Sentinels, runtime: Arc<dyn Runtime>) -> Self {
        let access = sentinels.master.clone();
        let url = Topology::Sentinel(sentinels.clone()).shown();
        let connector = Connector::led(Arc::clone(&runtime), Network::of(&runtime), sentinels);
        Self { is_led: true, ..Self::with(connector, access, url, runtime) }
    }

    /// A store on one server whose connections are opened by `dial`.
    pub fn over(target: Target, dial: Arc<dyn Dial>, runtime: Arc<dyn Runtime>) -> Self {
        let (access, url) = (target.access.clone(), target.shown());
        Self::with(Connector::only(Arc::clone(&runtime), dial, target), access, url, runtime)
    }

    /// The same store without the plain-command fast path: every request runs a script, as behind a proxy.
    pub fn scripts_only(self) -> Self {
        self.node.pairs.turn_off();
        self
    }

    /// The same store on one connection, whose server it knows: a member that has restarted must not vote.
    pub fn of_quorum(self) -> Self {
        self.node.pipelines.use_ours_only();
        self
    }

    fn with(connector: Connector, access: Access, url: Arc<str>, runtime: Arc<dyn Runtime>) -> Self {
        let Access { db, guarantees, namespace, .. } = access;
        let length = namespace.as_str().len();
        let space = Keyspace { db, publish: Publish::Plain, has_slots: false, namespace: length };
        let node = Arc::new(Node::new(connector, Signals::default(), Arc::clone(&url)));
        let context = RequestContext { space, asking: false, guarantees };
        Self { runtime, node, context, namespace, is_led: false, url }
    }
}

impl Store for Redis {
    fn call(&self, mut request: StoreRequest, within: Duration) -> StoreFuture<StoreReply> {
        request.enter(&self.namespace);
        let (node, context) = (Arc::clone(&self.node), self.context);
        match request {
            StoreRequest::Lock(op) => async move {
                let deadline = node.runtime.now() + within;
                let only_reads = matches!(op.verb, Verb::Inspect);
                let chosen =
                    node.pipelines.choose(&op.name, only_reads, context.guarantees, deadline).await?;
                let routed = RoutedRequest { op: &op, pipeline: &chosen.pipeline, context, deadline };
                let answer = node.ask(&routed).await;
                chosen.answered(answer).map(StoreReply::Lock)
            }
            .boxed(),
            StoreRequest::Record(op) => async move {
                let deadline = node.runtime.now() + within;
                let only_reads = matches!(op.verb, RecordVerb::Read);
                let chosen =
                    node.pipelines.choose(&op.lock, only_reads, context.guarantees, deadline).await?;
                let routed = RoutedRequest { op: &op, pipeline: &chosen.pipeline, context, deadline };
                let answer = requests::record::ask(&*node.runtime, &routed).await;
                chosen.answered(answer).map(StoreReply::Record)
            }
            .boxed(),
            StoreRequest::Renewals(ops) => async move {
                let deadline = node.runtime.now() + within;
                // Always on the store's own connection. Order does not matter here: a late renewal only extends
                // a hold that still exists.
                let pipeline = node.link.pipeline(deadline).await?;
                Ok(StoreReply::Renewals(node.renew(&pipeline, &ops, context, deadline).await))
            }
            .boxed(),
        }
    }

    fn subscribe(&self, topic: Topic<'_>, within: Duration) -> StoreFuture<Listener> {
        let Self { runtime, node, context: RequestContext { space, .. }, .. } = self.clone();
        let (spec, client, mut name) = (topic.spec, topic.client(), topic.name.clone());
        self.namespace.precede(&mut name);
        let channel = requests::keys::subscribed(space, spec, name.as_str(), client);
        let is_counted = client.is_some() && space.counts_listeners();
        let deadline = runtime.now() + within;
        async move { node.notifications.listen(channel, space.publish, is_counted, spec, deadline).await }
            .boxed()
    }

    /// Scans the whole database, a few hundred keys per page, regardless of the prefix, because the server
    /// has no index of names. A lock may be listed twice. Locks written by other programs are listed only
    /// with a non-empty prefix.
    fn list(&self, prefix: &str, from: Cursor, within: Duration) -> StoreFuture<Page> {
        let Self { runtime, node, context, namespace, .. } = self.clone();
        let prefix = [namespace.as_str(), prefix].concat();
        async move {
            let mut page = node.list(&prefix, &from, context, runtime.now() + within).await?;
            page.locks.iter_mut().for_each(|(name, _)| namespace.leave(name));
            Ok(page)
        }
        .boxed()
    }

    fn waiting(&self, locks: &[(LockName, Found)], within: Duration) -> StoreFuture<Vec<Option<u64>>> {
        let (node, space, deadline) =
            (Arc::clone(&self.node), self.context.space, self.runtime.now() + within);
        let counted = |(name, found): &(LockName, Found)| {
            let mut key = name.clone();
            self.namespace.precede(&mut key);
            CountedLock::of(space, &key, found)
        };
        let locks: Vec<_> = locks.iter().map(counted).collect();
        async move {
            let pipeline = node.link.pipeline(deadline).await?;
            waiting::ask(&pipeline, space.publish, &locks.iter().collect::<Vec<_>>(), deadline).await
        }
        .boxed()
    }

    /// Scans the database as [`list`](Store::list) does.
    fn records(&self, prefix: &str, from: Cursor, within: Duration) -> StoreFuture<RecordPage> {
        let Self { runtime, node, context, namespace, .. } = self.clone();
        let prefix = [namespace.as_str(), prefix].concat();
        async move {
            let mut page = node.records(prefix, &from, context, runtime.now() + within).await?;
            page.records.iter_mut().for_each(|(name, _)| namespace.leave(name));
            Ok(page)
        }
        .boxed()
    }

    fn capabilities(&self) -> Capabilities {
        let member = match self.is_led {
            true => Err("it consists of several servers, and its sentinels choose the master"),
            false if self.context.guarantees != Guarantees::default() => {
                Err("members of a quorum do not use acks or restart-grace")
            }
            false => Ok(()),
        };
        self.context.guarantees.capabilities(member)
    }

    fn placement(&self, _name: &LockName, spec: LockSpec) -> Placement {
        Placement { renews_with: (spec != LockSpec::Reentrant).then_some(0), ..Placement::default() }
    }

    fn signals(&self) -> &Signals {
        self.node.link.signals()
    }

    fn ready(&self, within: Duration) -> StoreFuture<()> {
        let Self { runtime, node, .. } = self.clone();
        async move {
            let deadline = runtime.now() + within;
            let pipeline = node.link.pipeline_at_once(deadline).await?;
            match pipeline.ask(&command(&["PING"]), deadline).await? {
                Value::ServerError(error) => Err(refused(&pipeline, &error)),
                _ => Ok(()),
            }
        }
        .boxed()
    }

    fn url(&self) -> &Arc<str> {
        &self.url
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Redis").field(&self.url).finish()
    }
}
