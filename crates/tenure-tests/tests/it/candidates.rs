//! Candidates of an election, and schedulers of a job, while servers are killed and stopped.
#![expect(clippy::disallowed_methods, reason = "tests against real servers measure real time")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tenure::{Change, Term, block_on};
use tenure_testkit::servers::{Ensemble, eventually};

use crate::etcd::{client, kills};
use crate::schedulers::Schedulers;

const LIMIT: Duration = Duration::from_secs(120);
/// The payload of the last term.
const LAST: &str = "last";

/// What the candidates have seen, and violations.
#[derive(Default)]
struct Seen {
    wrong: Mutex<Vec<String>>,
    /// The leader, and the highest term.
    leads: Mutex<(Option<Arc<Term>>, u64)>,
    is_over: AtomicBool,
}

impl Seen {
    fn is_wrong(&self, what: String) {
        self.wrong.lock().expect("no panic").push(what);
    }

    fn leads(&self, term: &Arc<Term>) {
        let mut leads = self.leads.lock().expect("no panic");
        if let Some(other) = leads.0.as_ref().filter(|other| other.is_current() && term.is_current()) {
            self.is_wrong(format!("{} and {} lead at once", other.fence(), term.fence()));
        }
        if term.is_current() && term.fence() <= leads.1 {
            self.is_wrong(format!("term {} after {}", term.fence(), leads.1));
        }
        *leads = (Some(Arc::clone(term)), term.fence().max(leads.1));
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// Threads that take turns as leader, and one observer.
struct Candidates {
    url: String,
    seen: Arc<Seen>,
    terms: Vec<Arc<AtomicU64>>,
    threads: Vec<thread::JoinHandle<()>>,
    observer: thread::JoinHandle<u64>,
    schedulers: Schedulers,
}

impl Candidates {
    fn start(url: &str, count: usize) -> Self {
        let seen = Arc::<Seen>::default();
        let terms: Vec<Arc<AtomicU64>> = (0..count).map(|_| Arc::default()).collect();
        let threads = terms.iter().map(|terms| {
            let (url, seen, terms) = (url.to_owned(), Arc::clone(&seen), Arc::clone(terms));
            thread::spawn(move || campaign(&url, &seen, &terms))
        });
        let threads = threads.collect();
        let (of, told) = (url.to_owned(), Arc::clone(&seen));
        let observer = thread::spawn(move || observe(&of, &told));
        let schedulers = Schedulers::start([(); 3].map(|()| client(url)));
        Self { url: url.to_owned(), seen, terms, threads, observer, schedulers }
    }

    /// Waits until each has led once more and the job has run in another window.
    fn goes_on(&self) {
        let led = || self.terms.iter().map(|terms| terms.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = led();
        eventually("each leads once more", LIMIT, || {
            led().iter().zip(&before).all(|(now, before)| now > before)
        });
        self.schedulers.goes_on();
    }

    fn end(self) {
        self.seen.is_over.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let last = client(&self.url).election("crowd", LAST).expect("a name");
        drop(block_on(last.campaign()).expect("a term"));
        let observed = self.observer.join().expect("no panic");
        println!("{observed} terms observed");
        self.schedulers.end();
        assert_eq!(*self.seen.wrong.lock().expect("no panic"), Vec::<String>::new());
    }
}

fn campaign(url: &str, seen: &Seen, terms: &AtomicU64) {
    let locks = client(url);
    let election = locks.election("crowd", "").expect("a name");
    // Requests fail while the servers have no leader.
    while !seen.is_over() {
        let Ok(term) = block_on(election.campaign()) else { continue };
        let term = Arc::new(term);
        seen.leads(&term);
        thread::sleep(Duration::from_millis(5));
        seen.leads.lock().expect("no panic").0.take_if(|leads| Arc::ptr_eq(leads, &term));
        let led = terms.fetch_add(1, Ordering::Relaxed);
        match Arc::try_unwrap(term) {
            // The other half are dropped without a release.
            Ok(term) if led.is_multiple_of(2) => drop(block_on(term.resign())),
            _ => {}
        }
    }
}

/// Follows the terms until the last one; returns their number.
fn observe(url: &str, seen: &Seen) -> u64 {
    let mut observer = client(url).election("crowd", "").expect("a name").observe();
    let (mut last, mut count) = (0, 0);
    loop {
        match block_on(observer.next()) {
            Ok(Change::Elected(leader)) => {
                if leader.fence <= last {
                    seen.is_wrong(format!("observed term {} after {last}", leader.fence));
                }
                (last, count) = (leader.fence, count + 1);
                if leader.payload == LAST {
                    return count;
                }
            }
            Ok(Change::Updated(leader) | Change::Resigned(leader)) if leader.fence == last => {}
            Ok(Change::Missed(_)) => {}
            Ok(other) => seen.is_wrong(format!("observed {other:?} in term {last}")),
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Four candidates continue while the servers' leader is killed and then stopped.
pub(crate) fn outlast_leaders(servers: &impl Ensemble) {
    let candidates = Candidates::start(&servers.url(), 4);
    candidates.goes_on();
    for _ in 0..kills() {
        let leader = servers.leader();
        servers.kill(leader);
        candidates.goes_on();
        servers.restart(leader);
        candidates.goes_on();
        let leader = servers.leader();
        servers.stop(leader);
        candidates.goes_on();
        servers.cont(leader);
        candidates.goes_on();
    }
    candidates.end();
}
