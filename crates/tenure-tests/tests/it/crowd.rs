//! Threads that take turns at one lock while servers fail.
#![expect(clippy::disallowed_methods, reason = "these tests use real time and threads as their callers do")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tenure::{Guard, Locks, block_on};
use tenure_testkit::servers::eventually;

use crate::common::ms;

/// Long enough for an election on a busy machine, and for the leases of the dead.
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) struct Crowd {
    turns: Vec<Arc<AtomicU64>>,
    threads: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    holder: Option<Arc<Guard>>,
    token: u64,
    /// Overlaps, and tokens that are not above earlier ones.
    wrong: Vec<String>,
}

impl Crowd {
    /// A thread for each of these clients, at a mutex or at a fair mutex.
    pub(crate) fn start(clients: impl IntoIterator<Item = Locks>, is_fair: bool) -> Self {
        let (is_over, seen) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Seen>>::default());
        let (mut turns, mut threads) = (Vec::new(), Vec::new());
        for locks in clients {
            let count = Arc::<AtomicU64>::default();
            turns.push(Arc::clone(&count));
            let (is_over, seen) = (Arc::clone(&is_over), Arc::clone(&seen));
            threads.push(thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    turn(&locks, is_fair, &seen, &count);
                }
            }));
        }
        Self { turns, threads, is_over, seen }
    }

    /// Waits until each has held once more.
    pub(crate) fn goes_on(&self) {
        let turns = || self.turns.iter().map(|turns| turns.load(Ordering::Relaxed));
        let before: Vec<u64> = turns().collect();
        eventually("each gets a further turn", LIMIT, || {
            turns().zip(&before).all(|(turns, before)| turns > *before)
        });
    }

    /// Stops the threads, of which none may wait for ever.
    pub(crate) fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            eventually("no waiter is lost", LIMIT, || thread.is_finished());
            thread.join().expect("no panic");
        }
        let turns: u64 = self.turns.iter().map(|turns| turns.load(Ordering::Relaxed)).sum();
        println!("{turns} turns");
        assert_eq!(self.seen.lock().expect("no panic").wrong, Vec::<String>::new(), "of {turns} turns");
    }
}

fn turn(locks: &Locks, is_fair: bool, seen: &Mutex<Seen>, count: &AtomicU64) {
    let got = block_on(async {
        match is_fair {
            true => locks.fair_mutex("line").expect("a name").lock().await,
            false => locks.mutex("crowd").expect("a name").lock().await,
        }
    });
    // There is no answer while there is no server or no leader.
    let Ok(guard) = got.map(Arc::new) else { return thread::sleep(ms(10)) };
    {
        let mut seen = seen.lock().expect("no panic");
        let overlaps = |other: &&Arc<Guard>| other.is_held() && guard.is_held();
        let other = seen.holder.as_ref().filter(overlaps).map(|other| other.fence());
        seen.wrong.extend(other.map(|other| format!("{other} and {} at once", guard.fence())));
        if guard.is_held() && guard.fence() <= seen.token {
            let wrong = format!("{} after {}", guard.fence(), seen.token);
            seen.wrong.push(wrong);
        }
        seen.token = seen.token.max(guard.fence());
        seen.holder = Some(Arc::clone(&guard));
    }
    thread::sleep(ms(5));
    count.fetch_add(1, Ordering::Relaxed);
    seen.lock().expect("no panic").holder.take_if(|holder| Arc::ptr_eq(holder, &guard));
    if let Some(guard) = Arc::into_inner(guard) {
        let _ = block_on(guard.release());
    }
    // A mutex has no order, so a client that retries immediately could win forever.
    thread::sleep(ms(20));
}
