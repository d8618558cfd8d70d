//! Holds: the guards of all kinds of locks and uses.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use napi::Env;
use napi::bindgen_prelude::{BigInt, Unknown};
use napi_derive::napi;
use tenure::{
    DowngradeError, Guard, HoldEnd, Lost, MultiGuard, Term, Turn, UpgradeError, UpgradeableGuard, WriteGuard,
};
use tokio::sync::{RwLock, RwLockReadGuard, watch};

use crate::channel::Outcome;
use crate::engine::runtime;
use crate::error::{Failure, Result, millis, released};
use crate::store::Handle;
use crate::value::{self, Value};

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
    /// The guard of a single lock, or the guards of several.
    fn guard(&self) -> std::result::Result<&Guard, &MultiGuard> {
        match self {
            Self::Plain(guard) => Ok(guard),
            Self::Write(guard) => Ok(guard),
            Self::Upgradeable(guard) => Ok(guard),
            Self::Term(term) => Ok(term.guard()),
            Self::Turn(turn) => Ok(turn.guard()),
            Self::Multi(guards) => Err(guards),
        }
    }

    fn lost(&self) -> Lost {
        match self {
            Self::Term(term) => term.lost(),
            held => held.guard().map_or_else(MultiGuard::lost, Guard::lost),
        }
    }

    fn remaining(&self) -> Duration {
        self.guard().map_or_else(MultiGuard::remaining, Guard::remaining)
    }

    fn is_held(&self) -> bool {
        self.guard().map_or_else(MultiGuard::is_held, Guard::is_held)
    }

    async fn verify(&self) -> tenure::Result<()> {
        match self.guard() {
            Ok(guard) => guard.verify().await,
            Err(guards) => guards.verify().await,
        }
    }

    async fn renew(&self) -> tenure::Result<()> {
        match self.guard() {
            Ok(guard) => guard.renew().await,
            Err(guards) => {
                for guard in guards.iter() {
                    guard.renew().await?;
                }
                Ok(())
            }
        }
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

/// What becomes of a guard: see `Hold::change`.
struct Change {
    what: String,
    text: String,
    time: Option<Duration>,
}

/// Holds the guard until it is released. Requests share it; a change waits for them.
pub struct Slot {
    held: RwLock<Option<Held>>,
    /// Ends the calls that wait for as long as the guard lives.
    is_ending: watch::Sender<bool>,
}

impl Slot {
    async fn lend(&self) -> std::result::Result<RwLockReadGuard<'_, Held>, Failure> {
        let held = self.held.read().await;
        RwLockReadGuard::try_map(held, Option::as_ref).map_err(|_| released())
    }

    async fn change(&self, change: Change) -> Outcome {
        self.is_ending.send_replace(true);
        let mut held = self.held.write().await;
        let (stays, result) = changed(held.take().ok_or_else(released)?, change).await;
        self.is_ending.send_replace(stays.is_none());
        *held = stays;
        Ok(result?)
    }

    /// What a request would find now, unless a change is in progress.
    fn peek<T>(&self, of: impl FnOnce(&Held) -> T) -> Option<T> {
        self.held.try_read().ok().and_then(|held| held.as_ref().map(of))
    }

    pub fn is_held(&self) -> bool {
        self.peek(Held::is_held).unwrap_or_default()
    }

    /// Drops the guard, which releases it in the background. Returns whether there was one.
    pub fn clear(self: &Arc<Self>) -> bool {
        self.is_ending.send_replace(true);
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
    store: Handle,
    id: u64,
    name: String,
    owner: String,
    fence: u64,
    /// The names and tokens of a multi-lock.
    parts: Vec<(String, u64)>,
    /// The window of a run of a job, and the time from its start to the run's.
    window: Option<(f64, f64, f64)>,
}

impl Hold {
    pub fn new(store: Handle, held: Held) -> Self {
        let (name, owner, fence, parts) = match held.guard() {
            Ok(guard) => (guard.name().to_string(), guard.owner().to_string(), guard.fence(), Vec::new()),
            Err(guards) => {
                let part = |guard: &Guard| (guard.name().to_string(), guard.fence());
                let parts: Vec<_> = guards.iter().map(part).collect();
                let names: Vec<_> = parts.iter().map(|(name, _)| name.as_str()).collect();
                (names.join(", "), String::new(), 0, parts)
            }
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
        let slot = Arc::new(Slot { held: RwLock::new(Some(held)), is_ending: watch::Sender::new(false) });
        let id = store.add_hold(&slot);
        Self { slot, store, id, name, owner, fence, parts, window }
    }

    fn start<F: Future<Output = Outcome> + Send + 'static>(
        &self,
        id: u32,
        work: impl FnOnce(Arc<Slot>) -> F,
    ) {
        self.store.call(id, work(Arc::clone(&self.slot)));
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let was_held = self.slot.clear();
        self.store.remove_hold(self.id, was_held);
    }
}

/// Why the hold has been lost, if it is known; `None` while it is held and after its release.
fn loss(lost: &Lost) -> Option<Failure> {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(lost.clone()).poll(&mut context) {
        Poll::Ready(end) => ended(end),
        Poll::Pending => None,
    }
}

fn ended(end: HoldEnd) -> Option<Failure> {
    end.into_error().map(Failure::from)
}

/// Changes a guard. Returns the one that stays, and the result: null if the guard is of another kind.
async fn changed(held: Held, change: Change) -> (Option<Held>, tenure::Result<Value>) {
    let Change { what, text, time } = change;
    match (what.as_str(), held) {
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
        BigInt::from(self.fence)
    }

    /// The tokens of a multi-lock by name.
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
        self.slot.peek(|held| value::millis(held.remaining())).unwrap_or_default()
    }

    /// Why the hold has been lost, if it is known.
    #[napi(ts_return_type = "any")]
    pub fn loss<'env>(&self, env: &'env Env) -> napi::Result<Unknown<'env>> {
        Value::from(self.slot.peek(Held::lost).and_then(|lost| loss(&lost))).into_js(env)
    }

    /// Waits for the end: why the hold was lost, or `null` for a release.
    #[napi]
    pub fn ended(&self, id: u32) {
        self.start(id, async move |slot| {
            let lost = slot.lend().await?.lost();
            drop(slot);
            Ok(ended(lost.await).into())
        });
    }

    /// Drops the guard, which releases it in the background.
    #[napi]
    pub fn give_back(&self) {
        self.slot.clear();
    }

    /// Waits for a request to stop, until the guard is released.
    #[napi]
    pub fn stop_requested(&self, id: u32) -> Result<()> {
        let locks = self.store.locks()?;
        let mut is_ending = self.slot.is_ending.subscribe();
        self.start(id, async move |slot| {
            let held = slot.lend().await?;
            let asked = async {
                match (&*held, held.guard()) {
                    (Held::Term(term), _) => term.stop_requested().await.map(Some),
                    (Held::Turn(turn), _) => turn.stop_requested().await.map(Some),
                    (_, Ok(guard)) => locks.stop_requested(guard).await.map(Some),
                    (_, Err(_)) => Ok(None),
                }
            };
            let ending = is_ending.wait_for(|is_ending| *is_ending);
            let (mut asked, mut ending) = (pin!(asked), pin!(ending));
            let request = poll_fn(|context| match ending.as_mut().poll(context) {
                Poll::Ready(_) => Poll::Ready(Ok(None)),
                Poll::Pending => asked.as_mut().poll(context),
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
        let change = Change { what, text: text.unwrap_or_default(), time };
        self.start(id, async move |slot| slot.change(change).await);
        Ok(())
    }
}
