//! A worker process: many tasks acquire a few locks in every possible way, and log what they observe.
#![expect(clippy::disallowed_methods, reason = "a worker uses real time and a thread that reads its input")]

use std::cell::Cell;
use std::env::ArgsOs;
use std::future::{Future, pending};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use rustix::process::{Pid, getppid};
use tenure::{Guard, Locks, Options, Owner, Result};
use tenure_history::line::{End, Line, Lock, Sort, What};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::exit::{OWN, STORE, chain};
use crate::output::complain;
use crate::platform::die_with_parent;
use crate::{clock, launch, store};

/// Minimum interval at which a worker checks its holds and writes a heartbeat.
const PULSE: Duration = Duration::from_millis(50);
/// The interval grows by this much per worker, so that many workers do not spend all their time on
/// heartbeats.
const SHARE: Duration = Duration::from_millis(2);
/// Permits of a semaphore.
pub(super) const PERMITS: u32 = 3;
/// Weight of a writer: the whole read-write lock.
const WRITER: u32 = 1 << 20;

/// A contended lock.
pub(super) fn lock(sort: Sort, number: u32) -> Lock {
    let capacity = match sort {
        Sort::Rwlock => WRITER,
        Sort::Semaphore => PERMITS,
        Sort::Mutex | Sort::Fair | Sort::Reentrant => 1,
    };
    Lock { sort, number, capacity }
}

/// The instructions for each worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Orders {
    pub(super) prefix: String,
    pub(super) ttl: Duration,
    pub(super) hold: Duration,
    pub(super) tasks: u32,
    pub(super) names: u32,
    /// Prefix of all lock names.
    pub(super) run: String,
    pub(super) sorts: Vec<Sort>,
    /// Interval of heartbeats.
    pub(super) pulse: Duration,
}

/// The interval of heartbeats with this many workers.
pub(super) fn pulse(workers: u32) -> Duration {
    PULSE.max(SHARE * workers)
}

impl Orders {
    pub(super) fn name(&self, lock: Lock) -> String {
        format!("{}{lock}", self.run)
    }

    pub(super) fn options(&self) -> Options {
        Options::new().ttl(self.ttl).label("stress").prefix(&self.prefix)
    }

    /// The instructions as arguments for a worker.
    pub(super) fn write(&self) -> Vec<String> {
        let sorts: Vec<String> = self.sorts.iter().map(ToString::to_string).collect();
        vec![
            self.ttl.as_millis().to_string(),
            self.hold.as_micros().to_string(),
            self.tasks.to_string(),
            self.names.to_string(),
            self.run.clone(),
            self.prefix.clone(),
            sorts.join(","),
            self.pulse.as_millis().to_string(),
        ]
    }

    fn read(args: &[String]) -> Option<Self> {
        let [ttl, hold, tasks, names, run, prefix, sorts, pulse] = args else { return None };
        let sorts = sorts.split(',').map(Sort::named).collect::<Option<_>>()?;
        Some(Self {
            prefix: prefix.clone(),
            ttl: Duration::from_millis(ttl.parse().ok()?),
            hold: Duration::from_micros(hold.parse().ok()?),
            tasks: tasks.parse().ok()?,
            names: names.parse().ok()?,
            run: run.clone(),
            sorts,
            pulse: Duration::from_millis(pulse.parse().ok()?),
        })
    }
}

/// The worker stage: `__stress PARENT …`. Ends with its standard input, or with its parent.
pub(crate) fn stage(args: ArgsOs) -> Option<u8> {
    let args: Vec<String> = args.map(|arg| arg.into_string().ok()).collect::<Option<_>>()?;
    let (parent, args) = args.split_first()?;
    let orders = Orders::read(args)?;
    let parent = Pid::from_raw(parent.parse().ok()?)?;
    if die_with_parent().is_err() || getppid() != Some(parent) {
        return Some(OWN);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    Some(match runtime.block_on(work(orders)) {
        Ok(()) => 0,
        Err(error) => {
            complain(chain(&error));
            STORE
        }
    })
}

async fn work(orders: Orders) -> Result<()> {
    let locks =
        Locks::open(&std::env::var(store::STORE_URL).unwrap_or_default())?.with(|_| orders.options())?;
    let (stop, stopped) = watch::channel(false);
    std::thread::spawn(move || {
        let _ = io::stdin().read(&mut [0]);
        let _ = stop.send(true);
    });
    let tasks = join_all((0..orders.tasks).map(|number| {
        let (locks, orders, stopped) = (locks.clone(), &orders, stopped.clone());
        Task { number, locks, orders, stopped, dice: Dice::new() }.live()
    }));
    let pulse = pin!(async {
        loop {
            note(Line { time: now(), task: 0, what: What::Lives });
            sleep(orders.pulse).await;
        }
    });
    match select(pin!(tasks), pulse).await {
        Either::Left(_) => {
            if let Err(error) = locks.flush().await {
                note(Line { time: now(), task: 0, what: What::Fails(chain(&error)) });
            }
        }
        Either::Right(((), _)) => {}
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Patience {
    Once,
    For(Duration),
    Forever,
    /// Dropped after this time.
    Dropped(Duration),
}

struct Task<'a> {
    number: u32,
    locks: Locks,
    orders: &'a Orders,
    stopped: watch::Receiver<bool>,
    dice: Dice,
}

impl Task<'_> {
    async fn live(self) {
        let orders = self.orders;
        while !*self.stopped.borrow() {
            let sort = orders.sorts[self.dice.below(orders.sorts.len() as u64) as usize];
            let lock = lock(sort, self.dice.below(orders.names.into()) as u32);
            match self.ask(lock).await {
                Ok(Some((weight, guard, owner))) => self.hold(lock, weight, guard, &owner).await,
                Ok(None) => self.note(What::Leaves),
                Err(error) => {
                    self.note(What::Fails(chain(&error)));
                    sleep(self.dice.up_to(PULSE)).await;
                }
            }
            // Leave a moment to others, now and then.
            match self.dice.below(4) {
                0 => drop(self.or_stop(self.dice.up_to(orders.hold), pending::<()>()).await),
                _ => tokio::task::yield_now().await,
            }
        }
    }

    /// Requests a lock in a random way.
    async fn ask(&self, lock: Lock) -> Result<Option<(u32, Guard, Owner)>> {
        let ttl = self.orders.ttl;
        let patience = match self.dice.below(10) {
            0 => Patience::Once,
            1 => Patience::For(self.dice.up_to(ttl)),
            2 => Patience::Dropped(self.dice.up_to(ttl / 2)),
            3 => Patience::Dropped(self.dice.up_to(Duration::from_millis(5))),
            _ => Patience::Forever,
        };
        let owner = Owner::new("stress")?;
        let weight = match lock.sort {
            Sort::Rwlock if self.dice.below(5) == 0 => WRITER,
            Sort::Semaphore => 1 + self.dice.below(PERMITS.into()) as u32,
            _ => 1,
        };
        self.note(What::Asks(lock));
        let name = self.orders.name(lock);
        let wanted = take(&self.locks, &name, lock.sort, weight, &owner, patience);
        let limit = if let Patience::Dropped(limit) = patience { limit } else { Duration::MAX };
        let granted = self.or_stop(limit, wanted).await.transpose()?;
        Ok(granted.flatten().map(|guard| (weight, guard, owner)))
    }

    /// The result of `work`, unless it takes longer than `limit` or everything stops; then it is dropped.
    async fn or_stop<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut stopped = self.stopped.clone();
        let end = pin!(async {
            select(pin!(stopped.wait_for(|stop| *stop)), pin!(sleep(limit))).await;
        });
        match select(pin!(work), end).await {
            Either::Left((result, _)) => Some(result),
            Either::Right(_) => None,
        }
    }

    /// Holds for a while, records only what the guard reported, and releases.
    async fn hold(&self, lock: Lock, weight: u32, guard: Guard, owner: &Owner) {
        let mut until = now();
        let left = guard.remaining();
        if left.is_zero() {
            return self.note(What::Leaves);
        }
        let deadline = until + nanos(left);
        self.note_at(until, What::Holds { token: guard.fence(), weight, deadline });
        if lock.sort == Sort::Reentrant && self.dice.below(4) == 0 {
            self.enter_again(lock, &guard, owner).await;
        }
        let end = now() + nanos(self.length());
        let mut lost = guard.lost();
        loop {
            let seen = now();
            let left = guard.remaining();
            if left.is_zero() {
                return self.note(What::Ends { until, how: End::Lost });
            }
            until = seen;
            if seen >= end || *self.stopped.borrow() {
                break;
            }
            self.note(What::Keeps { deadline: seen + nanos(left) });
            select(&mut lost, pin!(sleep(PULSE.min(Duration::from_nanos(end - seen))))).await;
        }
        if self.dice.below(5) == 0 {
            self.note(What::Ends { until, how: End::Dropped });
            drop(guard);
        } else {
            self.note(What::Ends { until, how: End::Released });
            if let Err(error) = guard.release().await {
                self.note(What::Fails(chain(&error)));
            }
        }
    }

    /// A holder may re-enter, with the same token.
    async fn enter_again(&self, lock: Lock, guard: &Guard, owner: &Owner) {
        let again = take(&self.locks, &self.orders.name(lock), lock.sort, 1, owner, Patience::Once).await;
        match again {
            Ok(Some(inner)) => {
                if inner.fence() != guard.fence() && inner.is_held() && guard.is_held() {
                    let (token, outer) = (inner.fence(), guard.fence());
                    self.note(What::Wrong(format!("token {token} on re-entry, and {outer} before")));
                }
                drop(inner);
            }
            Ok(None) if guard.is_held() => {
                self.note(What::Wrong(format!("{lock} is busy for its holder")));
            }
            Ok(None) => {}
            Err(error) => self.note(What::Fails(chain(&error))),
        }
    }

    /// Most holds are short; some last longer than a renewal takes, and a few longer than a lease.
    fn length(&self) -> Duration {
        match self.dice.below(1_000) {
            0 => self.dice.up_to(self.orders.ttl * 3 / 2),
            1..100 => self.dice.up_to(self.orders.hold),
            _ => self.dice.up_to(self.orders.hold / 20),
        }
    }

    fn note(&self, what: What) {
        self.note_at(now(), what);
    }

    fn note_at(&self, time: u64, what: What) {
        note(Line { time, task: self.number, what });
    }
}

/// One acquisition, of any kind and in any way.
async fn take(
    locks: &Locks,
    name: &str,
    sort: Sort,
    weight: u32,
    owner: &Owner,
    patience: Patience,
) -> Result<Option<Guard>> {
    macro_rules! asked {
        ($lock:expr, $forever:ident, $once:ident, $limited:ident $(, $permits:expr)?) => {
            match patience {
                Patience::Once => Ok($lock.$once($($permits)?).await?.map(Guard::from)),
                Patience::For(limit) => Ok($lock.$limited($($permits,)? limit).await?.map(Guard::from)),
                Patience::Forever | Patience::Dropped(_) => Ok(Some(Guard::from($lock.$forever($($permits)?).await?))),
            }
        };
    }
    match sort {
        Sort::Mutex => asked!(locks.mutex(name)?, lock, try_lock, try_lock_for),
        Sort::Fair => asked!(locks.fair_mutex(name)?, lock, try_lock, try_lock_for),
        Sort::Reentrant => asked!(locks.reentrant_mutex(name, owner)?, lock, try_lock, try_lock_for),
        Sort::Rwlock if weight == WRITER => asked!(locks.rwlock(name)?, write, try_write, try_write_for),
        Sort::Rwlock => asked!(locks.rwlock(name)?, read, try_read, try_read_for),
        Sort::Semaphore => {
            asked!(
                locks.semaphore(name, PERMITS)?,
                acquire_many,
                try_acquire_many,
                try_acquire_many_for,
                weight
            )
        }
    }
}

/// One write per line, so that a killed process leaves only whole lines.
fn note(line: Line) {
    let line = format!("{line}\n");
    if io::stdout().lock().write_all(line.as_bytes()).is_err() {
        std::process::exit(OWN.into()); // the parent is gone
    }
}

pub(super) fn now() -> u64 {
    nanos(clock::now())
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The command that starts a worker of this program, or of `other`.
pub(super) fn command(other: Option<&Path>, url: &str, orders: &Orders) -> std::process::Command {
    let mut command = other.map_or_else(launch::again, std::process::Command::new);
    command.arg(launch::STRESS).arg(rustix::process::getpid().to_string()).args(orders.write());
    // Not as an argument, which every user of the machine can read: it may contain a password.
    command.env(store::STORE_URL, url);
    command
}

#[derive(Debug)]
pub(super) struct Dice(Cell<u64>);

impl Dice {
    pub(super) fn new() -> Self {
        Self(Cell::new(RandomState::new().hash_one(0)))
    }

    /// A number below `below`, which must not be 0.
    pub(super) fn below(&self, below: u64) -> u64 {
        // SplitMix64, by Steele, Lea and Flood.
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }

    pub(super) fn up_to(&self, most: Duration) -> Duration {
        Duration::from_nanos(self.below(nanos(most) + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_they_were_written() {
        let orders = Orders {
            prefix: "a b,".into(),
            ttl: Duration::from_secs(3),
            hold: Duration::from_millis(20),
            tasks: 8,
            names: 2,
            run: "stress:x:".into(),
            sorts: Sort::ALL.to_vec(),
            pulse: pulse(500),
        };
        assert_eq!(Orders::read(&orders.write()), Some(orders));
    }
}
