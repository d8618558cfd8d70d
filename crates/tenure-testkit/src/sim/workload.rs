//! What the tasks of a schedule do: everything that the public API offers, and everything that users do to it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tenure::internals::Runtime;
use tenure::{Error, Guard, LockName, Locks, Options, Owner, Renewal};

use super::clock::{MS, TrueTime};
use super::executor::{Process, Sim, lock};
use super::oracle::honesty::{Holding, Said, Told};
use super::oracle::{Claim, Oracle};
use super::regime::{Plan, Regime};

impl Claim for Guard {
    fn is_held(&self) -> bool {
        Self::is_held(self)
    }

    fn fence(&self) -> u64 {
        Self::fence(self)
    }
}

/// More than a question and its answer take where nothing fails.
const ROUND_TRIP: Duration = Duration::from_millis(30);

const API: &str = "the API's word";

/// What all tasks of a schedule share.
#[derive(Debug)]
pub struct Workload {
    /// The executor.
    pub sim: Sim,
    /// The judge.
    pub oracle: Oracle,
    /// The schedule's numbers.
    pub plan: Plan,
    /// The locks.
    pub names: Vec<LockName>,
    /// Owners that were detached and not taken over yet.
    pub board: Mutex<Vec<(LockName, Owner)>>,
    /// How many tasks have not ended.
    pub left: Mutex<u32>,
}

/// How a future is cut short.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// It is not.
    Never,
    /// Dropped after so many polls.
    Polls(u32),
    /// Dropped at a moment of true time.
    At(TrueTime),
    /// After so many polls nobody looks at it until a moment of true time.
    Neglect(u32, TrueTime),
}

/// One task of one process.
#[derive(Debug)]
pub struct Task {
    /// What it shares.
    pub workload: Arc<Workload>,
    /// Where it runs.
    pub process: Arc<Process>,
    /// Its process's locks.
    pub locks: Locks,
    /// It is there.
    pub present: Present,
}

/// A task that has not ended; the last one to go ends the run.
#[derive(Debug)]
pub struct Present(Arc<Workload>);

impl Present {
    /// One more.
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
    /// Locks a few times.
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
        let name = self.workload.names[self.sim().choose(self.workload.plan.names) as usize].clone();
        let options = self.options();
        let locks = self.locks.with(options.clone())?;
        let asked_at = self.sim().now();
        let taken = self.take_over(&name);
        let (is_resumed, cut) = (taken.is_some(), self.cut());
        let guard = match taken {
            Some(owner) => match self.cut_short(cut, locks.resume(name.as_str(), &owner)).await {
                Some(Ok(guard)) => guard,
                Some(Err(error)) if error.is_unknown() => return Ok(()),
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            },
            None => self.acquire(&locks, &name, cut).await?,
        };
        let Some(guard) = guard else { return Ok(()) };
        let (lease, grace) = (options.ttl.min(options.max_hold.unwrap_or(options.ttl)), options.grace);
        let told = Told {
            asked_at,
            is_resumed,
            remaining: guard.remaining(),
            // What the margin takes, and a third for the way. What nobody looks at for a while gets old.
            is_fresh: !is_resumed && !matches!(cut, Cut::Neglect(..)),
            fresh: (lease - lease / 3).saturating_sub(lease / 100 + grace + Duration::from_millis(3)),
            grace: grace.as_nanos() as TrueTime,
        };
        let guard = Arc::new(guard);
        let claim: Arc<dyn Claim> = Arc::clone(&guard) as _;
        let holding = self.oracle().granted(self.process.id(), &name, guard.owner(), claim, told);
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
        self.hold(&guard, &holding, &options).await;
        self.part(guard, holding, &name).await;
        Ok(())
    }

    fn take_over(&self, name: &LockName) -> Option<Owner> {
        let mut board = lock(&self.workload.board);
        let place = board.iter().position(|(known, _)| known == name)?;
        self.sim().chance(700).then(|| board.swap_remove(place).1)
    }

    fn options(&self) -> Options {
        let (sim, plan) = (self.sim(), self.workload.plan);
        let mut options = Options::new().ttl(plan.ttl);
        if sim.chance(plan.unrenewed) {
            options = options.renewal(Renewal::Off);
        }
        if sim.chance(100) {
            let most = plan.ttl.as_nanos() as TrueTime;
            let least = 50 * MS;
            options = options.max_hold(Duration::from_nanos(sim.between(least, 2 * most.max(least))));
        }
        if sim.chance(150) {
            let lease = options.ttl.min(options.max_hold.unwrap_or(options.ttl));
            options = options.grace(lease / 3);
        }
        options
    }

    /// How the next future ends.
    fn cut(&self) -> Cut {
        let (sim, plan) = (self.sim(), self.workload.plan);
        if !sim.chance(plan.cancel) {
            return Cut::Never;
        }
        let now = sim.now();
        match sim.choose(5) {
            0..3 => Cut::Polls(1 + sim.choose(6)),
            3 if plan.regime != Regime::Quiet && now < plan.heals_at => {
                Cut::Neglect(1 + sim.choose(4), sim.between(now, plan.heals_at))
            }
            _ => Cut::At(now + sim.between(0, plan.ttl.as_nanos() as TrueTime)),
        }
    }

    /// A future's output, unless it is dropped before.
    async fn cut_short<F: Future>(&self, cut: Cut, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        match cut {
            Cut::Never => Some(future.await),
            Cut::Polls(most) => {
                let mut polls = 0;
                poll_fn(|cx| {
                    polls += 1;
                    match future.as_mut().poll(cx) {
                        Poll::Ready(output) => Poll::Ready(Some(output)),
                        Poll::Pending if polls >= most => Poll::Ready(None),
                        Poll::Pending => Poll::Pending,
                    }
                })
                .await
            }
            Cut::At(at) => {
                let mut end = pin!(self.sim().sleep_until(at));
                poll_fn(|cx| match future.as_mut().poll(cx) {
                    Poll::Ready(output) => Poll::Ready(Some(output)),
                    Poll::Pending => end.as_mut().poll(cx).map(|()| None),
                })
                .await
            }
            Cut::Neglect(most, until) => {
                let mut polls = 0;
                let first = poll_fn(|cx| {
                    polls += 1;
                    match future.as_mut().poll(cx) {
                        Poll::Ready(output) => Poll::Ready(Some(output)),
                        Poll::Pending if polls >= most => Poll::Ready(None),
                        Poll::Pending => Poll::Pending,
                    }
                })
                .await;
                if first.is_some() {
                    return first;
                }
                self.sim().sleep_until(until).await;
                Some(future.await)
            }
        }
    }

    /// Acquires, in one of the three ways, and checks what each of them promises.
    async fn acquire(&self, locks: &Locks, name: &LockName, cut: Cut) -> Result<Option<Guard>, Error> {
        let (sim, plan) = (self.sim(), self.workload.plan);
        let mutex = locks.mutex(name.as_str())?;
        let (since, begun) = (sim.now(), self.process.now());
        match sim.choose(8) {
            0..5 => {
                let waiting = match cut {
                    Cut::Neglect(..) => None,
                    _ => Some(self.oracle().waits(self.process.id(), name)),
                };
                let lock = async {
                    let _waiting = waiting;
                    mutex.lock().await
                };
                let Some(outcome) = self.cut_short(cut, lock).await else { return Ok(None) };
                let patience = locks.options().patience;
                if outcome.is_err() && self.process.now().since(begun) < patience {
                    self.accuse(format!("`lock` gave up before {patience:?}: {:?}", outcome.as_ref().err()));
                }
                outcome.map(Some)
            }
            5 => {
                let Some(outcome) = self.cut_short(cut, mutex.try_lock()).await else { return Ok(None) };
                self.check_in_time(cut, since, begun, locks.options().op_timeout);
                if matches!(outcome, Ok(None)) {
                    self.oracle().said_busy(name, since);
                }
                outcome
            }
            _ => {
                let limit = Duration::from_nanos(sim.between(0, 2 * plan.ttl.as_nanos() as TrueTime));
                let most = if limit.is_zero() { locks.options().op_timeout } else { limit };
                let Some(outcome) = self.cut_short(cut, mutex.try_lock_for(limit)).await else {
                    return Ok(None);
                };
                self.check_in_time(cut, since, begun, most);
                match outcome {
                    // No answer can have come by then.
                    Err(error) if error.is_unreachable() && limit < ROUND_TRIP => Ok(None),
                    outcome => outcome,
                }
            }
        }
    }

    /// A call with a limit ends within it, unless its process stood still or nobody looked.
    fn check_in_time(&self, cut: Cut, since: TrueTime, begun: tenure::internals::Moment, most: Duration) {
        let took = self.process.now().since(begun);
        let is_excused = matches!(cut, Cut::Neglect(..)) || self.sim().resumed_at(self.process.id()) > since;
        if took > most + Duration::from_millis(5) && !is_excused {
            self.accuse(format!("a call with a limit of {most:?} took {took:?}"));
        }
    }

    /// Holds for a while, and does what holders do.
    async fn hold(&self, guard: &Guard, holding: &Holding, options: &Options) {
        let (sim, plan) = (self.sim(), self.workload.plan);
        let begun = self.process.now();
        if sim.chance(plan.overstay) {
            let edge = guard.remaining().as_nanos() as TrueTime + sim.between(0, 6 * MS);
            let time = if sim.chance(500) { edge.saturating_sub(3 * MS) } else { 2 * edge };
            self.stay(guard, holding, time).await;
            return;
        }
        for _ in 0..=sim.choose(3) {
            let time = sim.between(0, 3 * plan.ttl.as_nanos() as TrueTime / 2);
            if self.stay(guard, holding, time).await.is_some() {
                return;
            }
            if options.max_hold.is_some_and(|most| guard.is_held() && self.process.now().since(begun) > most)
            {
                self.accuse(format!("a guard holds for longer than its max_hold {:?}", options.max_hold));
            }
            let since = sim.now();
            let outcome = match sim.choose(6) {
                0 => self.cut_short(self.cut(), guard.verify()).await,
                1 => self.cut_short(self.cut(), guard.renew()).await,
                _ => None,
            };
            if let Some(outcome) = outcome {
                let said = said(&outcome);
                self.oracle().said_held(guard.owner(), since, said);
                if said == Said::Lost && holding.look() {
                    self.accuse("a call said that the lock is lost, and the guard that it is held".into());
                }
            }
        }
    }

    /// Stays for this long on its own clock, or until the lock is lost, and looks each time that it is woken.
    async fn stay(&self, guard: &Guard, holding: &Holding, time: TrueTime) -> Option<Error> {
        let mut end = pin!(self.process.sleep_until(self.process.now() + Duration::from_nanos(time)));
        let mut lost = pin!(guard.lost());
        holding.watch(true);
        let lost = poll_fn(|cx| {
            let is_held = holding.look();
            match lost.as_mut().poll(cx) {
                Poll::Ready(error) => {
                    if is_held || !error.is_lost() {
                        self.accuse(format!("`lost` resolved, held: {is_held}: {error}"));
                    }
                    return Poll::Ready(Some(error));
                }
                Poll::Pending if !is_held => {
                    self.accuse("the guard does not hold, and `lost` is silent".into())
                }
                Poll::Pending => {}
            }
            end.as_mut().poll(cx).map(|()| None)
        })
        .await;
        holding.watch(false);
        lost
    }

    /// Gives the guard away, in one of the ways in which that can happen.
    async fn part(&self, guard: Arc<Guard>, holding: Holding, name: &LockName) {
        let sim = self.sim();
        let owner = guard.owner().clone();
        let was_held = holding.look();
        // From here on nothing is claimed any more.
        drop(holding);
        let Some(guard) = Arc::into_inner(guard) else { return };
        match sim.choose(8) {
            0 | 1 => drop(guard),
            2 => {
                self.oracle().detached(&owner, true);
                let begun = sim.now();
                match self.cut_short(self.cut(), guard.detach()).await {
                    Some(Ok(owner)) => {
                        self.oracle().said_held(&owner, begun, Said::Yes);
                        lock(&self.workload.board).push((name.clone(), owner));
                    }
                    _ => self.oracle().detached(&owner, false),
                }
            }
            _ => {
                let outcome = self.cut_short(self.cut(), guard.release()).await;
                if let Some(outcome) = outcome {
                    self.sim().note(|| format!("p{}: release said {outcome:?}", self.process.id()));
                    self.oracle().said_released(&owner, was_held, said(&outcome));
                    if outcome.is_err_and(|error| !error.is_lost() && !error.is_unknown()) {
                        self.accuse("a release ended neither well, nor lost, nor unknown".into());
                    }
                }
            }
        }
    }

    /// An acquisition ended with an error: one that it may end with, and not where nothing fails.
    fn refuse(&self, error: &Error) {
        if !error.is_unreachable() || self.workload.plan.regime == Regime::Quiet {
            self.accuse(format!("an acquisition ended with {error:?}"));
        }
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
