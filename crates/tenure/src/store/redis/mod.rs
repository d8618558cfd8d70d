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
mod script;
mod url;
mod wake;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, join, join_all};
use redis::Value;

pub use connect::{Dial, Stream};
pub use url::{Address, Target};

use super::{Cursor, Failure, Listener, Page, Store};
use crate::error::Result;
use crate::name::LockName;
use crate::protocol::{Fence, Found, Kind, Op, Reply, Rule, Verb, Whose, ours};
use crate::runtime::{Moment, Runtime};
use connect::{Connector, Network, command};
use line::Line;
use link::Link;
use wake::Ears;

/// Why other kinds are refused.
const ONE_MACHINE: &str = "it knows the mutex only";

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
    /// `is_invalid`, with the part of the URL that is wrong.
    pub fn open(url: &str, runtime: Arc<dyn Runtime>) -> Result<Self> {
        Ok(Self::over(Target::parse(url)?, Arc::new(Network), runtime))
    }

    /// A store whose connections are opened by `dial`.
    pub fn over(target: Target, dial: Arc<dyn Dial>, runtime: Arc<dyn Runtime>) -> Self {
        let (db, url) = (target.db, Arc::clone(&target.shown));
        let connector = Arc::new(Connector::new(Arc::clone(&runtime), dial, target));
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
        _rule: Rule,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        let (inner, channel) = (Arc::clone(&self.0), keys::channel(self.0.db, name.as_str()));
        async move { inner.ears.listen(channel, inner.runtime.now() + within).await }.boxed()
    }

    /// Walks over the whole database, a few hundred keys at a time, whatever the prefix: the server has no index of names.
    /// A lock may be told twice. Strings of other programs are told only where a prefix is given.
    fn list(
        &self,
        prefix: &str,
        from: Cursor,
        within: Duration,
    ) -> BoxFuture<'static, Result<Page, Failure>> {
        let (inner, prefix) = (Arc::clone(&self.0), prefix.to_owned());
        async move { inner.list(&prefix, &from, within).await }.boxed()
    }

    fn supports(&self, rule: Rule) -> Result<(), &'static str> {
        match rule {
            Rule::Mutex => Ok(()),
            _ => Err(ONE_MACHINE),
        }
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
                    tracing::warn!(target: "tenure", lock = %op.name, store = %self.url, why, "released, but those who wait could not be woken");
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
        let script = match op.rule {
            Rule::Mutex => script::MUTEX,
            _ => return Err(Failure::Refused(Failure::cause(ONE_MACHINE))),
        };
        let lock = op.name.as_str();
        let (owner, request) = (op.owner.as_str(), op.request.to_string());
        let mut counter = String::new();
        let args: [&str; 6];
        // The counter is named only where it is needed: a request about one key is never torn by a slot that moves.
        let (ttl, ballot, channel);
        let args: &[&str] = match op.verb {
            Verb::Acquire { ttl_ms, fence, .. } => {
                counter = keys::fence(lock);
                (ttl, ballot) = (ttl_ms.to_string(), proposed(fence));
                args = ["acquire", owner, &request, &ttl, &ballot, ""];
                &args[..5]
            }
            Verb::Renew { ttl_ms, .. } => {
                ttl = ttl_ms.to_string();
                args = ["renew", owner, &request, &ttl, "", ""];
                &args[..4]
            }
            Verb::Release { fence, whose, .. } => {
                if let Fence::Ballot(_) = fence {
                    counter = keys::fence(lock);
                }
                ballot = proposed(fence);
                channel = keys::channel(self.db, lock);
                let whose = match whose {
                    Whose::Mine => "mine",
                    Whose::Anyone => "anyone",
                };
                args = ["release", owner, &request, &ballot, whose, &channel];
                &args
            }
            Verb::Refresh { .. } | Verb::Inspect => {
                args = ["inspect", owner, &request, "", "", ""];
                &args[..3]
            }
        };
        let keys: &[&str] = if counter.is_empty() { &[lock] } else { &[lock, &counter] };
        // The first request after a reconnect is the question whether a lock is still held, and a server that has forgotten
        // the lock has forgotten the script: it must not take a second round trip to say so.
        let first =
            if line.brings_script() { script.in_full(keys, args) } else { script.by_name(keys, args) };
        let mut value = line.ask(&first, deadline).await?;
        if let Value::ServerError(error) = &value
            && failure::is_no_script(error)
        {
            value = line.ask(&script.in_full(keys, args), deadline).await?;
        }
        match value {
            Value::ServerError(error) => Err(refused(line, &error)),
            value => Ok(value),
        }
    }

    async fn list(&self, prefix: &str, from: &Cursor, within: Duration) -> Result<Page, Failure> {
        let deadline = self.runtime.now() + within;
        let line = self.link.line(deadline).await?;
        let cursor = if from.0.is_empty() { "0" } else { &from.0 };
        let pattern = keys::pattern(prefix);
        let scan = ["SCAN", cursor, "MATCH", &pattern, "COUNT", "250", "TYPE", "string"];
        let value = answered(&line, line.ask(&command(&scan), deadline).await?)?;
        let Some((next, names)) = scanned(&value) else {
            line.hang_up();
            return Err(Failure::Unknown(Failure::cause("a reply to SCAN that is none")));
        };
        let mut page = Page { locks: Vec::new(), next: (next != "0").then(|| Cursor(next.to_owned())) };
        let looks = names.iter().map(|name| look(&line, name, deadline));
        for (name, found) in names.iter().zip(join_all(looks).await) {
            if let Some(found) = found?
                && (!prefix.is_empty() || ours(&found.holders[0].value).is_some())
            {
                page.locks.push((name.clone(), found));
            }
        }
        Ok(page)
    }
}

/// Who holds a lock, where a string stands at its name.
async fn look(line: &Line, name: &LockName, deadline: Moment) -> Result<Option<Found>, Failure> {
    let (value, left) = (["GETRANGE", name.as_str(), "0", "1023"], ["PTTL", name.as_str()]);
    let (value, left) = (command(&value), command(&left));
    let (value, left) = join(line.ask(&value, deadline), line.ask(&left, deadline)).await;
    // Empty: gone by now. An error: something else stands there by now.
    let value = reply::text(&value?).filter(|value| !value.is_empty());
    Ok(match (value, reply::left(&answered(line, left?)?)) {
        (Some(value), Some(left_ms)) => Some(reply::found(Kind::Mutex, value, left_ms)),
        _ => None,
    })
}

fn proposed(fence: Fence) -> String {
    match fence {
        Fence::Assign => String::new(),
        Fence::Ballot(ballot) => ballot.to_string(),
    }
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
