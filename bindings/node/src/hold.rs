//! Holds: the guards of all kinds of locks and uses.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use napi::Env;
use napi::bindgen_prelude::{BigInt, Unknown};
use napi_derive::napi;
use tenure::bindings::{AnyGuard, Report};
use tenure::{HoldEnd, Lost};
use tokio::sync::{RwLock, RwLockReadGuard};

use crate::channel::Thread;
use crate::engine::runtime;
use crate::error::{Failure, Result, Time, duration, released};
use crate::store::Handle;
use crate::value::{self, Value};

/// Holds the guard until it is released. Requests share it; a change waits for them.
pub struct Slot {
    held: RwLock<Option<AnyGuard>>,
    /// The end of the hold, known also during a change.
    lost: Lost,
    thread: Arc<Thread>,
    pub id: u64,
    /// The clients of its stores: when one is closed, the hold ends.
    pub clients: Vec<u32>,
}

impl Slot {
    async fn lend(&self) -> std::result::Result<RwLockReadGuard<'_, AnyGuard>, Failure> {
        let held = self.held.read().await;
        RwLockReadGuard::try_map(held, Option::as_ref).map_err(|_| released())
    }

    async fn change(
        &self,
        what: &str,
        text: String,
        time: Option<Duration>,
    ) -> std::result::Result<Report, Failure> {
        let mut slot = self.held.write().await;
        let held = slot.as_ref().ok_or_else(released)?;
        match what {
            "downgrade" => return Ok(held.downgrade().await?.into()),
            "upgrade" => return Ok(held.upgrade(time).await?.into()),
            "update" => return Ok(held.update(text).await?.into()),
            "keep" if time.is_none() => {
                return Err(Failure::new("invalid", "time: expected milliseconds or a text such as \"15s\""));
            }
            "detach" | "keep" => held.check_single()?,
            _ => {}
        }
        let held = self.taken(slot.take()).ok_or_else(released)?;
        Ok(match (what, time) {
            ("detach", _) => held.detach().await?.into(),
            ("keep", Some(time)) => held.keep_for(time).await?.into(),
            ("fail", _) => held.fail(text).await?.into(),
            _ => held.release().await?.into(),
        })
    }

    /// The guard that was taken out: the thread no longer holds it.
    fn taken(&self, held: Option<AnyGuard>) -> Option<AnyGuard> {
        self.thread.remove_hold(self.id);
        held
    }

    pub fn is_held(&self) -> bool {
        !self.lost.remaining().is_zero()
    }

    /// Drops the guard, which releases it in the background. Returns whether there was one.
    pub fn clear(self: &Arc<Self>) -> bool {
        if let Ok(mut held) = self.held.try_write() {
            return self.taken(held.take()).is_some();
        }
        let slot = Arc::clone(self);
        runtime().spawn(async move { drop(slot.taken(slot.held.write().await.take())) });
        true
    }
}

/// A held lock of any kind, a term, or a run of a job.
#[napi]
pub struct Hold {
    slot: Arc<Slot>,
    stores: Vec<Handle>,
    name: String,
    /// Empty for several locks, which have an owner each.
    owner: String,
    /// The tokens of the locks.
    fences: Vec<u64>,
    /// The window of a run of a job, and the time from its start to the run's.
    window: Option<(f64, f64, f64)>,
}

impl Hold {
    /// A hold in a store, or in the store of each lock.
    pub fn new(stores: Vec<Handle>, held: AnyGuard) -> Self {
        let guards = held.guards();
        let names: Vec<_> = guards.iter().map(|guard| guard.name().as_str()).collect();
        let name = names.join(", ");
        let owner = match guards {
            [guard] => guard.owner().to_string(),
            _ => String::new(),
        };
        let fences = guards.iter().map(tenure::Guard::fence).collect();
        let window = held.window().map(|(window, late)| {
            (value::since_1970(window.start), value::since_1970(window.end), value::millis(late))
        });
        let (lost, clients) = (held.lost(), stores.iter().map(Handle::client).collect());
        let thread = Arc::clone(stores[0].thread());
        let (id, held) = (thread.next_hold(), RwLock::new(Some(held)));
        let slot = Arc::new(Slot { held, lost, thread, id, clients });
        slot.thread.add_hold(&slot);
        Self { slot, stores, name, owner, fences, window }
    }

    fn start<F, T: Into<Report>>(&self, id: u32, work: impl FnOnce(Arc<Slot>) -> F)
    where
        F: Future<Output = std::result::Result<T, Failure>> + Send + 'static,
    {
        self.stores[0].report(id, work(Arc::clone(&self.slot)));
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.slot.clear() {
            self.stores[0].thread().told_of_drop();
        }
    }
}

fn ended(end: HoldEnd) -> Option<Report> {
    end.into_error().map(|error| Failure::from(error).into())
}

#[napi]
impl Hold {
    #[napi(getter)]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[napi(getter)]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The tokens of the locks, in their order.
    #[napi(getter)]
    pub fn fences(&self) -> Vec<BigInt> {
        self.fences.iter().map(|fence| BigInt::from(*fence)).collect()
    }

    /// The start and the end of the window of a job, and how late the run began.
    #[napi(getter)]
    pub fn window(&self) -> Option<(f64, f64, f64)> {
        self.window
    }

    #[napi]
    pub fn is_held(&self) -> bool {
        self.slot.is_held()
    }

    /// Whether there is nothing to release.
    #[napi]
    pub fn is_released(&self) -> bool {
        self.slot.held.try_read().is_ok_and(|held| held.is_none())
    }

    #[napi]
    pub fn remaining(&self) -> f64 {
        value::millis(self.slot.lost.remaining())
    }

    /// Why the hold has been lost, if it is known.
    #[napi(ts_return_type = "any")]
    pub fn loss<'env>(&self, env: &'env Env) -> napi::Result<Unknown<'env>> {
        let mut context = Context::from_waker(Waker::noop());
        let loss = match pin!(self.slot.lost.clone()).poll(&mut context) {
            Poll::Ready(end) => ended(end),
            Poll::Pending => None,
        };
        Value::of(loss).into_js(env)
    }

    /// Waits for the end: why the hold was lost, or `null` for a release.
    #[napi]
    pub fn ended(&self, id: u32) {
        let lost = self.slot.lost.clone();
        self.start(id, async move |_| Ok(ended(lost.await)));
    }

    /// Drops the guard, which releases it in the background.
    #[napi]
    pub fn give_back(&self) {
        self.slot.clear();
    }

    /// Waits for a request to stop, until the lock is released or lost.
    #[napi]
    pub fn stop_requested(&self, id: u32) -> Result<()> {
        let stores = self.stores.iter().map(Handle::locks).collect::<Result<Vec<_>>>()?;
        self.start(id, async move |slot| {
            let mut asked = Box::pin(slot.lend().await?.stop_requested(&stores));
            let mut lost = slot.lost.clone();
            drop(slot);
            let request = poll_fn(|context| match Pin::new(&mut lost).poll(context) {
                Poll::Ready(_) => Poll::Ready(Ok(None)),
                Poll::Pending => asked.as_mut().poll(context).map_ok(Some),
            });
            Ok(request.await?)
        });
        Ok(())
    }

    #[napi]
    pub fn verify(&self, id: u32) {
        self.start(id, async move |slot| Ok(slot.lend().await?.verify().await?));
    }

    #[napi]
    pub fn renew(&self, id: u32) {
        self.start(id, async move |slot| Ok(slot.lend().await?.renew().await?));
    }

    /// Changes or ends the hold: `release`, `fail` with a text for a run of a job, `detach`, `keep` for a time,
    /// `downgrade`, `upgrade` within a time, or `update` with a leader's payload.
    #[napi]
    pub fn change(&self, id: u32, what: String, text: Option<String>, time: Option<Time>) -> Result<()> {
        let time = time.map(|time| duration("time", &time)).transpose()?;
        self.start(id, async move |slot| slot.change(&what, text.unwrap_or_default(), time).await);
        Ok(())
    }
}
