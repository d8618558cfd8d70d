//! Schedules written by hand, for what no regime draws, such as a lease of a minute, or a future that is not
//! polled when its answer arrives. Each fails with its planted bug, and passes without.
//!
//! | module | what it holds |
//! |---|---|
//! | `forced` | holds ended by force |
//! | `lost` | requests without an answer, beside waiters |
//! | `pairs` | mutexes by plain commands, on a server byte by byte |
//! | `renewals` | batched renewals, on a server byte by byte |
//! | `turns` | processes that contend for one mutex |
//! | `uses` | caches, jobs that run once, elections |

mod forced;
mod lost;
mod pairs;
mod renewals;
mod turns;
mod uses;

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::FutureExt;
use tenure::internals::planted::Bug;
use tenure::internals::protocol::{LockSpec, QueueSpec};
use tenure::internals::{Runtime, locks};
use tenure::{Guard, LockName, Locks, Options, Owner, Renewal};

use crate::sim::chooser::Chooser;
use crate::sim::clock::{Clock, MS, SECOND, TrueTime};
use crate::sim::executor::{Process, ProcessId, Sim, lock};
use crate::sim::network::Network;
use crate::sim::regime::Faults;

/// The failure, if there is one.
pub type Outcome = Result<(), Failed>;

/// Why a scenario failed: the text of any error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed(pub String);

impl<E: fmt::Display> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Each scenario, and the bug that makes it fail.
pub const ALL: [(Bug, fn() -> Outcome); 26] = [
    (Bug::GrantUnverified, a_grant_that_is_handed_out_after_a_restart_is_verified),
    (Bug::RetriesByTtl, a_hold_that_was_handed_on_survives_a_refusing_server),
    (Bug::DetachedTakenForLost, a_renewal_beside_a_detach_costs_nothing),
    (Bug::SweepStops, a_dead_crowd_keeps_nobody_waiting),
    (Bug::LettingInStops, a_crowd_of_readers_is_let_in_at_once),
    (Bug::SilenceOfOne, lost::a_request_that_is_not_sent_is_no_silence_for_other_waiters),
    (Bug::PairUnraised, pairs::a_connection_begins_with_a_token_above_the_clock),
    (Bug::PairUncounted, pairs::a_lost_counter_is_noticed),
    (Bug::PairUnread, pairs::a_lock_that_is_taken_meanwhile_is_not_held),
    (Bug::PairQueueDeleted, pairs::a_release_leaves_the_queue_to_its_waiters),
    (Bug::PairLeftBehind, pairs::a_refusal_leaves_nothing_behind),
    (Bug::OneRenewedForAll, renewals::the_one_of_many_that_was_taken_over_is_lost),
    (Bug::PartTakenForAll, renewals::those_beside_one_that_is_gone_are_kept),
    (Bug::QuestionGivenUp, a_hold_without_renewals_is_asked_about_until_there_is_an_answer),
    (Bug::BoundTakenForAnswer, one_of_many_that_is_gone_is_lost_also_behind_a_dead_crowd),
    (Bug::ForcedUnheard, forced::who_is_forced_out_is_told_at_once),
    (Bug::MessageEndsHold, forced::a_forged_message_ends_no_hold),
    (Bug::EachMessageAsks, forced::forged_messages_make_few_requests),
    (Bug::NeverYields, turns::processes_share_a_mutex),
    (Bug::RecordOfAnyone, uses::a_value_from_before_an_invalidation_is_not_kept),
    (Bug::WindowFromClient, uses::hosts_whose_clocks_differ_run_a_job_once_in_a_window),
    (Bug::WindowRepeats, uses::hosts_whose_clocks_are_hours_apart_run_a_job_once_in_a_window),
    (Bug::RecordedAfterRun, uses::hosts_whose_clocks_are_hours_apart_run_a_job_once_in_a_window),
    (Bug::AgainReopens, uses::hosts_whose_clocks_are_hours_apart_run_a_job_once_in_a_window),
    (Bug::TermSkipped, uses::an_observer_is_told_of_every_term),
    (Bug::LeaderToldLate, uses::a_stopped_leader_does_not_say_that_it_leads),
];

/// A process whose tasks contend for a mutex that no other process uses.
///
/// # Errors
/// The number of turns, if there were too few.
pub fn a_process_alone_leaves_few_turns() -> Outcome {
    turns::a_process_alone_leaves_few_turns()?;
    turns::a_newcomer_gets_a_turn_of_a_process_that_was_alone()
}

/// One server, one process, and a latency of one millisecond.
#[derive(Clone)]
struct Scene {
    sim: Sim,
    network: Network,
    process: Arc<Process>,
    locks: Locks,
}

impl Scene {
    fn new(options: Options) -> Self {
        let sim = Sim::new(Chooser::replay(Vec::new()));
        let clock = Clock { offset: 1_000 * SECOND, ppm: 0 };
        let faults = Faults { latency: (MS, MS), ..Faults::NONE };
        let network = Network::member(&sim, "sim:", clock, faults);
        let process = sim.process(clock, 1);
        let store = Arc::new(network.store(&process));
        let locks = locks(store, Arc::clone(&process) as _, options).expect("the options are right");
        Self { sim, network, process, locks }
    }

    /// Another process of the same server.
    fn other(&self, options: Options) -> Self {
        let (sim, network) = (self.sim.clone(), self.network.clone());
        let process = sim.process(self.process.clock(), 2);
        let store = Arc::new(network.store(&process));
        let locks = locks(store, Arc::clone(&process) as _, options).expect("the options are right");
        Self { sim, network, process, locks }
    }

    fn play<F>(self, scenario: impl FnOnce(Self) -> F) -> Outcome
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let (sim, process) = (self.sim.clone(), self.process.id());
        play(&sim, process, scenario(self), 300 * SECOND)
    }

    async fn sleep(&self, time: TrueTime) {
        self.process.sleep_until(self.process.now() + Duration::from_nanos(time)).await;
    }
}

/// Polls a future once.
async fn begin<F: Future>(future: &mut std::pin::Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

/// Runs a schedule until this task of a process has ended.
fn play(
    sim: &Sim,
    process: ProcessId,
    task: impl Future<Output = Outcome> + Send + 'static,
    limit: TrueTime,
) -> Outcome {
    let outcome = Arc::new(Mutex::new(Err("it has not ended".into())));
    let (told, ended) = (Arc::clone(&outcome), sim.clone());
    let task = async move {
        let came_to = task.await;
        *lock(&told) = came_to;
        ended.halt();
    };
    sim.spawn(process, task.boxed());
    sim.run(limit, 3_000_000);
    sim.end();
    lock(&outcome).clone()
}

/// The answer arrives, the server restarts without data, and only then is the future polled.
fn a_grant_that_is_handed_out_after_a_restart_is_verified() -> Outcome {
    // As the process's first hold, and beside another one.
    for others in [0, 1] {
        let scene = Scene::new(Options::new().ttl(Duration::from_secs(30)));
        scene.play(|scene| async move {
            let mut kept: Vec<Guard> = Vec::new();
            for _ in 0..others {
                kept.push(scene.locks.mutex("other")?.lock().await?);
            }
            let mutex = scene.locks.mutex("x")?;
            let mut lock = pin!(mutex.lock());
            if begin(&mut lock).await.is_some() {
                return Err("it was granted before it was asked for".into());
            }
            scene.sleep(10 * MS).await;
            scene.network.forget();
            scene.sleep(100 * MS).await;
            let guard = lock.await?;
            scene.sleep(10 * MS).await;
            match guard.is_held() {
                true => {
                    Err(format!("a guard says that it holds what a restart forgot ({others} others)").into())
                }
                false => Ok(()),
            }
        })?;
    }
    Ok(())
}

/// The server restarts without data, and answers nothing for a second.
fn a_hold_without_renewals_is_asked_about_until_there_is_an_answer() -> Outcome {
    let options = Options::new().ttl(Duration::from_secs(60)).renewal(Renewal::Off);
    Scene::new(options).play(|scene| async move {
        let guard = scene.locks.mutex("x")?.lock().await?;
        scene.network.refuse(1_000);
        scene.network.forget();
        scene.sleep(SECOND).await;
        if !guard.is_held() {
            return Err("a hold is lost before any answer".into());
        }
        scene.network.refuse(0);
        scene.sleep(10 * SECOND).await;
        match guard.is_held() {
            true => Err("a guard says that it holds what a restart forgot".into()),
            false => Ok(()),
        }
    })
}

/// The server refuses requests for 0.4 s, half a second after a lock with a lease of a minute was handed over
/// with the remaining lease of the waiter's place.
fn a_hold_that_was_handed_on_survives_a_refusing_server() -> Outcome {
    Scene::new(Options::new().ttl(Duration::from_secs(60))).play(|scene| async move {
        let lock = scene.locks.fair_mutex("x")?;
        let first = lock.lock().await?;
        let mut next = pin!(lock.lock());
        if begin(&mut next).await.is_some() {
            return Err("two hold it".into());
        }
        scene.sleep(10 * MS).await;
        if begin(&mut next).await.is_some() {
            return Err("two hold it".into());
        }
        // Part of its place's lease has passed when it is granted.
        scene.sleep(SECOND).await;
        first.release().await?;
        let guard = next.await?;
        scene.sleep(450 * MS).await;
        scene.network.refuse(1_000);
        scene.sleep(400 * MS).await;
        scene.network.refuse(0);
        scene.sleep(10 * SECOND).await;
        match guard.is_held() {
            true => Ok(()),
            false => Err("a hold of a minute is lost for a server that refused for 0.4 s".into()),
        }
    })
}

/// A renewal is sent while a request that detaches the hold is in flight, and is answered after it.
fn a_renewal_beside_a_detach_costs_nothing() -> Outcome {
    let owner: Owner = "draw@host:1/00112233445566778899aabbccddeeff".parse()?;
    Scene::new(Options::new().ttl(Duration::from_secs(3))).play(|scene| async move {
        let lock = scene.locks.reentrant_mutex("x", &owner)?;
        let guard = lock.lock().await?;
        // The renewal is due a third of the lease after the acquisition was sent.
        scene.sleep(SECOND - 250 * MS).await;
        let mut detached = pin!(guard.detach());
        if begin(&mut detached).await.is_some() {
            return Err("it was detached before any client was asked".into());
        }
        // The answer is not polled while the renewal is sent and answered.
        scene.sleep(300 * MS).await;
        let owner = detached.await.map_err(|error| format!("a detach said {error}"))?;
        match scene.locks.resume("x", &owner).await? {
            Some(_) => Ok(()),
            None => Err("a detached hold was released".into()),
        }
    })
}

/// The number of waiters in a [`dead_crowd`].
const DEAD: usize = 600;

/// A process asks for the fair mutex `x` many times, and dies. Its waiters have places, but have not registered
/// that they listen: they are not removed on their grants, but lapse.
async fn dead_crowd(scene: &Scene) -> Outcome {
    let crowd = scene.other(Options::new().ttl(Duration::from_secs(3)));
    for _ in 0..DEAD {
        let theirs = crowd.locks.fair_mutex("x")?;
        scene.sim.spawn(crowd.process.id(), Box::pin(async move { drop(theirs.lock().await) }));
    }
    scene.sleep(2 * MS).await;
    scene.network.silence(crowd.process.id());
    scene.sim.kill(crowd.process.id());
    Ok(())
}

/// A process with six hundred waiters dies. The next waiter, in another process, is served once their places
/// have lapsed.
fn a_dead_crowd_keeps_nobody_waiting() -> Outcome {
    Scene::new(Options::new().ttl(Duration::from_secs(3))).play(|scene| async move {
        let lock = scene.locks.fair_mutex("x")?;
        let held = lock.lock().await?;
        dead_crowd(&scene).await?;
        held.release().await?;
        // Places last as long as the lease, and the one that was granted is skipped once its own has
        // lapsed.
        let next = lock.try_lock_for(Duration::from_millis(5_500)).await?;
        next.map(drop).ok_or_else(|| format!("{DEAD} dead waiters block a living one").into())
    })
}

/// A process batches the renewals of two locks. One is ended by force, and the request that would report it
/// stops at its bound, because many places there have lapsed.
fn one_of_many_that_is_gone_is_lost_also_behind_a_dead_crowd() -> Outcome {
    Scene::new(Options::new().ttl(Duration::from_secs(3))).play(|scene| async move {
        let store = Arc::new(scene.network.store(&scene.process).renewing_together());
        let options = Options::new().ttl(Duration::from_secs(3));
        let locks = locks(store, Arc::clone(&scene.process) as _, options)?;
        let gone = locks.fair_mutex("x")?.lock().await?;
        let other = locks.fair_mutex("y")?.lock().await?;
        dead_crowd(&scene).await?;
        // Their places have lapsed, and the renewals of the third second are over.
        scene.sleep(3 * SECOND + 500 * MS).await;
        if !gone.is_held() || !other.is_held() {
            return Err("a lock is lost though its process renews it".into());
        }
        scene.network.force(&LockName::new("x")?, LockSpec::Queue(QueueSpec::FAIR));
        scene.sleep(SECOND).await;
        match (gone.is_held(), other.is_held()) {
            (false, true) => Ok(()),
            (true, _) => Err("a renewal prolongs a hold that the server has not".into()),
            (_, false) => Err("the hold beside it is lost".into()),
        }
    })
}

/// A writer releases while two hundred readers of another process wait.
fn a_crowd_of_readers_is_let_in_at_once() -> Outcome {
    const READERS: usize = 200;
    Scene::new(Options::new()).play(|scene| async move {
        let crowd = scene.other(Options::new());
        let lock = scene.locks.rwlock("x")?;
        let writer = lock.write().await?;
        let inside = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..READERS {
            let (lock, inside) = (crowd.locks.rwlock("x")?, Arc::clone(&inside));
            let read = async move {
                let guard = lock.read().await;
                inside.lock().expect("one thread").push(guard);
            };
            scene.sim.spawn(crowd.process.id(), Box::pin(read));
        }
        // Long enough for all to queue, but too short for their places to be refreshed.
        scene.sleep(SECOND).await;
        writer.release().await?;
        scene.sleep(50 * MS).await;
        match inside.lock().expect("one thread").len() {
            READERS => Ok(()),
            some => Err(format!("{some} of {READERS} readers are let in at once").into()),
        }
    })
}
