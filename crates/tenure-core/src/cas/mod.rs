//! Locks on servers that compare and swap, and count the life of their clients: etcd, ZooKeeper.
//!
//! A lock is one key, and more for a long line of waiters. A request reads it, runs the machine of
//! `protocol` on it, and writes the outcome if nothing else was written meanwhile; otherwise it
//! begins again.
//!
//! Such servers have no clock that a request could be compared with. So each hold and place is
//! bound to a handle of its client, whose life the server counts: an entry whose handle is gone has
//! lapsed. A client renews its handles, not its holds. A hold that is not renewed is taken out by
//! its own client when its time is over; a client that cannot do that loses its handles.
//!
//! *Order.* Each write compares the version of its client's marker. Where the outcome of a request
//! is not known, the next one first writes the marker: then the earlier one has taken effect, or
//! never will.
//!
//! The map: `backend` is what a server has to offer, `view` what is written, and `parts` what is
//! written of a long line. `leases` has the handles and holds of this client, `client` keeps them,
//! and `notes` says what each request changes of them. `request` carries out requests, which `bind`
//! binds to handles. `together` carries out many at once, and `turns` has what the tasks share that
//! take turns at a lock. `watch` hears of changes. `url` reads what the URLs of these servers have
//! in common.

mod backend;
mod bind;
mod client;
mod holders;
mod leases;
mod notes;
mod parts;
mod request;
mod together;
mod turns;
pub mod url;
mod view;
mod watch;

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, FutureExt, pending, ready, select};
use tokio::sync::oneshot;

pub use backend::{Backend, Change, Committed, Handle, Listed, PartChange, Seen, Stamp, Stored, Watch};

use crate::name::LockName;
use crate::owner::Owner;
use crate::protocol::record::{RecordAnswer, RecordOp};
use crate::protocol::{Answer, LockSpec, Op};
use crate::runtime::Runtime;
use crate::store::{
    Capabilities, Cursor, Failure, HoldLiveness, Kinds, LeaseClock, Listener, Page, QuorumMember, Store,
};
use client::Client;
#[cfg(tenure_planted)]
pub use view::{Bound, stands};

/// A store on a server that compares and swaps. Clones share it.
#[derive(Clone)]
pub struct Cas {
    client: Arc<Client>,
    url: Arc<str>,
}

impl Cas {
    /// A store on this server; asks nothing before its first use.
    pub fn new(backend: Arc<dyn Backend>, url: &str, runtime: Arc<dyn Runtime>) -> Self {
        Self { client: Client::new(backend, runtime), url: url.into() }
    }

    /// Does something on the runtime of the store, within a time. If it is not awaited any more, it
    /// ends where it is.
    fn within<T: Send + 'static>(
        &self,
        within: Duration,
        what: impl FnOnce(Arc<Client>, Sent) -> BoxFuture<'static, Result<T, Failure>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Failure>> {
        let client = Arc::clone(&self.client);
        async move {
            let runtime = Arc::clone(&client.runtime);
            let until = runtime.now() + within;
            let (mut promise, answer) = oneshot::channel();
            let task = async move {
                let sent = Sent::default();
                let asked = what(Arc::clone(&client), sent.clone());
                let late = client.runtime.sleep_until(until);
                let answer = match select(select(asked, late), pin!(promise.closed())).await {
                    Either::Left((Either::Left((answer, _)), _)) => answer,
                    Either::Left((Either::Right(_), _)) => {
                        if within >= SILENCE {
                            client.backend.silent();
                        }
                        let cause = Failure::cause(format!("no answer within {:?}", rounded(within)));
                        Err(if sent.is_open() { Failure::Unknown(cause) } else { Failure::NotSent(cause) })
                    }
                    Either::Right(_) => return,
                };
                let _ = promise.send(answer);
            };
            runtime.spawn(task.boxed());
            let ended = || Failure::Unknown(Failure::cause("the store ended meanwhile"));
            answer.await.unwrap_or_else(|_| Err(ended()))
        }
        .boxed()
    }
}

/// A time for people, in two digits: what is left of a limit has many.
fn rounded(time: Duration) -> Duration {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let unit = 10_u64.pow(nanos.checked_ilog10().unwrap_or(0).saturating_sub(1));
    Duration::from_nanos(nanos.saturating_add(unit / 2) / unit * unit)
}

/// A server that answers nothing for so long is not asked again while there is another.
const SILENCE: Duration = Duration::from_millis(500);

/// Whether a write of a request is under way, and whether its answer is still waited for.
#[derive(Clone, Debug, Default)]
struct Sent(Arc<AtomicU8>);

impl Sent {
    const OPEN: u8 = 1;
    const LEFT: u8 = 2;

    /// A write is under way. False if its answer is not waited for any more.
    fn open(&self) -> bool {
        self.0.fetch_or(Self::OPEN, Ordering::AcqRel) & Self::LEFT == 0
    }

    /// It has come to an end.
    fn close(&self) {
        self.0.fetch_and(!Self::OPEN, Ordering::AcqRel);
    }

    fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) & Self::OPEN != 0
    }

    /// The answer is not waited for any more. Says whether a write is under way.
    fn leave(&self) -> bool {
        self.0.fetch_or(Self::LEFT, Ordering::AcqRel) & Self::OPEN != 0
    }

    fn is_left(&self) -> bool {
        self.0.load(Ordering::Acquire) & Self::LEFT != 0
    }
}

/// Why records are refused.
const NO_VALUES: &str = "records need a server's clock to compare with, and this server has none";

impl Store for Cas {
    fn call(&self, op: Op, within: Duration) -> BoxFuture<'static, Result<Answer, Failure>> {
        self.within(within, move |client, sent| async move { client.call(&op, &sent).await }.boxed())
    }

    fn record(&self, _op: RecordOp, _within: Duration) -> BoxFuture<'static, Result<RecordAnswer, Failure>> {
        ready(Err(Failure::impossible(NO_VALUES))).boxed()
    }

    fn listen(
        &self,
        name: &LockName,
        _rule: LockSpec,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        let name = name.clone();
        self.within(within, move |client, _| async move { watch::listen(client, name).await }.boxed())
    }

    fn listen_while_held(
        &self,
        name: &LockName,
        _rule: LockSpec,
        owner: &Owner,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        let (name, owner) = (name.clone(), owner.clone());
        let listen = move |client| watch::listen_while_held(client, name, owner).boxed();
        self.within(within, move |client, _| listen(client))
    }

    fn list(
        &self,
        prefix: &str,
        from: Cursor,
        within: Duration,
    ) -> BoxFuture<'static, Result<Page, Failure>> {
        let prefix = prefix.to_owned();
        self.within(within, move |client, _| async move { client.list(&prefix, from).await }.boxed())
    }

    fn ready(&self, within: Duration) -> BoxFuture<'static, Result<(), Failure>> {
        self.within(within, |client, _| client.backend.ready())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kinds: Kinds::All,
            clock: LeaseClock::Server,
            values: Err(NO_VALUES),
            liveness: HoldLiveness::Lease,
            messages_grant: true,
            restart_grace: None,
        }
    }

    fn supports(&self, _rule: LockSpec, _name: &LockName) -> Result<(), &'static str> {
        Ok(())
    }

    fn declare_ttl(&self, ttl: Duration) {
        self.client.declare(ttl);
    }

    fn settled(&self) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }

    /// When a handle is gone, and with it all that was bound to it.
    fn interrupted(&self) -> BoxFuture<'static, ()> {
        let mut losses = self.client.losses.subscribe();
        let before = *losses.borrow_and_update();
        async move {
            if losses.wait_for(|count| *count > before).await.is_err() {
                pending().await
            }
        }
        .boxed()
    }

    fn interruptions(&self) -> u64 {
        *self.client.losses.borrow()
    }

    fn member(&self) -> Result<&dyn QuorumMember, &'static str> {
        Err("its servers are a quorum of their own, which draws the tokens")
    }

    fn url(&self) -> &Arc<str> {
        &self.url
    }
}

impl fmt::Debug for Cas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cas").field(&self.url).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_for_people_has_two_digits() {
        for (nanos, text) in [
            (0, "0ns"),
            (7, "7ns"),
            (14_734_522, "15ms"),
            (900_000_000, "900ms"),
            (999_999_999, "1s"),
            (9_998_123_456, "10s"),
            (72_000_000_000, "72s"),
        ] {
            assert_eq!(format!("{:?}", rounded(Duration::from_nanos(nanos))), text);
        }
    }
}
