//! What the tasks of a schedule do: everything that the public API offers, and everything that users do to
//! it.
//!
//! | module | what it holds |
//! |---|---|
//! | `holding` | what a task does while it holds |
//! | `requests` | options, limits and cancellation of an acquisition |

mod holding;
mod requests;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure::internals::protocol::{QueueSpec, lease};
use tenure::internals::{Runtime, upgradeable_guard, write_guard};
use tenure::{Error, Guard, LockName, Locks, Options, Owner, Renewal};

use super::clock::{MS, TrueTime};
use super::executor::{Process, Sim, Stop, lock};
use super::lock_request::{Got, Hand, LockRequest, OneOf};
use super::oracle::reporting::{Holding, Said, Told};
use super::oracle::{Claim, Oracle};
use super::regime::{LockKind, Plan, SHORTEST};

impl Claim for Guard {
    fn is_held(&self) -> bool {
        Self::is_held(self)
    }

    fn fence(&self) -> u64 {
        Self::fence(self)
    }
}

/// Maximum time of a re-entry, which never waits for a release: for its round trip, for those ahead of it, and for
/// writes by compare-and-swap that lose against those of the owner's other processes.
const AT_ONCE: TrueTime = 300 * MS;

const API: &str = "the API's word";

/// State shared by all tasks of a schedule.
#[derive(Debug)]
pub struct Workload {
    /// The executor.
    pub sim: Sim,
    /// The oracle.
    pub oracle: Oracle,
    /// The plan of the schedule.
    pub plan: Plan,
    /// The locks.
    pub names: Vec<LockName>,
    /// Owners of reentrant locks, by lock: several tasks of several processes share one.
    pub owners: Vec<Vec<Owner>>,
    /// Detached owners that were not resumed yet.
    pub board: Mutex<Vec<(LockName, Owner)>>,
    /// Upper bound of a call without faults.
    pub trip: Duration,
    /// The last label used, if owners need distinct ones.
    pub labels: Option<Mutex<u32>>,
    /// Number of tasks that have not ended.
    pub left: Mutex<u32>,
}

impl Workload {
    /// The locks of a schedule, with two owners each.
    pub fn new(sim: &Sim, oracle: Oracle, plan: Plan) -> Self {
        let names = ["x", "y"].iter().take(plan.names as usize);
        let names: Vec<LockName> = names.map(|name| LockName::new(name).expect("a name")).collect();
        for (name, sort) in names.iter().zip(plan.kinds) {
            oracle.knows(name, sort);
        }
        let owners = (0..names.len()).map(|lock| (0..2).map(|number| owner(2 * lock + number)).collect());
        let owners = owners.collect();
        let (sim, board, left) = (sim.clone(), Mutex::default(), Mutex::new(0));
        Self { sim, oracle, plan, names, owners, board, trip: plan.trip(), labels: None, left }
    }

    /// Starts between one and `most` tasks of a process, which own all handles to its locks.
    pub fn start(self: &Arc<Self>, process: &Arc<Process>, locks: Locks, most: u32) {
        for _ in 0..=self.sim.choose(most) {
            let (workload, process, locks) = (Arc::clone(self), Arc::clone(process), locks.clone());
            let (id, present) = (process.id(), Present::new(&workload));
            self.sim.spawn(id, Box::pin(Task { workload, process, locks, present }.run()));
        }
    }

    /// Runs until no task is left. `between` is what a task may take per round besides leases.
    ///
    /// # Errors
    /// Why the run ended, if tasks are left.
    pub fn run_out(&self, between: TrueTime, steps: u64) -> Result<(), Stop> {
        let rounds = u64::from(*lock(&self.left)) * u64::from(self.plan.rounds);
        let horizon = self.plan.strict_from + rounds * (14 * self.plan.lease() + between);
        match self.sim.run(horizon, steps) {
            Stop::Halted => Ok(()),
            Stop::Idle if *lock(&self.left) == 0 => Ok(()),
            stop => {
                self.oracle.check_served();
                Err(stop)
            }
        }
    }
}

/// The owner of this number. Not random: a seed must replay.
fn owner(number: usize) -> Owner {
    format!("o{number}@sim:1/{number:032x}").parse().expect("an owner")
}

/// How a future is cut short.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// Not at all.
    Never,
    /// Dropped after this many polls.
    Polls(u32),
    /// Dropped at a true time.
    At(TrueTime),
    /// Not polled between this many polls and a true time.
    Neglect(u32, TrueTime),
}

/// A task of a process.
#[derive(Debug)]
pub struct Task {
    /// The shared state.
    pub workload: Arc<Workload>,
    /// The process it runs in.
    pub process: Arc<Process>,
    /// Its process's locks.
    pub locks: Locks,
    /// Counts the task as running.
    pub present: Present,
}

/// A running task; the last one to end ends the run.
#[derive(Debug)]
pub struct Present(Arc<Workload>);

impl Present {
    /// Counts another task.
    pub fn new(workload: &Arc<Workload>) -> Self {
        *lock(&workload.left) += 1;
        Self(Arc::clone(workload))
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        let mut left = lock(&self.0.left);
        *left -= 1;
        if *left == 0 {
            self.0.sim.halt();
        }
    }
}

impl Task {
    /// Acquires a few times.
    pub async fn run(self) {
        let plan = self.workload.plan;
        for _ in 0..=self.sim().choose(plan.rounds) {
            self.rest(self.sim().between(0, 30 * MS)).await;
            if let Err(error) = self.round().await {
                self.refuse(&error);
            }
        }
    }

    fn sim(&self) -> &Sim {
        &self.workload.sim
    }

    fn oracle(&self) -> &Oracle {
        &self.workload.oracle
    }

    async fn rest(&self, time: TrueTime) {
        if time > 0 {
            self.process.sleep_until(self.process.now() + Duration::from_nanos(time)).await;
        }
    }

    /// One acquisition and what follows.
    async fn round(&self) -> Result<(), Error> {
        let (sim, plan) = (self.sim(), self.workload.plan);
        if sim.chance(plan.both) {
            return self.round_of_both().await;
        }
        let options = self.options();
        let locks = self.locks.with(|_| options.clone())?;
        let index = sim.choose(plan.names) as usize;
        let name = &self.workload.names[index];
        if sim.chance(plan.forced) {
            // The holder learns of it from its next request.
            drop(self.cut_short(self.cut(), locks.force_release(name.as_str())).await);
        }
        if let (LockKind::Semaphore(most), true) = (plan.kinds[index], plan.resizes(index))
            && sim.chance(300)
        {
            let (semaphore, permits) = (locks.semaphore(name.as_str(), most)?, 1 + sim.choose(most));
            drop(self.cut_short(self.cut(), semaphore.set_permits(permits)).await);
        }
        let taken = self.take_over(name);
        if taken.is_some() && sim.chance(plan.last_moment) {
            self.wait_for_edge(name).await;
        }
        let asked_at = sim.now();
        let cut = self.cut();
        let mut told = self.told(&options, cut, asked_at, taken.is_some());
        let guard = match taken {
            Some(owner) => match self.cut_short(cut, locks.resume(name.as_str(), &owner)).await {
                Some(Ok(guard)) => guard,
                Some(Err(error)) if error.is_unknown() => return Ok(()),
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            },
            None => {
                let request = self.request(&locks, index)?;
                match self.acquire(&locks, &request, Some(name), cut, &mut told).await? {
                    Some(Got::One(guard)) => Some(guard),
                    _ => None,
                }
            }
        };
        let Some(guard) = guard else { return Ok(()) };
        self.live_with(guard, index, &locks, &options, told).await;
        Ok(())
    }

    /// Sleeps until shortly before the end of a lease: by the maximum latency or less.
    async fn wait_for_edge(&self, name: &LockName) {
        let (sim, trip) = (self.sim(), self.workload.plan.faults.latency.1);
        if let Some(edge) = self.oracle().edge(name) {
            sim.sleep_until((edge + sim.between(0, MS)).saturating_sub(trip)).await;
        }
    }

    fn request(&self, locks: &Locks, index: usize) -> Result<LockRequest, Error> {
        let (name, owners) = (&self.workload.names[index], &self.workload.owners[index]);
        LockRequest::draw(self.sim(), locks, name, self.workload.plan.kinds[index], owners)
    }

    /// Acquires all locks at once, and holds until done or until one is lost.
    async fn round_of_both(&self) -> Result<(), Error> {
        // The first is held, and renewed, while the second is awaited.
        let mut options = self.options();
        (options.renewal, options.max_hold) = (Renewal::Automatic, None);
        let (locks, options) = (&self.locks.with(|_| options.clone())?, &options);
        let (sim, plan, cut) = (self.sim(), self.workload.plan, self.cut());
        let names = &self.workload.names;
        let requests: Result<Vec<LockRequest>, Error> =
            (0..names.len()).map(|index| self.request(locks, index)).collect();
        let request = LockRequest::both(requests?)?;
        let mut told = self.told(options, cut, sim.now(), false);
        let got = match self.acquire(locks, &request, None, cut, &mut told).await {
            // One was lost while the other was awaited.
            Err(error) if error.is_lost() => return Ok(()),
            got => got?,
        };
        let Some(Got::Both(guards)) = got else { return Ok(()) };
        let guards = Arc::new(guards);
        let claims: Vec<Arc<OneOf>> =
            (0..guards.len()).map(|index| Arc::new(OneOf(Arc::clone(&guards), index))).collect();
        // The first may have aged while the second was awaited.
        told.is_fresh = false;
        let granted = |(name, claim): (&LockName, &Arc<OneOf>)| {
            self.granted(name, claim.guard(), Arc::clone(claim) as _, told)
        };
        let holdings: Vec<Holding> = names.iter().zip(&claims).map(granted).collect();
        let time = plan.span(sim, 3 * plan.ttl.as_nanos() as TrueTime / 2);
        self.stay(&*guards, &holdings, time).await;
        drop((holdings, claims));
        let Some(guards) = Arc::into_inner(guards) else { return Ok(()) };
        if sim.choose(3) == 0 {
            drop(guards);
        } else {
            drop(self.cut_short(self.cut(), guards.release()).await);
        }
        Ok(())
    }

    /// The grant, as reported to the oracle.
    fn told(&self, options: &Options, cut: Cut, asked_at: TrueTime, is_resumed: bool) -> Told {
        let (lease, grace) = (options.ttl.min(options.max_hold.unwrap_or(options.ttl)), options.grace);
        let margin = lease / 100 + Duration::from_millis(3);
        let wait = lease::wait(lease).min(self.workload.plan.place_max);
        Told {
            asked_at,
            is_resumed,
            remaining: Duration::ZERO,
            // A future that is not polled for a while ages.
            is_fresh: !is_resumed && !matches!(cut, Cut::Neglect(..)),
            // Minus the margin, and a third for the round trip.
            fresh: (lease - lease / 3).saturating_sub(margin + grace),
            // A granted waiter starts with its place's remaining lease.
            fresh_if_called: (wait / 2).saturating_sub(margin),
            grace: grace.as_nanos() as TrueTime,
            is_renewed: options.renewal == Renewal::Automatic && options.max_hold.is_none(),
            weight: None,
        }
    }

    fn granted(&self, name: &LockName, guard: &Guard, claim: Arc<dyn Claim>, told: Told) -> Holding {
        let told = Told { remaining: guard.remaining(), ..told };
        self.sim().note(|| {
            let (process, owner) = (self.process.id(), guard.owner().as_str());
            let end = &owner[owner.len() - 6..];
            format!(
                "p{process}: GRANTED {} to …{end}, token {}, {:?} left",
                name.as_str(),
                guard.fence(),
                told.remaining
            )
        });
        self.oracle().granted(self.process.id(), name, guard.owner(), claim, told)
    }

    /// From the grant to the end of a hold.
    async fn live_with(&self, guard: Guard, index: usize, locks: &Locks, options: &Options, told: Told) {
        let name = &self.workload.names[index];
        let guard = Arc::new(guard);
        let holding = self.granted(name, &guard, Arc::clone(&guard) as _, told);
        let changes = self.workload.plan.kinds[index] == LockKind::RwLock && self.sim().chance(400);
        let (guard, holding) = match changes {
            false => (guard, holding),
            true => match self.change(guard, holding, index, told).await {
                Some(both) => both,
                None => return,
            },
        };
        self.hold(&guard, &holding, index, locks, options).await;
        self.part(guard, holding, index).await;
    }

    /// Downgrades a writer, or upgrades an upgradeable reader, at some time. The guard is not checked
    /// meanwhile, because the change consumes it.
    async fn change(
        &self,
        guard: Arc<Guard>,
        holding: Holding,
        index: usize,
        told: Told,
    ) -> Option<(Arc<Guard>, Holding)> {
        let name = &self.workload.names[index];
        let plan = self.workload.plan;
        let time = plan.span(self.sim(), plan.ttl.as_nanos() as TrueTime);
        self.stay(&*guard, std::slice::from_ref(&holding), time).await;
        drop(holding);
        let guard = Arc::into_inner(guard)?;
        let (since, left) = (self.sim().now(), guard.remaining());
        // If the future is dropped, so is the guard.
        let (guard, outcome, weight): (Guard, _, _) = match upgradeable_guard(guard) {
            Err(guard) => match self.cut_short(self.cut(), write_guard(guard).downgrade()).await? {
                Ok(reader) => (reader.into(), Ok(()), Some(1)),
                // The request may still be carried out.
                Err(failed) => (failed.guard.into(), Err(failed.error), Some(1)),
            },
            Ok(guard) => {
                let time = Duration::from_nanos(plan.span(self.sim(), plan.ttl.as_nanos() as TrueTime));
                let upgrade = async {
                    match self.sim().choose(3) {
                        0 => guard.try_upgrade().await,
                        1 => guard.try_upgrade_for(time).await,
                        _ => guard.upgrade().await.map(Ok),
                    }
                };
                let reads = Some(QueueSpec::UPGRADEABLE.weight);
                match self.cut_short(self.cut(), upgrade).await? {
                    Ok(Ok(writer)) => (writer.into(), Ok(()), None),
                    Ok(Err(reader)) => (reader.into(), Ok(()), reads),
                    Err(failed) => (failed.guard.into(), Err(failed.error), reads),
                }
            }
        };
        self.oracle().said_held(guard.owner(), guard.fence(), since, left, said(&outcome));
        if !guard.is_held() {
            return None;
        }
        let guard = Arc::new(guard);
        let told = Told { is_resumed: true, is_fresh: false, weight, ..told };
        let holding = self.granted(name, &guard, Arc::clone(&guard) as _, told);
        Some((guard, holding))
    }

    /// Re-enters a reentrant lock: granted at once, whoever waits.
    fn reenter<'a>(&'a self, outer: &'a Guard, index: usize, locks: &'a Locks) -> BoxFuture<'a, ()> {
        let task = async move {
            let (sim, name, options) = (self.sim(), &self.workload.names[index], self.options());
            let (Ok(locks), true) = (locks.with(|_| options.clone()), outer.is_held()) else { return };
            let Ok(lock) = locks.reentrant_mutex(name.as_str(), outer.owner()) else { return };
            let before = self.oracle().held_by(self.process.id(), name, outer.owner());
            if let Ok(count) = lock.hold_count().await {
                self.oracle().said_count(self.process.id(), name, outer.owner(), count, &before);
            }
            let (cut, asked_at) = (self.cut(), sim.now());
            let mut told = self.told(&options, cut, asked_at, false);
            let request = LockRequest::Reentrant(lock);
            let guard = match self.acquire(&locks, &request, Some(name), cut, &mut told).await {
                Ok(Some(Got::One(guard))) => guard,
                Ok(_) => return,
                Err(error) => return self.refuse(&error),
            };
            let still = self.oracle().still_held(self.process.id(), name, outer.owner(), &before);
            let is_strict = asked_at >= self.workload.plan.strict_from && still > 0;
            if is_strict
                && sim.now() > asked_at + AT_ONCE.max(self.workload.plan.trip().as_nanos() as TrueTime)
                && sim.ran_since(self.process.id(), asked_at)
                && !matches!(cut, Cut::Neglect(..))
            {
                self.accuse(format!("a re-entry took {} ms", (sim.now() - asked_at) / MS));
            }
            self.live_with(guard, index, &locks, &options, told).await;
        };
        Box::pin(task)
    }

    fn take_over(&self, name: &LockName) -> Option<Owner> {
        let mut board = lock(&self.workload.board);
        let place = board.iter().position(|(known, _)| known == name)?;
        self.sim().chance(700).then(|| board.swap_remove(place).1)
    }

    /// An acquisition failed: only with permitted errors, and never without faults.
    fn refuse(&self, error: &Error) {
        if self.is_too_much(error) || self.is_too_short(error) {
            return;
        }
        if !error.is_unreachable() || self.workload.plan.regime.is_calm() {
            self.accuse(format!("an acquisition ended with {error:?}"));
        }
    }

    /// Whether the lease was over before the round trips of its request were.
    fn is_too_short(&self, error: &Error) -> bool {
        let can_be = self.workload.plan.trip() > Duration::from_nanos(SHORTEST);
        can_be && format!("{error:?}").contains("longer than the requested lease")
    }

    /// Whether the permits were lowered below the request.
    fn is_too_much(&self, error: &Error) -> bool {
        let plan = &self.workload.plan;
        error.is_mismatch() && (0..plan.names as usize).any(|index| plan.resizes(index))
    }

    fn accuse(&self, what: String) {
        self.oracle().accuse(API, format!("process {}: {what}", self.process.id()));
    }
}

fn said(outcome: &Result<(), Error>) -> Said {
    match outcome {
        Ok(()) => Said::Yes,
        Err(error) if error.is_lost() => Said::Lost,
        Err(_) => Said::Unknown,
    }
}
