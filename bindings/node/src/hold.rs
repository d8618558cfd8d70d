//! Holds: the guards of all kinds of locks and uses.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::slice::from_ref;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use napi::Env;
use napi::bindgen_prelude::{BigInt, Unknown};
use napi_derive::napi;
use tenure::{
    DowngradeError, Guard, HoldEnd, Lost, MultiGuard, StopRequest, Term, Turn, UpgradeError,
    UpgradeableGuard, WriteGuard,
};
use tokio::sync::{RwLock, RwLockReadGuard};

use crate::channel::Outcome;
use crate::engine::runtime;
use crate::error::{Failure, Result, millis, released};
use crate::store::Handle;
use crate::value::{self, Value};

type Asked = Pin<Box<dyn Future<Output = tenure::Result<StopRequest>> + Send>>;

/// A guard of any kind.
pub enum Held {
    Plain(Guard),
    Write(WriteGuard),
    Upgradeable(UpgradeableGuard),
    Multi(MultiGuard),
    Term(Box<Term>),
    Turn(Box<Turn>),
}

impl Held {
    /// The guards of all parts; one, unless it is a multi-lock.
    fn guards(&self) -> &[Guard] {
        match self {
            Self::Plain(guard) => from_ref(guard),
            Self::Write(guard) => from_ref(guard),
            Self::Upgradeable(guard) => from_ref(guard),
            Self::Multi(guards) => guards,
            Self::Term(term) => from_ref(term.guard()),
            Self::Turn(turn) => from_ref(turn.guard()),
        }
    }

    fn lost(&self) -> Lost {
        match self {
            Self::Multi(guards) => guards.lost(),
            Self::Term(term) => term.lost(),
            held => held.guards()[0].lost(),
        }
    }

    /// Waits for a request to stop, for each part in its store. The futures do not borrow the guard.
    fn stop_requested(&self, stores: &[tenure::Locks]) -> Vec<Asked> {
        match self {
            Self::Term(term) => vec![Box::pin(term.stop_requested())],
            Self::Turn(turn) => vec![Box::pin(turn.stop_requested())],
            held => {
                let parts = held.guards().iter().zip(stores);
                parts.map(|(guard, locks)| Box::pin(locks.stop_requested(guard)) as Asked).collect()
            }
        }
    }

    async fn verify(&self) -> tenure::Result<()> {
        match self {
            Self::Multi(guards) => guards.verify().await,
            held => held.guards()[0].verify().await,
        }
    }

    async fn renew(&self) -> tenure::Result<()> {
        for guard in self.guards() {
            guard.renew().await?;
        }
        Ok(())
    }

    fn into_guard(self) -> std::result::Result<Guard, Self> {
        match self {
            Self::Plain(guard) => Ok(guard),
            Self::Write(guard) => Ok(guard.into()),
            Self::Upgradeable(guard) => Ok(guard.into()),
            other => Err(other),
        }
    }

    async fn release(self) -> tenure::Result<()> {
        match self {
            Self::Plain(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
            Self::Upgradeable(guard) => guard.release().await,
            Self::Multi(guards) => guards.release().await,
            Self::Term(term) => term.resign().await,
            Self::Turn(turn) => turn.succeed().await,
        }
    }
}

/// Holds the guard until it is released. Requests share it; a change waits for them.
pub struct Slot {
    held: RwLock<Option<Held>>,
    /// The end of the hold, known also during a change.
    lost: Lost,
    /// The clients of its stores: when one is closed, the hold ends.
    pub clients: Vec<u32>,
}

impl Slot {
    async fn lend(&self) -> std::result::Result<RwLockReadGuard<'_, Held>, Failure> {
        let held = self.held.read().await;
        RwLockReadGuard::try_map(held, Option::as_ref).map_err(|_| released())
    }

    async fn change(&self, what: &str, text: String, time: Option<Duration>) -> Outcome {
        let mut held = self.held.write().await;
        let (stays, result) = changed(held.take().ok_or_else(released)?, what, text, time).await;
        *held = stays;
        Ok(result?)
    }

    pub fn is_held(&self) -> bool {
        !self.lost.remaining().is_zero()
    }

    /// Drops the guard, which releases it in the background. Returns whether there was one.
    pub fn clear(self: &Arc<Self>) -> bool {
        if let Ok(mut held) = self.held.try_write() {
            return held.take().is_some();
        }
        let slot = Arc::clone(self);
        runtime().spawn(async move { drop(slot.held.write().await.take()) });
        true
    }
}

/// A held lock of any kind, a term, or a run of a job.
#[napi]
pub struct Hold {
    slot: Arc<Slot>,
    stores: Vec<Handle>,
    id: u64,
    name: String,
    /// Empty for several parts, which have an owner each.
    owner: String,
    /// The names and tokens of the parts.
    parts: Vec<(String, u64)>,
    /// The window of a run of a job, and the time from its start to the run's.
    window: Option<(f64, f64, f64)>,
}

impl Hold {
    /// A hold in a store, or in the store of each part.
    pub fn new(stores: Vec<Handle>, held: Held) -> Self {
        let parts: Vec<_> =
            held.guards().iter().map(|guard| (guard.name().to_string(), guard.fence())).collect();
        let names: Vec<_> = parts.iter().map(|(name, _)| name.as_str()).collect();
        let name = names.join(", ");
        let owner = match held.guards() {
            [guard] => guard.owner().to_string(),
            _ => String::new(),
        };
        let window = match &held {
            Held::Turn(turn) => {
                let window = turn.window();
                let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
                let (start, end) = (value::millis(since(window.start)), value::millis(since(window.end)));
                Some((start, end, value::millis(turn.late_by())))
            }
            _ => None,
        };
        let lost = held.lost();
        let clients = stores.iter().map(Handle::client).collect();
        let slot = Arc::new(Slot { held: RwLock::new(Some(held)), lost, clients });
        let id = stores[0].thread().add_hold(&slot);
        Self { slot, stores, id, name, owner, parts, window }
    }

    fn start<F: Future<Output = Outcome> + Send + 'static>(
        &self,
        id: u32,
        work: impl FnOnce(Arc<Slot>) -> F,
    ) {
        self.stores[0].call(id, work(Arc::clone(&self.slot)));
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let was_held = self.slot.clear();
        self.stores[0].thread().remove_hold(self.id, was_held);
    }
}

fn ended(end: HoldEnd) -> Value {
    end.into_error().map(Failure::from).into()
}

/// Changes a guard. Returns the one that stays, and the result: null if the guard is of another kind.
async fn changed(
    held: Held,
    what: &str,
    text: String,
    time: Option<Duration>,
) -> (Option<Held>, tenure::Result<Value>) {
    match (what, held) {
        ("fail", Held::Turn(turn)) => (None, turn.fail(text).await.map(|()| true.into())),
        ("release" | "fail", held) => (None, held.release().await.map(|()| true.into())),
        ("downgrade", Held::Write(guard)) => match guard.downgrade().await {
            Ok(reader) => (Some(Held::Plain(reader.into())), Ok(true.into())),
            Err(DowngradeError { error, guard, .. }) => (Some(Held::Write(guard)), Err(error)),
        },
        ("downgrade", Held::Upgradeable(guard)) => match guard.downgrade().await {
            Ok(reader) => (Some(Held::Plain(reader.into())), Ok(true.into())),
            Err(UpgradeError { error, guard, .. }) => (Some(Held::Upgradeable(guard)), Err(error)),
        },
        ("upgrade", Held::Upgradeable(guard)) => {
            let upgraded = match time {
                Some(limit) => guard.try_upgrade_for(limit).await,
                None => guard.upgrade().await.map(Ok),
            };
            match upgraded {
                Ok(Ok(writer)) => (Some(Held::Write(writer)), Ok(true.into())),
                Ok(Err(reader)) => (Some(Held::Upgradeable(reader)), Ok(false.into())),
                Err(UpgradeError { error, guard, .. }) => (Some(Held::Upgradeable(guard)), Err(error)),
            }
        }
        ("update", Held::Term(mut term)) => {
            let updated = term.update(text).await;
            (Some(Held::Term(term)), updated.map(|()| true.into()))
        }
        ("detach" | "keep", held) => match (held.into_guard(), time) {
            (Err(held), _) => (Some(held), Ok(Value::Null)),
            (Ok(guard), Some(time)) => (None, guard.keep_for(time).await.map(|()| true.into())),
            (Ok(guard), None) => (None, guard.detach().await.map(|owner| owner.as_str().into())),
        },
        (_, held) => (Some(held), Ok(Value::Null)),
    }
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

    #[napi(getter)]
    pub fn fence(&self) -> BigInt {
        BigInt::from(self.parts[0].1)
    }

    /// The tokens of the parts by name.
    #[napi(getter)]
    pub fn fences(&self) -> HashMap<String, BigInt> {
        self.parts.iter().map(|(name, fence)| (name.clone(), BigInt::from(*fence))).collect()
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
            Poll::Pending => Value::Null,
        };
        loss.into_js(env)
    }

    /// Waits for the end: why the hold was lost, or `null` for a release.
    #[napi]
    pub fn ended(&self, id: u32) {
        let lost = self.slot.lost.clone();
        self.stores[0].call(id, async move { Ok(ended(lost.await)) });
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
            let mut asked = slot.lend().await?.stop_requested(&stores);
            let mut lost = slot.lost.clone();
            drop(slot);
            let request = poll_fn(|context| match Pin::new(&mut lost).poll(context) {
                Poll::Ready(_) => Poll::Ready(Ok(None)),
                Poll::Pending => {
                    let mut polled = asked.iter_mut().map(|asked| asked.as_mut().poll(context));
                    polled.find(Poll::is_ready).map_or(Poll::Pending, |request| request.map_ok(Some))
                }
            });
            Ok(request.await?.into())
        });
        Ok(())
    }

    #[napi]
    pub fn verify(&self, id: u32) {
        self.start(id, async move |slot| Ok(slot.lend().await?.verify().await?.into()));
    }

    #[napi]
    pub fn renew(&self, id: u32) {
        self.start(id, async move |slot| Ok(slot.lend().await?.renew().await?.into()));
    }

    /// Changes or ends the hold: `release`, `fail` with a text for a run of a job, `detach`, `keep` for a time,
    /// `downgrade`, `upgrade` within a time, or `update` with a leader's payload. The result is `null` if the hold is of
    /// another kind.
    #[napi]
    pub fn change(&self, id: u32, what: String, text: Option<String>, time: Option<f64>) -> Result<()> {
        let time = time.map(|time| millis("time", time)).transpose()?;
        self.start(id, async move |slot| slot.change(&what, text.unwrap_or_default(), time).await);
        Ok(())
    }
}
