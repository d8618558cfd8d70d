//! Caches, jobs that run once, and elections: on one store in memory or one server that compares and swaps,
//! between processes whose clocks differ.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, join, join_all, select};
use tenure::internals::store::cas::Cas;
use tenure::internals::store::memory::Memory;
use tenure::internals::{Moment, Runtime, Store, locks};
use tenure::{Change, Locks, Options};

use super::{Failed, Outcome};
use crate::sim::cas::Server;
use crate::sim::chooser::Chooser;
use crate::sim::clock::{Clock, MS, SECOND};
use crate::sim::executor::{Process, Sim};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

/// A process, and its locks.
struct Host {
    sim: Sim,
    process: Arc<Process>,
    wall: Arc<Mutex<Wall>>,
    locks: Locks,
}

/// A wall clock.
#[derive(Clone, Copy, Debug, Default)]
struct Wall {
    ahead_us: i64,
    stopped_us: Option<u64>,
}

/// A process with a wall clock that can be set.
#[derive(Debug)]
struct Walled {
    process: Arc<Process>,
    wall: Arc<Mutex<Wall>>,
}

impl Runtime for Walled {
    fn now(&self) -> Moment {
        self.process.now()
    }

    fn unix_micros(&self) -> u64 {
        let Wall { ahead_us, stopped_us } = *self.wall.lock().expect("one thread");
        stopped_us.unwrap_or_else(|| self.process.unix_micros().saturating_add_signed(ahead_us))
    }

    fn random(&self) -> u64 {
        self.process.random()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        self.process.sleep_until(at)
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.process.spawn(task);
    }
}

impl Host {
    async fn sleep(&self, time: Duration) {
        self.process.sleep_until(self.process.now() + time).await;
    }

    /// Sets the wall clock ahead by these minutes, and lets it run or stand still.
    fn set_wall(&self, ahead: i64, runs: bool) {
        let ahead_us = ahead * 60_000_000;
        let stopped_us = (!runs).then(|| self.process.unix_micros().saturating_add_signed(ahead_us));
        *self.wall.lock().expect("one thread") = Wall { ahead_us, stopped_us };
    }
}

/// Opens a client of the one store of a scenario.
type Opens = Box<dyn Fn(&Arc<Process>, Arc<dyn Runtime>) -> Arc<dyn Store>>;

/// A store in memory.
fn memory(server: &Arc<Process>) -> Opens {
    let store = Arc::new(Memory::new(Arc::clone(server) as _, "memory:"));
    Box::new(move |_, _| Arc::clone(&store) as _)
}

/// A server that compares and swaps.
fn cas(server: &Arc<Process>) -> Opens {
    let server = Server::new(Arc::clone(server) as _);
    Box::new(move |process, runtime| {
        Arc::new(Cas::new(Arc::new(server.of(process.id())), "cas:sim", runtime))
    })
}

/// Plays a scenario between hosts whose clocks are ahead of the store's by these many milliseconds.
fn play<F>(
    store: fn(&Arc<Process>) -> Opens,
    ahead_ms: &[i64],
    scenario: impl FnOnce(Vec<Host>) -> F,
) -> Outcome
where
    F: Future<Output = Outcome> + Send + 'static,
{
    let sim = Sim::new(Chooser::replay(Vec::new()));
    let clock = |ahead_ms: i64| Clock {
        offset: (1_000 * SECOND).saturating_add_signed(ahead_ms * MS as i64),
        ppm: 0,
    };
    let server = sim.process(clock(0), 1);
    let open = store(&server);
    let hosts = ahead_ms.iter().zip(2..).map(|(ahead_ms, seed)| {
        let (process, wall) = (sim.process(clock(*ahead_ms), seed), Arc::default());
        let runtime: Arc<dyn Runtime> =
            Arc::new(Walled { process: Arc::clone(&process), wall: Arc::clone(&wall) });
        let locks = locks(open(&process, Arc::clone(&runtime)), runtime, Options::new());
        Host { sim: sim.clone(), process, wall, locks: locks.expect("the options are right") }
    });
    super::play(&sim, server.id(), scenario(hosts.collect()), 100_000 * SECOND)
}

/// One host computes a value while another invalidates it and computes a newer one.
pub(super) fn a_value_from_before_an_invalidation_is_not_kept() -> Outcome {
    play(memory, &[0, 0], |hosts| async move {
        let cache = |host: &Host| host.locks.cache("x");
        let (slow, quick) = (cache(&hosts[0])?, cache(&hosts[1])?);
        let computes = slow.get_or_compute(MINUTE, async || {
            hosts[0].sleep(Duration::from_secs(2)).await;
            Ok::<_, fmt::Error>("before".to_owned())
        });
        let forgets = async {
            hosts[1].sleep(Duration::from_secs(1)).await;
            quick.invalidate().await?;
            quick.get_or_compute(MINUTE, async || Ok::<_, fmt::Error>("after".to_owned())).await
        };
        let (before, after) = join(computes, forgets).await;
        let _ = (before?, after?);
        match quick.get::<String>().await?.as_deref() {
            Some("after") => Ok(()),
            other => Err(format!("{other:?} is kept, which was read before the invalidation").into()),
        }
    })
}

/// Hosts with clocks ahead and behind try again and again.
pub(super) fn hosts_whose_clocks_differ_run_a_job_once_in_a_window() -> Outcome {
    play(memory, &[-400, -150, 0, 250, 400], |hosts| async move {
        let begun = Mutex::new(Vec::new());
        let asks = hosts.iter().map(|host| {
            let begun = &begun;
            async move {
                let job = host.locks.once_per("x", Duration::from_secs(1))?;
                for _ in 0..300 {
                    let ran = job.run(async |_| Ok::<_, fmt::Error>(())).await?;
                    if ran.is_some() {
                        let last = job.last().await?.ok_or("it ran")?;
                        begun.lock().expect("one thread").push(last.begun);
                    }
                    host.sleep(Duration::from_millis(35)).await;
                }
                Ok::<_, Failed>(())
            }
        });
        for asked in join_all(asks).await {
            asked?;
        }
        let begun = begun.into_inner().expect("one thread");
        let mut windows: Vec<_> = begun
            .iter()
            .map(|begun| begun.duration_since(std::time::UNIX_EPOCH).map(|since| since.as_secs()))
            .collect::<Result<_, _>>()?;
        windows.sort_unstable();
        match windows.windows(2).find(|two| two[0] == two[1]) {
            Some(twice) => Err(format!("a job began twice in the window {}", twice[0]).into()),
            None if windows.len() < 9 => {
                Err(format!("only {} windows of 10 had a run", windows.len()).into())
            }
            None => Ok(()),
        }
    })
}

/// Without a clock of the store: two hosts are hours ahead, of which the first drops each run in its middle;
/// others are behind, and one clock jumps and one stops. Two hosts also run the job by
/// hand, and some of these runs fail.
pub(super) fn hosts_whose_clocks_are_hours_apart_run_a_job_once_in_a_window() -> Outcome {
    const ASKS: u32 = 200;
    const AHEAD: [i64; 6] = [300, 290, 0, -180, 0, 300];
    /// The hosts with runs by hand, and before which of their requests.
    const BY_HAND: [(usize, &[u32]); 2] = [(1, &[40, 81, 120, 161]), (2, &[181])];
    play(cas, &[0; AHEAD.len()], |hosts| async move {
        let begun = Mutex::new(BTreeMap::<_, u32>::new());
        let (begun, plain, by_hand) = (&begun, &AtomicU64::new(0), &AtomicU64::new(0));
        let asks = hosts.iter().enumerate().map(|(at, host)| {
            async move {
                host.set_wall(AHEAD[at], true);
                let job = host.locks.once_per("x", HOUR)?;
                for ask in 0..ASKS {
                    match (at, ask) {
                        (4, 30 | 120) => host.set_wall(310, true),
                        (4, 60) => host.set_wall(-60, true),
                        (4, 150) => host.set_wall(420, true),
                        (5, 20) => host.set_wall(300, false),
                        _ => {}
                    }
                    if BY_HAND.iter().any(|(host, asks)| *host == at && asks.contains(&ask)) {
                        let again = job.clone().again(true);
                        let run = again.run(async |turn| {
                            by_hand.fetch_add(1, Ordering::Relaxed);
                            // A record that was far ahead is replaced, and with it those runs are forgotten.
                            let window = turn.window().start;
                            begun.lock().expect("one thread").retain(|start, _| *start <= window);
                            host.sleep(MINUTE).await;
                            if ask % 2 == 0 { Err(fmt::Error) } else { Ok(()) }
                        });
                        run.await?;
                    }
                    let run = job.run(async |turn| {
                        plain.fetch_add(1, Ordering::Relaxed);
                        *begun.lock().expect("one thread").entry(turn.window().start).or_default() += 1;
                        host.sleep(MINUTE).await;
                        Ok::<_, fmt::Error>(())
                    });
                    let limit = if at == 0 { MINUTE / 2 } else { 3 * MINUTE };
                    let ran = select(Box::pin(run), Box::pin(host.sleep(limit))).await;
                    if let Either::Left((Err(error), _)) = ran
                        && !(error.is_refused() && error.to_string().contains("far ahead"))
                    {
                        return Err(error.into());
                    }
                    host.sleep(7 * MINUTE + Duration::from_secs(at as u64)).await;
                }
                Ok::<_, Failed>(())
            }
        });
        for asked in join_all(asks).await {
            asked?;
        }
        let begun = begun.lock().expect("one thread");
        let [plain, by_hand] = [plain, by_hand].map(|runs| runs.load(Ordering::Relaxed));
        match begun.iter().find(|(_, count)| **count > 1) {
            Some((window, count)) => {
                Err(format!("a job ran {count} times in the window from {window:?}").into())
            }
            None if by_hand < 4 => Err(format!("only {by_hand} runs by hand").into()),
            None if plain < 20 => Err(format!("only {plain} windows had a run").into()),
            None => Ok(()),
        }
    })
}

/// One leader resigns and another is elected before the observer polls.
pub(super) fn an_observer_is_told_of_every_term() -> Outcome {
    observed(memory)?;
    observed(cas)
}

fn observed(store: fn(&Arc<Process>) -> Opens) -> Outcome {
    play(store, &[0, 0], |hosts| async move {
        let election = |host: &Host| host.locks.election("x", "");
        let (one, other) = (election(&hosts[0])?, election(&hosts[1])?);
        let mut observer = other.observe();
        let first = one.campaign().await?;
        let mut terms = vec![first.fence()];
        let mut told = vec![fence(&observer.next().await?)?];
        first.resign().await?;
        for candidate in [&other, &one] {
            let term = candidate.campaign().await?;
            terms.push(term.fence());
            term.resign().await?;
        }
        while told.last() != terms.last() {
            told.push(fence(&observer.next().await?)?);
        }
        told.dedup();
        if told == terms { Ok(()) } else { Err(format!("told of {told:?}, and led have {terms:?}").into()) }
    })
}

/// Two leaders in one process, one idle and one working, are paused for longer than their lease. The process
/// resumes after others have become leader.
pub(super) fn a_stopped_leader_does_not_say_that_it_leads() -> Outcome {
    stopped(memory)?;
    stopped(cas)
}

fn stopped(store: fn(&Arc<Process>) -> Opens) -> Outcome {
    const STEP: Duration = Duration::from_millis(10);
    play(store, &[0, 0], |hosts| async move {
        let (stopped, next) = (&hosts[0], &hosts[1]);
        let asked = Arc::new(AtomicU64::new(0));
        let worked = Arc::new(AtomicU64::new(0));
        let (election, process) = (stopped.locks.election("asks", "")?, Arc::clone(&stopped.process));
        let steps = Arc::clone(&asked);
        let asks = async move {
            let Ok(term) = election.campaign().await else { return };
            loop {
                if term.is_current() {
                    steps.fetch_add(1, Ordering::Relaxed);
                }
                process.sleep_until(process.now() + STEP).await;
            }
        };
        stopped.sim.spawn(stopped.process.id(), Box::pin(asks));
        let (election, process) = (stopped.locks.election("works", "")?, Arc::clone(&stopped.process));
        let steps = Arc::clone(&worked);
        let works = async move {
            let work = election.lead(async |_| {
                loop {
                    steps.fetch_add(1, Ordering::Relaxed);
                    process.sleep_until(process.now() + STEP).await;
                }
            });
            let _: tenure::Result<()> = work.await;
        };
        stopped.sim.spawn(stopped.process.id(), Box::pin(works));
        next.sleep(Duration::from_secs(20)).await;
        stopped.sim.pause(stopped.process.id());
        let steps = || (asked.load(Ordering::Relaxed), worked.load(Ordering::Relaxed));
        let before = steps();
        if before.0 < 1_000 || before.1 < 1_000 {
            return Err(format!("they led for {before:?} steps of 2,000").into());
        }
        let asks = next.locks.election("asks", "")?;
        let works = next.locks.election("works", "")?;
        let (asks, works) = join(asks.campaign(), works.campaign()).await;
        let _terms = (asks?, works?);
        stopped.sim.resume(stopped.process.id());
        next.sleep(Duration::from_secs(5)).await;
        match steps() {
            after if after == before => Ok(()),
            after => Err(format!("{before:?} steps before another led, and {after:?} in all").into()),
        }
    })
}

fn fence(change: &Change) -> Result<u64, Failed> {
    match change {
        Change::Elected(leader) | Change::Updated(leader) | Change::Resigned(leader) => Ok(leader.fence),
        other => Err(format!("{other:?}").into()),
    }
}
