//! Mutexes and fair mutexes by plain commands, on a server byte by byte.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::internals::protocol::{Answer, Fence, Liveness, LockSpec, Op, QueueSpec, ReleaseScope, Verb};
use tenure::internals::store::redis::{Redis, Target};
use tenure::internals::store::{Failure, StoreExt};
use tenure::{LockName, Owner};

use super::{Failed, Outcome};
use crate::sim::chooser::Chooser;
use crate::sim::clock::{Clock, SECOND};
use crate::sim::executor::Sim;
use crate::sim_transport::SimTransport;

/// Start of the server's clock, in microseconds since 1970.
const EPOCH_US: u64 = 1_800_000_000_000_000;

struct Scene {
    spec: LockSpec,
    store: Redis,
    network: SimTransport,
}

impl Scene {
    async fn ask(&self, owner: &Owner, verb: Verb) -> Result<Answer, Failure> {
        let name = LockName::new("x").expect("a name");
        let op = Op { name, spec: self.spec, owner: owner.clone(), request: 1, verb };
        self.store.request(op, Duration::from_secs(1)).await
    }

    async fn acquire(&self, owner: &Owner) -> Result<u64, Failed> {
        match self.ask(owner, acquire(None)).await {
            Ok(Answer::Held { fence }) => Ok(fence),
            other => Err(format!("{other:?}").into()),
        }
    }

    async fn release(&self, owner: &Owner) -> Outcome {
        let verb = Verb::Release { hold: 1, fence: Fence::Assign, whose: ReleaseScope::Own };
        match self.ask(owner, verb).await {
            Ok(Answer::Released { .. }) => Ok(()),
            other => Err(format!("{other:?}").into()),
        }
    }

    /// One hold by script and one by plain commands. Returns the token of the second.
    async fn warm(&self) -> Result<u64, Failed> {
        let mut token = 0;
        for _ in 0..2 {
            let owner = owner();
            token = self.acquire(&owner).await?;
            self.release(&owner).await?;
        }
        Ok(token)
    }
}

fn acquire(wait_ms: Option<u64>) -> Verb {
    let (fence, bind) = (Fence::Assign, Liveness::Process);
    Verb::Acquire { ttl_ms: 30_000, hold: 1, fence, wait_ms, listens: None, bind }
}

fn owner() -> Owner {
    Owner::new("x").expect("an owner")
}

fn play<F>(scenario: impl Fn(Scene) -> F) -> Outcome
where
    F: Future<Output = Outcome> + Send + 'static,
{
    play_with(LockSpec::Mutex, &scenario)?;
    play_with(LockSpec::Queue(QueueSpec::FAIR), &scenario)
}

fn play_with<F>(spec: LockSpec, scenario: &impl Fn(Scene) -> F) -> Outcome
where
    F: Future<Output = Outcome> + Send + 'static,
{
    let sim = Sim::new(Chooser::replay(Vec::new()));
    let network = SimTransport::new(&sim, false).direct();
    let process = sim.process(Clock { offset: 1_000 * SECOND, ppm: 0 }, 1);
    let target = Target::parse("redis://network").expect("a URL");
    let store = Redis::over(target, Arc::new(network.clone()), Arc::clone(&process) as _);
    super::play(&sim, process.id(), scenario(Scene { spec, store, network }), 60 * SECOND)
}

/// A promoted replica has a counter below tokens already issued.
pub(super) fn a_connection_begins_with_a_token_above_the_clock() -> Outcome {
    play(|scene| async move {
        match scene.acquire(&owner()).await? {
            EPOCH_US.. => Ok(()),
            token => Err(format!("{token} is below what others may have been given").into()),
        }
    })
}

pub(super) fn a_lost_counter_is_noticed() -> Outcome {
    play(|scene| async move {
        let before = scene.warm().await?;
        scene.network.lose_counter();
        match scene.acquire(&owner()).await? {
            token if token > before => Ok(()),
            token => Err(format!("{token} follows {before}").into()),
        }
    })
}

/// An operator ends the hold between its first and its last command, and another client takes the lock.
pub(super) fn a_lock_that_is_taken_meanwhile_is_not_held() -> Outcome {
    play(|scene| async move {
        scene.warm().await?;
        let (network, other) = (scene.network.clone(), owner());
        let first = AtomicBool::new(true);
        scene.network.before("INCR", move |server| {
            if first.swap(false, Ordering::Relaxed) {
                server.take_over("x", &other);
            }
        });
        match scene.acquire(&owner()).await {
            // The other client has a mutex.
            Err(busy) if busy.0.contains("Busy") || busy.0.contains("Mismatch") => Ok(()),
            told => Err(format!("{told:?} beside {:?}", network.holder("x")).into()),
        }
    })
}

/// Another client has come since, so the hold is a ticket in a queue.
pub(super) fn a_release_leaves_the_queue_to_its_waiters() -> Outcome {
    play_with(LockSpec::Queue(QueueSpec::FAIR), &|scene: Scene| async move {
        scene.warm().await?;
        let (holder, waiter) = (owner(), owner());
        scene.acquire(&holder).await?;
        let place = scene.ask(&waiter, acquire(Some(5_000))).await;
        scene.release(&holder).await?;
        match (place, scene.ask(&waiter, acquire(None)).await) {
            (Ok(Answer::Waiting { ticket, .. }), Ok(Answer::Held { fence })) if fence == ticket => Ok(()),
            told => Err(format!("the waiter was told {told:?}").into()),
        }
    })
}

/// The server is out of memory, or has lost its replicas, at the INCR, and still is when the script runs.
pub(super) fn a_refusal_leaves_nothing_behind() -> Outcome {
    left_by("-OOM command not allowed when used memory > 'maxmemory'.\r\n")?;
    left_by("-NOREPLICAS Not enough good replicas to write.\r\n")
}

fn left_by(refusal: &'static str) -> Outcome {
    play(move |scene| async move {
        scene.warm().await?;
        scene.network.answer(move |words| {
            let is_refused = words[0] == "INCR" || words.contains(&"acquire");
            is_refused.then(|| refusal.to_owned())
        });
        let told = scene.acquire(&owner()).await;
        match scene.network.holder("x") {
            None if told.is_err() => Ok(()),
            holder => Err(format!("{told:?}, and {holder:?} holds").into()),
        }
    })
}
