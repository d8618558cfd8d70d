//! Several processes take turns at one lock of each kind, while processes stop and die, connections are cut,
//! and holds are ended by force. A ledger checks what they observe.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::FutureExt;
use tenure::internals::Runtime;
use tenure::internals::planted::Bug;
use tenure::{Guard, Locks, Owner, Status};
use tenure_testkit::sim::clock::{MS, SECOND};
use tenure_testkit::sim::executor::OUTSIDE;
use tenure_testkit::{plant, setting};

use super::model::Faults;
use super::table::Mistake;
use super::{World, lock};

const PROCESSES: usize = 3;
const TASKS: usize = 2;
const TURNS: usize = 5;
/// Additional holds, which each process renews in batches.
const BESIDE: usize = 12;
/// Once faults stop, what is left of requests without answers is gone after this time.
const SETTLED: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Mutex,
    Fair,
    Reentrant,
    RwLock,
    Semaphore,
}

const KINDS: [Kind; 5] = [Kind::Mutex, Kind::Fair, Kind::Reentrant, Kind::RwLock, Kind::Semaphore];

impl Kind {
    fn capacity(self) -> u32 {
        match self {
            Self::Mutex | Self::Fair | Self::Reentrant => 1,
            Self::RwLock => 8,
            Self::Semaphore => 3,
        }
    }

    /// Acquires the lock; returns the guard and its weight.
    async fn take(self, locks: &Locks, owner: &Owner, random: u64) -> Result<Option<(Guard, u32)>, String> {
        // Some give up soon, and what they may have been granted is undone.
        let is_patient = random >> 32 & 3 > 0;
        let limit =
            if is_patient { Duration::from_secs(60) } else { Duration::from_millis(random >> 34 & 255) };
        // A lost answer is not a failure.
        let got = match self {
            Self::Mutex => locks.mutex("x").expect("a name").try_lock_for(limit).await,
            Self::Fair => locks.fair_mutex("x").expect("a name").try_lock_for(limit).await,
            Self::Reentrant => locks.reentrant_mutex("x", owner).expect("a name").try_lock_for(limit).await,
            Self::RwLock if random.is_multiple_of(3) => {
                let got = locks.rwlock("x").expect("a name").try_write_for(limit).await;
                got.map(|got| got.map(Guard::from))
            }
            Self::RwLock => {
                let got = locks.rwlock("x").expect("a name").try_read_for(limit).await;
                got.map(|got| got.map(Guard::from))
            }
            Self::Semaphore => {
                let weight = 1 + (random % 3) as u32;
                locks.semaphore("x", 3).expect("a name").try_acquire_many_for(weight, limit).await
            }
        };
        let weight = match self {
            Self::RwLock if !random.is_multiple_of(3) => 1,
            Self::Semaphore => 1 + (random % 3) as u32,
            _ => self.capacity(),
        };
        match got {
            Ok(Some(guard)) => Ok(Some((guard, weight))),
            Ok(None) if is_patient => Err("progress: a minute is not enough for a turn".into()),
            Ok(None) | Err(_) => Ok(None),
        }
    }
}

/// The holds, as far as the tasks know.
struct Ledger {
    capacity: u32,
    held: Vec<(Arc<Guard>, u32)>,
    tokens: BTreeSet<u64>,
    /// The newest token of an exclusive hold.
    alone: u64,
    /// Number of forced releases in progress.
    forcing: u32,
    /// Older grants may have been ended by force.
    known_after: u64,
}

impl Ledger {
    fn new(capacity: u32) -> Self {
        Self { capacity, held: Vec::new(), tokens: BTreeSet::new(), alone: 0, forcing: 0, known_after: 0 }
    }

    fn enter(&mut self, guard: &Arc<Guard>, weight: u32) -> Result<(), String> {
        let token = guard.fence();
        let newest = match weight == self.capacity {
            true => self.tokens.last().copied().unwrap_or(0),
            false => self.alone,
        };
        let is_known = self.forcing == 0 && token > self.known_after;
        if !self.tokens.insert(token) || is_known && token <= newest {
            return Err(format!("tokens: {token} after {newest}"));
        }
        if weight == self.capacity {
            self.alone = self.alone.max(token);
        }
        if !is_known {
            return Ok(());
        }
        let others = self.held.iter().filter(|(other, _)| other.is_held());
        let others: Vec<(u64, u32)> = others.map(|(other, weight)| (other.fence(), *weight)).collect();
        if others.iter().map(|(_, weight)| weight).sum::<u32>() + weight > self.capacity {
            return Err(format!("exclusion: {token} of {weight} beside {others:?}"));
        }
        self.held.push((Arc::clone(guard), weight));
        Ok(())
    }

    fn leave(&mut self, guard: &Arc<Guard>) {
        self.held.retain(|(held, _)| !Arc::ptr_eq(held, guard));
    }
}

/// The faults in the schedule of a seed.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    kind: Kind,
    faults: Faults,
    ttl: Duration,
    pauses: bool,
    forces: bool,
    checks_in: bool,
    kills: bool,
}

impl Trouble {
    fn of(seed: u64, mistake: Mistake) -> Self {
        let none = Faults { mistake, ..Faults::default() };
        let faults = match seed / 5 % 6 {
            0 => none,
            1 => Faults { late: 20, locked: 20, ..none },
            2 => Faults { cut: 25, ..none },
            3 => Faults { silent: 10, late: 10, ..none },
            4 => Faults { restart: 8, back: 10, ..none },
            _ => Faults { late: 8, cut: 12, silent: 4, restart: 3, locked: 10, back: 4, ..none },
        };
        let is_long = seed / 30 % 2 == 1;
        let ttl = if is_long { Duration::from_secs(20) } else { Duration::from_millis(600) };
        Self {
            kind: KINDS[(seed % 5) as usize],
            faults,
            ttl,
            pauses: seed / 5 % 6 != 2,
            forces: (seed / 7).is_multiple_of(3),
            checks_in: (seed / 11).is_multiple_of(2),
            kills: !is_long && (seed / 13).is_multiple_of(4),
        }
    }
}

fn crowd(seed: u64, mistake: Mistake) -> Result<(), String> {
    let trouble = Trouble::of(seed, mistake);
    let world = World::new(seed, PROCESSES, trouble.faults);
    let ledger = Arc::new(Mutex::new(Ledger::new(trouble.kind.capacity())));
    let clients: Vec<Locks> = (0..PROCESSES).map(|process| world.client(process, trouble.ttl)).collect();
    for (process, locks) in clients.iter().enumerate() {
        for _ in 0..TASKS {
            turns(&world, trouble, process, locks.clone(), Arc::clone(&ledger));
        }
        beside(&world, trouble, process, locks.clone());
    }
    if trouble.forces {
        forces(&world, trouble, clients[0].clone(), Arc::clone(&ledger));
    }
    disturb(&world, trouble);
    settle(&world, trouble, seed, clients);
    world.run(4 * 3_600 * SECOND).map_err(|wrong| format!("{wrong} (seed {seed}, {trouble:?})"))
}

fn turns(world: &World, trouble: Trouble, process: usize, locks: Locks, ledger: Arc<Mutex<Ledger>>) {
    let (sleep, model) = (world.sleep(process), world.model.clone());
    let runtime = Arc::clone(&world.processes[process]);
    world.spawn(process, "turns", async move {
        for turn in 0..TURNS {
            // With the same owner it would be granted again before its release.
            let owner: Owner = format!("o@h:1/{:032x}", runtime.random_long()).parse().expect("an owner");
            let taken = trouble.kind.take(&locks, &owner, runtime.random()).await?;
            let Some((guard, weight)) = taken else { continue };
            let guard = Arc::new(guard);
            if guard.is_held() {
                lock(&ledger).enter(&guard, weight)?;
            }
            let checks_in = trouble.checks_in && runtime.random().is_multiple_of(3);
            let by = guard.owner().to_string();
            let transaction = checks_in.then(|| model.check_in("x", &by, guard.fence()));
            sleep(Duration::from_millis(runtime.random() % 900)).await;
            // The release of an exclusive hold waits until the transaction ends.
            let is_alone = weight == trouble.kind.capacity();
            if transaction.is_some() && is_alone && runtime.random().is_multiple_of(2) {
                lock(&ledger).leave(&guard);
                drop(guard);
                sleep(Duration::from_millis(runtime.random() % 500)).await;
                continue;
            }
            drop(transaction);
            lock(&ledger).leave(&guard);
            if let (Some(guard), true) = (Arc::into_inner(guard), turn % 3 > 0) {
                let _ = guard.release().await;
            }
        }
        Ok(())
    });
}

/// Holds of a process that are renewed together. None is lost without a fault.
fn beside(world: &World, trouble: Trouble, process: usize, locks: Locks) {
    let sleep = world.sleep(process);
    let is_quiet = !trouble.pauses && trouble.faults.late + trouble.faults.cut == 0;
    world.spawn(process, "holds beside", async move {
        let mut guards = Vec::new();
        for at in 0..BESIDE {
            let name = format!("beside {process} {at}");
            if at.is_multiple_of(2) {
                guards.extend(locks.mutex(name).expect("a name").lock().await);
            } else {
                guards.extend(locks.fair_mutex(name).expect("a name").lock().await);
            }
        }
        sleep(Duration::from_secs(5)).await;
        let lost = guards.iter().filter(|guard| !guard.is_held()).count();
        if is_quiet && lost > 0 {
            return Err(format!("renewals: {lost} of {BESIDE} holds are lost"));
        }
        Ok(())
    });
}

/// Ends holds by force, and checks that their holders are notified.
fn forces(world: &World, trouble: Trouble, locks: Locks, ledger: Arc<Mutex<Ledger>>) {
    let (sleep, model) = (world.sleep(0), world.model.clone());
    let runtime = Arc::clone(&world.processes[0]);
    world.spawn(0, "force", async move {
        for _ in 0..4 {
            sleep(Duration::from_millis(200 + runtime.random() % 1_500)).await;
            lock(&ledger).forcing += 1;
            // Without an answer the request may still be carried out.
            let ended: Option<Status> = loop {
                if let Ok(ended) = locks.force_release("x").await {
                    break ended;
                }
            };
            let mut told = Vec::new();
            {
                let mut ledger = lock(&ledger);
                ledger.forcing -= 1;
                ledger.known_after = model.token("x");
                let ended: BTreeSet<u64> =
                    ended.iter().flat_map(|status| &status.holders).map(|holder| holder.fence).collect();
                for (guard, _) in std::mem::take(&mut ledger.held) {
                    if ended.contains(&guard.fence()) {
                        told.push(guard);
                    }
                }
            }
            sleep(trouble.ttl).await;
            if let Some(guard) = told.iter().find(|guard| guard.is_held()) {
                return Err(format!("reporting: {} was ended by force and is not told", guard.fence()));
            }
        }
        Ok(())
    });
}

/// Stops processes, kills one at times, and cuts connections.
fn disturb(world: &World, trouble: Trouble) {
    let (sim, model) = (world.sim.clone(), world.model.clone());
    let ids: Vec<usize> = world.processes.iter().map(|process| process.id()).collect();
    let disturb = async move {
        for round in 0..6 {
            sim.sleep_until(sim.now() + sim.between(100 * MS, 2 * SECOND)).await;
            let process = ids[sim.choose(ids.len() as u32) as usize];
            if trouble.kills && round == 3 {
                sim.kill(ids[ids.len() - 1]);
            }
            if trouble.faults.cut > 0 {
                model.cut_one();
            }
            if trouble.pauses {
                sim.pause(process);
                sim.sleep_until(sim.now() + sim.between(10 * MS, 4 * SECOND)).await;
                sim.resume(process);
            }
        }
    };
    world.sim.spawn(OUTSIDE, disturb.boxed());
}

/// Once all turns are over and faults stop, nothing is left after a while.
fn settle(world: &World, trouble: Trouble, seed: u64, clients: Vec<Locks>) {
    let (sim, model, tasks) = (world.sim.clone(), world.model.clone(), world.tasks.clone());
    let wrong = Arc::clone(&world.wrong);
    let settle = async move {
        while !tasks.running().is_empty() {
            sim.sleep_until(sim.now() + SECOND).await;
            if sim.now() > 900 * SECOND {
                lock(&wrong).get_or_insert(format!("progress: {:?} go on", tasks.running()));
                sim.halt();
            }
        }
        model.calm();
        sim.sleep_until(sim.now() + SETTLED.as_nanos() as u64).await;
        let left = model.left();
        if !left.is_empty() && !trouble.kills {
            lock(&wrong).get_or_insert(format!("left behind: {left:?}"));
        }
        if seed.is_multiple_of(16) {
            // Unused rows are deleted after an hour.
            sim.sleep_until(sim.now() + 2 * 3_600 * SECOND).await;
            let rows = model.rows();
            if rows > 0 {
                lock(&wrong).get_or_insert(format!("left behind: {rows} rows"));
            }
        }
        drop(clients);
    };
    world.sim.spawn(OUTSIDE, settle.boxed());
}

#[test]
fn a_crowd_takes_turns_whatever_goes_wrong() {
    let first = setting("TENURE_SEED").unwrap_or(0);
    let last = first + setting("TENURE_SCHEDULES").unwrap_or(400);
    // The last seed once found a bug of the store.
    for seed in (first..last).chain([669]) {
        assert_eq!(crowd(seed, Mistake::Nothing), Ok(()));
    }
}

fn first(bug: Option<Bug>, mistake: Mistake, seed: u64) -> Option<String> {
    plant(bug);
    let seen = (seed..seed + 300).find_map(|seed| crowd(seed, mistake).err());
    plant(None);
    seen
}

#[test]
fn a_crowd_shows_mistakes_in_statements() {
    for (mistake, words) in [
        (Mistake::SerialUncompared, ["exclusion", "tokens"]),
        (Mistake::OwnerUncompared, ["reporting"; 2]),
        (Mistake::CheckInUnseen, ["check-in"; 2]),
        (Mistake::CheckInReleased, ["check-in"; 2]),
        (Mistake::TokenOfClock, ["tokens"; 2]),
    ] {
        let seen = first(None, mistake, 0);
        let is_meant = |seen: &String| words.iter().any(|word| seen.contains(word));
        assert!(seen.as_ref().is_some_and(is_meant), "{mistake:?}: {seen:?}");
    }
}

#[test]
fn a_crowd_shows_bugs_of_the_store() {
    // For rare bugs the search starts near a schedule that finds them.
    for (bug, word, seed) in [
        (Bug::PostgresBeforeNotEnded, "", 0),
        (Bug::PostgresCheckInForgotten, "check-in", 0),
        (Bug::PostgresHandOverUnseen, "check-in", 0),
        (Bug::PostgresExtendedUnwritten, "exclusion", 650),
    ] {
        let seen = first(Some(bug), Mistake::Nothing, seed);
        assert!(seen.as_ref().is_some_and(|seen| seen.contains(word)), "{bug:?}: {seen:?}");
    }
}
