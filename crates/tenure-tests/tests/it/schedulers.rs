//! Schedulers of one job while servers fail.
#![expect(clippy::disallowed_methods, reason = "these tests use real time and threads as their callers do")]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use tenure::{Locks, Result, block_on};
use tenure_testkit::servers::eventually;
use tokio::sync::watch;

const WINDOW: Duration = Duration::from_secs(1);
/// Longer than a failover and the backoff of a scheduler that could not reach its store meanwhile.
const LIMIT: Duration = Duration::from_secs(120);

/// Threads that run a job in each window.
pub(crate) struct Schedulers {
    /// Number of runs, by the start of the window.
    runs: Arc<Mutex<BTreeMap<SystemTime, u32>>>,
    /// They end when it is dropped.
    end: watch::Sender<()>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Schedulers {
    pub(crate) fn start(clients: impl IntoIterator<Item = Locks>) -> Self {
        let (runs, (end, _)) = (Arc::default(), watch::channel(()));
        let schedule = |locks| {
            let (runs, ended) = (Arc::clone(&runs), end.subscribe());
            thread::spawn(move || block_on(run_each(&locks, &runs, ended)))
        };
        let threads = clients.into_iter().map(schedule).collect();
        Self { runs, end, threads }
    }

    /// Waits until the job has run in a later window.
    pub(crate) fn goes_on(&self) {
        let last = || self.runs.lock().expect("no panic").keys().next_back().copied();
        let before = last();
        eventually("the job runs again", LIMIT, || last() > before);
    }

    /// Checks that no window had two runs.
    pub(crate) fn end(self) {
        drop(self.end);
        for thread in self.threads {
            thread.join().expect("no panic").expect("an outage is no error of a scheduler");
        }
        let runs = self.runs.lock().expect("no panic");
        println!("runs in {} windows", runs.len());
        let twice: Vec<_> = runs.iter().filter(|(_, count)| **count > 1).collect();
        assert!(twice.is_empty(), "ran again in {twice:?}");
    }
}

async fn run_each(
    locks: &Locks,
    runs: &Mutex<BTreeMap<SystemTime, u32>>,
    mut ended: watch::Receiver<()>,
) -> Result<()> {
    let job = locks.once_per("scheduled", WINDOW)?;
    let end = async { while ended.changed().await.is_ok() {} };
    let run = job.run_each_until(end, async |turn| {
        *runs.lock().expect("no panic").entry(turn.window().start).or_default() += 1;
        Ok::<_, fmt::Error>(())
    });
    run.await
}
