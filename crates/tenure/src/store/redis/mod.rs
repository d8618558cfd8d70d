//! Locks on one Redis or Valkey server.
//!
//! A request is one script, named by its SHA-1, on a connection that all callers share; the script runs the machine of
//! [`protocol`](crate::protocol) on the server, by the server's clock. This module maps requests to scripts and replies
//! back to answers; its neighbours keep the connection, read what comes over it, and hear who is woken.

mod connect;
mod failure;
mod frame;
mod keys;
mod line;
mod link;
mod reply;
mod request;
mod script;
mod sentinel;
#[cfg(feature = "tls")]
mod tls;
mod topology;
mod url;
mod wake;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, join, join_all};
use redis::Value;

pub use connect::{Dial, Stream};
pub use topology::{Access, Address, Sentinels, Target, Topology};

use super::{Cursor, Failure, Life, Listener, Page, Store};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::owner::Owner;
use crate::protocol::{Answer, Found, Holding, Kind, Op, Reply, Rule, Seat, Verb, ours};
use crate::runtime::{Moment, Runtime};
use connect::{Connector, Network, command};
use line::Line;
use link::Link;
use request::Request;
use wake::Ears;

/// A store on a Redis or Valkey server. Clones share its connections.
#[derive(Clone)]
pub struct Redis(Arc<Inner>);

struct Inner {
    runtime: Arc<dyn Runtime>,
    link: Arc<Link>,
    ears: Arc<Ears>,
    db: u32,
    url: Arc<str>,
}

impl Redis {
    /// A store on the server that a URL names; nothing is sent before its first use.
    ///
    /// # Errors
    /// `is_invalid`, with the part of the URL that is wrong; `is_unsupported` for what is more than one server.
    pub fn open(url: &str, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let topology = Topology::parse(url)?;
        let shown = topology.shown();
        let cannot =
            |why: &str| Error::unsupported(&shown, format!("store {shown} cannot be used yet: {why}"));
        match topology {
            Topology::Server(target) => Ok(Self::at(target, runtime)),
            Topology::Sentinel(sentinels) => Ok(Self::led(sentinels, runtime)),
            Topology::Cluster(_) => Err(cannot("slots are not known")),
            Topology::Quorum(_) => Err(cannot("a quorum is a store of its own")),
        }
    }

    /// A store on one server.
    pub fn at(target: Target, runtime: Arc<dyn Runtime>) -> Self {
        Self::over(target, Arc::new(Network), runtime)
    }

    /// A store on whichever server is the master.
    fn led(sentinels: Sentinels, runtime: Arc<dyn Runtime>) -> Self {
        let (db, url) = (sentinels.master.db, Topology::Sentinel(sentinels.clone()).shown());
        Self::with(Connector::led(Arc::clone(&runtime), Arc::new(Network), sentinels), db, url, runtime)
    }

    /// A store whose connections are opened by `dial`.
    pub fn over(target: Target, dial: Arc<dyn Dial>, runtime: Arc<dyn Runtime>) -> Self {
        let (db, url) = (target.access.db, target.shown());
        Self::with(Connector::new(Arc::clone(&runtime), dial, target), db, url, runtime)
    }

    fn with(connector: Connector, db: u32, url: Arc<str>, runtime: Arc<dyn Runtime>) -> Self {
        let connector = Arc::new(connector);
        let (link, ears) = (Link::new(Arc::clone(&connector)), Ears::new(connector));
        Self(Arc::new(Inner { runtime, link, ears, db, url }))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.link.close();
        self.ears.close();
    }
}

impl Store for Redis {
    fn call(&self, op: Op, within: Duration) -> BoxFuture<'static, Result<Reply, Failure>> {
        let inner = Arc::clone(&self.0);
        async move { inner.call(op, within).await }.boxed()
    }

    fn listen(
        &self,
        name: &LockName,
        rule: Rule,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        let (inner, channel) = (Arc::clone(&self.0), keys::channel(self.0.db, rule, name.as_str()));
        async move { inner.ears.listen(channel, rule, inner.runtime.now() + within).await }.boxed()
    }

    /// Walks over the whole database, a few hundred keys at a time, whatever the prefix: the server has no index of names.
    /// A lock may be told twice. What other programs wrote is told only where a prefix is given.
    fn list(
        &self,
        prefix: &str,
        from: Cursor,
        within: Duration,
    ) -> BoxFuture<'static, Result<Page, Failure>> {
        let (inner, prefix) = (Arc::clone(&self.0), prefix.to_owned());
        async move { inner.list(&prefix, &from, within).await }.boxed()
    }

    fn supports(&self, _rule: Rule) -> Result<(), &'static str> {
        Ok(())
    }

    fn interrupted(&self) -> BoxFuture<'static, ()> {
        self.0.link.reconnected()
    }

    fn ready(&self, within: Duration) -> BoxFuture<'static, Result<(), Failure>> {
        let inner = Arc::clone(&self.0);
        async move {
            let deadline = inner.runtime.now() + within;
            let line = inner.link.line(deadline).await?;
            match line.ask(&command(&["PING"]), deadline).await? {
                Value::ServerError(error) => Err(refused(&line, &error)),
                _ => Ok(()),
            }
        }
        .boxed()
    }

    fn life(&self) -> Life {
        self.0.link.life()
    }

    fn url(&self) -> &Arc<str> {
        &self.0.url
    }
}

impl Inner {
    async fn call(&self, op: Op, within: Duration) -> Result<Reply, Failure> {
        let deadline = self.runtime.now() + within;
        let line = self.link.line(deadline).await?;
        let value = self.run(&line, &op, deadline).await?;
        match reply::read(&value, &op) {
            Ok(reply::Read { answer, unheard }) => {
                if let Some(why) = unheard {
                    tracing::warn!(target: "tenure", lock = %op.name, store = %self.url, why, "those who wait could not be woken");
                }
                Ok(Reply { owner: op.owner, request: op.request, answer })
            }
            Err(what) => {
                // From here on nobody can tell which reply is whose.
                tracing::warn!(target: "tenure", lock = %op.name, store = %self.url, what, "the connection is given up");
                line.hang_up();
                Err(Failure::Unknown(Failure::cause(what)))
            }
        }
    }

    /// Runs the script that answers `op`.
    async fn run(&self, line: &Line, op: &Op, deadline: Moment) -> Result<Value, Failure> {
        let request = Request::new(op, self.db);
        // The first request after a reconnect is the question whether a lock is still held, and a server that has forgotten
        // the lock has forgotten the script: it must not take a second round trip to say so.
        let first = if line.brings_script() { request.in_full() } else { request.by_name() };
        let mut value = line.ask(&first, deadline).await?;
        if let Value::ServerError(error) = &value
            && failure::is_no_script(error)
        {
            value = line.ask(&request.in_full(), deadline).await?;
        }
        answered(line, value)
    }

    async fn list(&self, prefix: &str, from: &Cursor, within: Duration) -> Result<Page, Failure> {
        let deadline = self.runtime.now() + within;
        let line = self.link.line(deadline).await?;
        // One type after the other, each with the server's own cursor.
        let (kind, cursor) = from.0.split_once(' ').unwrap_or((TYPES[0].0, "0"));
        let at = TYPES.iter().position(|(name, _)| *name == kind).unwrap_or(0);
        let (kind, rule) = TYPES[at];
        let pattern = keys::pattern(prefix);
        let scan = ["SCAN", cursor, "MATCH", &pattern, "COUNT", "250", "TYPE", kind];
        let value = answered(&line, line.ask(&command(&scan), deadline).await?)?;
        let Some((next, names)) = scanned(&value) else {
            line.hang_up();
            return Err(Failure::Unknown(Failure::cause("a reply to SCAN that is none")));
        };
        let next = match (next, TYPES.get(at + 1)) {
            ("0", None) => None,
            ("0", Some((kind, _))) => Some(Cursor(format!("{kind} 0"))),
            (next, _) => Some(Cursor(format!("{kind} {next}"))),
        };
        let mut page = Page { locks: Vec::new(), next };
        let looks = names.iter().map(|name| self.look(&line, name, rule, deadline));
        for (name, found) in names.iter().zip(join_all(looks).await) {
            let is_ours = |holding: &Holding| ours(&holding.value).is_some();
            if let Some(found) = found?
                && (!prefix.is_empty() || found.holders.iter().chain(&found.waiters).any(is_ours))
            {
                page.locks.push((name.clone(), found));
            }
        }
        Ok(page)
    }

    /// Who holds a lock, where something of this rule's type stands at its name.
    async fn look(
        &self,
        line: &Line,
        name: &LockName,
        rule: Rule,
        deadline: Moment,
    ) -> Result<Option<Found>, Failure> {
        if rule == Rule::Mutex {
            return look_at_text(line, name, deadline).await;
        }
        let owner = Owner::fresh("", &*self.runtime);
        let op = Op { name: name.clone(), rule, owner, request: 0, verb: Verb::Inspect };
        let value = self.run(line, &op, deadline).await?;
        Ok(match reply::read(&value, &op) {
            // A hash that is no lock's.
            Ok(reply::Read { answer: Answer::Found(found), .. }) if found.holders.iter().any(is_no_lock) => {
                None
            }
            Ok(reply::Read { answer: Answer::Found(found), .. }) => Some(found),
            // Gone by now, or something else stands there by now.
            _ => None,
        })
    }
}

/// The types of the keys at which locks stand.
const TYPES: [(&str, Rule); 3] =
    [("string", Rule::Mutex), ("hash", Rule::Reentrant), ("zset", Rule::Queue(Seat::FAIR))];

fn is_no_lock(holding: &Holding) -> bool {
    holding.value == "(hash)"
}

/// The same for a string. By plain commands, because a script would read the whole of what may be somebody's film.
async fn look_at_text(line: &Line, name: &LockName, deadline: Moment) -> Result<Option<Found>, Failure> {
    let (value, left) = (["GETRANGE", name.as_str(), "0", "1023"], ["PTTL", name.as_str()]);
    let (value, left) = (command(&value), command(&left));
    let (value, left) = join(line.ask(&value, deadline), line.ask(&left, deadline)).await;
    // Empty: gone by now. An error: something else stands there by now.
    let value = reply::text(&value?).filter(|value| !value.is_empty());
    Ok(match (value, reply::left(&answered(line, left?)?)) {
        (Some(value), Some(left_ms)) => {
            Some(reply::found(Kind::Mutex, Holding { value, left_ms, weight: 1 }))
        }
        _ => None,
    })
}

fn answered(line: &Line, value: Value) -> Result<Value, Failure> {
    match value {
        Value::ServerError(error) => Err(refused(line, &error)),
        value => Ok(value),
    }
}

fn refused(line: &Line, error: &redis::ServerError) -> Failure {
    let (failure, leave) = failure::of(error);
    if leave {
        line.hang_up();
    }
    failure
}

/// The next cursor and the names of a reply to SCAN, without those that no lock can have.
fn scanned(value: &Value) -> Option<(&str, Vec<LockName>)> {
    let Value::Array(parts) = value else { return None };
    let [next, Value::Array(keys)] = &parts[..] else { return None };
    let next = std::str::from_utf8(reply::bytes(next)?).ok()?;
    let mut names: Vec<_> = keys
        .iter()
        .filter_map(|key| LockName::new(std::str::from_utf8(reply::bytes(key)?).ok()?).ok())
        .collect();
    names.sort();
    names.dedup();
    next.bytes().all(|byte| byte.is_ascii_digit()).then_some((next, names))
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Redis").field(&self.0.url).finish()
    }
}
