//! Locks on servers with compare-and-swap and client liveness: etcd, ZooKeeper.
//!
//! A lock is one key, plus further keys for a long queue of waiters. A request reads the key, runs the
//! machine of `protocol` on it, and writes the result if the key has not changed meanwhile; otherwise it
//! starts over.
//!
//! Such servers have no clock that a request can be compared with, so each hold and place is bound to a
//! session of its client, whose lifetime the server tracks: an entry whose session is gone has expired. A
//! client renews its sessions, not its holds. When a hold is not renewed, its own client removes it once its
//! time is over; a client that cannot do so loses its sessions.
//!
//! *Order.* Each write compares the version of its client's marker. After a request of unknown outcome, the
//! next one first writes the marker: from then on, the earlier one has either taken effect or never will.
//!
//! Modules: `backend` is the interface to a server, `one_key` implements it for servers with compare-and-swap of
//! a single key, `lock_snapshot` is the stored format, and `parts` the format of a
//! long queue. `leases` keeps the sessions and holds of this client, `client` maintains them, and `notes`
//! records how each request changes them. `dispatch` decides how a request is carried out: `exchange` reads,
//! writes and repeats, `machine` runs the machine, and `bind` binds requests to sessions. `records` carries out
//! those about records. `together` batches requests, and `known` holds the state shared by tasks that use one lock
//! at a lock. `watch` reports changes, and `holders` lets the holders of one lock share a watch.

mod backend;
mod bind;
mod client;
mod dispatch;
mod exchange;
mod holders;
mod known;
mod leases;
mod lock_snapshot;
mod machine;
mod notes;
mod one_key;
mod parts;
mod records;
mod together;
mod watch;

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select};
use tokio::sync::oneshot;

pub use backend::{
    Backend, Committed, Listed, ListedRecords, LockWatch, PartChange, Session, Stamp, Stored, Swap,
    ValueChange, WatchNotice, Watched,
};

use crate::runtime::Runtime;
use crate::store::{
    Capabilities, Cursor, Failure, Listener, Page, Purpose, RecordPage, Signals, Store, StoreExt,
    StoreFuture, StoreReply, StoreRequest, Topic,
};
use client::CasClient;
pub use leases::PLACE_WAIT;
#[cfg(tenure_planted)]
pub use lock_snapshot::{BoundEntry, whole_lock};
#[cfg(tenure_planted)]
pub use one_key::key_values;
pub use one_key::{KeyEntry, KeyName, KeyPage, KeyValueServer, KeyWrite, KeyWritten, OneKey};

/// A store on a server with compare-and-swap. Clones share its state.
#[derive(Clone)]
pub struct Cas {
    client: Arc<CasClient>,
    url: Arc<str>,
}

impl Cas {
    /// Creates a store on this server. It sends nothing before its first use.
    pub fn new(backend: Arc<dyn Backend>, url: &str, runtime: Arc<dyn Runtime>) -> Self {
        Self { client: CasClient::new(backend, runtime), url: url.into() }
    }

    /// Runs `what` on the runtime of the store with a timeout. Dropping the returned future cancels it.
    fn within<T: Send + 'static>(
        &self,
        within: Duration,
        what: impl FnOnce(Arc<CasClient>, WriteState) -> StoreFuture<T> + Send + 'static,
    ) -> StoreFuture<T> {
        let client = Arc::clone(&self.client);
        async move {
            let runtime = Arc::clone(&client.runtime);
            let sent_at = runtime.now();
            let (mut promise, answer) = oneshot::channel();
            let task = async move {
                let sent = WriteState::default();
                let asked = what(Arc::clone(&client), sent.clone());
                let late = client.runtime.sleep_until(sent_at + within);
                let answer = match select(select(asked, late), pin!(promise.closed())).await {
                    Either::Left((Either::Left((answer, _)), _)) => answer,
                    Either::Left((Either::Right(_), _)) => {
                        if within >= SILENCE {
                            client.silent(sent_at);
                        }
                        let cause = Failure::cause(no_answer(within));
                        // From here on no write of it may begin.
                        Err(if sent.abandon() { Failure::Unknown(cause) } else { Failure::NotSent(cause) })
                    }
                    Either::Right(_) => return,
                };
                let _ = promise.send(answer);
            };
            runtime.spawn(task.boxed());
            let ended = || Failure::Unknown(Failure::cause("the store was closed"));
            answer.await.unwrap_or_else(|_| Err(ended()))
        }
        .boxed()
    }
}

/// The message of a timeout, rounded to two digits: what is left of a caller's limit has many.
fn no_answer(within: Duration) -> String {
    let nanos = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
    let unit = 10_u64.pow(nanos.checked_ilog10().unwrap_or(0).saturating_sub(1));
    format!("no answer within {:?}", Duration::from_nanos(nanos.saturating_add(unit / 2) / unit * unit))
}

/// After a timeout of at least this length, the backend switches to another server if there is one.
const SILENCE: Duration = Duration::from_millis(500);

/// Whether a write of a request is in flight, and whether its answer is still awaited.
#[derive(Clone, Debug, Default)]
struct WriteState(Arc<AtomicU8>);

impl WriteState {
    const OPEN: u8 = 1;
    const ABANDONED: u8 = 2;

    /// Marks a write as in flight. False if its answer is no longer awaited.
    fn open(&self) -> bool {
        self.0.fetch_or(Self::OPEN, Ordering::AcqRel) & Self::ABANDONED == 0
    }

    /// Marks the write as completed.
    fn close(&self) {
        self.0.fetch_and(!Self::OPEN, Ordering::AcqRel);
    }

    /// Marks the answer as no longer awaited. Returns whether a write is in flight.
    fn abandon(&self) -> bool {
        self.0.fetch_or(Self::ABANDONED, Ordering::AcqRel) & Self::OPEN != 0
    }

    fn is_abandoned(&self) -> bool {
        self.0.load(Ordering::Acquire) & Self::ABANDONED != 0
    }
}

impl Store for Cas {
    fn call(&self, request: StoreRequest, within: Duration) -> StoreFuture<StoreReply> {
        match request {
            StoreRequest::Lock(op) => self.within(within, move |client, sent| {
                async move { client.call(&op, &sent).await.map(StoreReply::Lock) }.boxed()
            }),
            StoreRequest::Record(op) => self.within(within, move |client, sent| {
                async move { client.record(&op, &sent).await.map(StoreReply::Record) }.boxed()
            }),
            StoreRequest::Renewals(ops) => self.renew_each(ops, within),
        }
    }

    fn subscribe(&self, topic: Topic<'_>, within: Duration) -> StoreFuture<Listener> {
        let name = topic.name.clone();
        match topic.purpose {
            Purpose::Watch => self.within(within, move |client, _| watch::observe(client, name).boxed()),
            Purpose::Ask | Purpose::Grants(_) => {
                self.within(within, move |client, _| watch::listen(client, name).boxed())
            }
            Purpose::Hold(owner) => {
                let listen = {
                    let owner = owner.clone();
                    move |client| watch::listen_while_held(client, name, owner).boxed()
                };
                self.within(within, move |client, _| listen(client))
            }
        }
    }

    fn list(&self, prefix: &str, from: Cursor, within: Duration) -> StoreFuture<Page> {
        let prefix = prefix.to_owned();
        self.within(within, move |client, _| async move { client.list(&prefix, from).await }.boxed())
    }

    fn records(&self, prefix: &str, from: Cursor, within: Duration) -> StoreFuture<RecordPage> {
        let prefix = prefix.to_owned();
        self.within(within, move |client, _| async move { client.records(&prefix, from).await }.boxed())
    }

    fn ready(&self, within: Duration) -> StoreFuture<()> {
        self.within(within, |client, _| client.backend.ready())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            client_decides: true,
            reports_records: true,
            reports_expiry: true,
            shares_leases: true,
            place_max: PLACE_WAIT,
            member: Err("its servers form a quorum of their own"),
            ..Capabilities::SERVER
        }
    }

    /// Interrupted when a session is lost, and with it everything that was bound to it.
    fn signals(&self) -> &Signals {
        &self.client.signals
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
    fn the_message_of_a_timeout_has_two_digits() {
        for (nanos, text) in [
            (0, "0ns"),
            (7, "7ns"),
            (14_734_522, "15ms"),
            (900_000_000, "900ms"),
            (999_999_999, "1s"),
            (9_998_123_456, "10s"),
            (72_000_000_000, "72s"),
        ] {
            assert_eq!(no_answer(Duration::from_nanos(nanos)), format!("no answer within {text}"));
        }
    }
}
