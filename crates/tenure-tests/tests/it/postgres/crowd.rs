//! Tasks of several clients that take turns at two locks while a server fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tenure::{Guard, Locks, Options};
use tenure_testkit::servers::eventually;

const CLIENTS: usize = 4;
const TASKS: usize = 4;

/// Statistics of one lock.
#[derive(Default)]
struct Seen {
    held: Vec<Arc<Guard>>,
    /// All tokens, in the order of the grants.
    tokens: Vec<u64>,
    overlaps: Vec<(u64, u64)>,
}

pub(crate) struct Crowd {
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    turns: Arc<AtomicU64>,
    /// For the mutex and the fair mutex.
    seen: Arc<[Mutex<Seen>; 2]>,
}

pub(crate) struct Outcome {
    pub(crate) turns: u64,
    /// Tokens of concurrent holds whose guards both reported that they held.
    pub(crate) overlaps: Vec<(u64, u64)>,
    /// Tokens not greater than the one before them.
    pub(crate) setbacks: Vec<(u64, u64)>,
}

impl Crowd {
    pub(crate) fn start(url: &str, ttl: Duration) -> Self {
        let (stop, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let seen: Arc<[Mutex<Seen>; 2]> = Arc::default();
        let mut threads = Vec::new();
        for client in 0..CLIENTS {
            let locks = Locks::open(url).expect("a store");
            let options = Options::new().ttl(ttl).op_timeout(Duration::from_secs(10));
            let locks = locks.with(|_| options).expect("options");
            for task in 0..TASKS {
                let (locks, stop, turns) = (locks.clone(), Arc::clone(&stop), Arc::clone(&turns));
                let seen = Arc::clone(&seen);
                threads.push(thread::spawn(move || {
                    let at = (client + task) % 2;
                    while !stop.load(Ordering::SeqCst) {
                        turn(&locks, at, &seen[at]);
                        turns.fetch_add(1, Ordering::SeqCst);
                    }
                }));
            }
        }
        Self { threads, stop, turns, seen }
    }

    /// Waits for further grants.
    pub(crate) fn goes_on(&self) {
        let tokens = || self.seen.iter().map(|seen| seen.lock().expect("no panic").tokens.len());
        let before: Vec<usize> = tokens().collect();
        eventually("turns go on at both locks", Duration::from_secs(60), || {
            tokens().zip(&before).all(|(now, before)| now > before + 20)
        });
    }

    /// Stops the tasks and waits for each.
    pub(crate) fn end(self) -> Outcome {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads {
            eventually("no waiter is lost", Duration::from_secs(60), || thread.is_finished());
            thread.join().expect("no panic");
        }
        let mut outcome =
            Outcome { turns: self.turns.load(Ordering::SeqCst), overlaps: Vec::new(), setbacks: Vec::new() };
        for seen in &*self.seen {
            let seen = seen.lock().expect("no panic");
            outcome.overlaps.extend(&seen.overlaps);
            let pairs = seen.tokens.windows(2).map(|two| (two[0], two[1]));
            outcome.setbacks.extend(pairs.filter(|(before, after)| before >= after));
        }
        outcome
    }
}

impl Outcome {
    /// Checks that there were no overlaps and no setbacks.
    pub(crate) fn is_clean(&self) {
        assert_eq!((&self.overlaps[..], &self.setbacks[..]), (&[][..], &[][..]), "of {} turns", self.turns);
    }
}

fn turn(locks: &Locks, at: usize, seen: &Mutex<Seen>) {
    let got = tenure::block_on(async {
        match at {
            0 => locks.mutex("crowd").expect("a name").lock().await,
            _ => locks.fair_mutex("queue").expect("a name").lock().await,
        }
    });
    // There is no answer while the server is down.
    let Ok(guard) = got.map(Arc::new) else { return thread::sleep(Duration::from_millis(10)) };
    {
        let mut seen = seen.lock().expect("no panic");
        let overlap = seen.held.iter().find(|other| other.is_held() && guard.is_held());
        let overlap = overlap.map(|other| (other.fence(), guard.fence()));
        seen.overlaps.extend(overlap);
        seen.tokens.push(guard.fence());
        seen.held.push(Arc::clone(&guard));
    }
    thread::sleep(Duration::from_millis(2));
    seen.lock().expect("no panic").held.retain(|held| !Arc::ptr_eq(held, &guard));
    if let Some(guard) = Arc::into_inner(guard) {
        let _ = tenure::block_on(guard.release());
    }
}
