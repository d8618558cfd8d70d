//! A free lock does not stay free while somebody waits.

use tenure::LockName;

use super::{Book, Oracle, Wait};
use crate::sim::clock::{MS, TrueTime};
use crate::sim::executor::{ProcessId, Sim, lock};

const PROGRESS: &str = "progress";

/// How long a lock may stay free while somebody waits for it, when nothing fails: the message, the question, and the turn that
/// busy processes leave to one another.
const HAND_OVER: TrueTime = 150 * MS;

impl Book {
    /// The server granted a lock: nobody waited for it all the while that it was free, unless that was short.
    pub(super) fn check_prompt(&mut self, at: TrueTime, name: &LockName, sim: &Sim) {
        let free_since = self.locks.get(name).map_or(0, |lock| lock.free_since).max(self.strict_from);
        let most = HAND_OVER + self.drift;
        if at <= free_since + most {
            return;
        }
        let waited = self.waits.iter().find(|wait| {
            let since = free_since.max(wait.since);
            wait.name == *name && at > since + most && sim.ran_since(wait.process, since)
        });
        if let Some(wait) = waited {
            let what = format!(
                "{name} was free for {} ms while a task of process {} waited for it",
                (at - free_since.max(wait.since)) / MS,
                wait.process
            );
            self.accuse(at, PROGRESS, what);
        }
    }
}

impl Oracle {
    /// A task begins to wait for a lock, without a limit; it ends when the answer is dropped.
    pub fn waits(&self, process: ProcessId, name: &LockName) -> Waiting {
        let since = self.sim.now();
        let mut book = lock(&self.book);
        book.next_id += 1;
        let id = book.next_id;
        book.waits.push(Wait { id, name: name.clone(), process, since });
        Waiting { oracle: self.clone(), id }
    }

    /// The schedule is over and was long enough for everything in it: nobody may still wait.
    pub fn check_served(&self) {
        let at = self.sim.now();
        let mut book = lock(&self.book);
        let waits = book.waits.iter().find(|wait| self.sim.runs(wait.process));
        if let Some(wait) = waits {
            let what = format!(
                "a task of process {} waits for {} since {:.3} s",
                wait.process,
                wait.name,
                wait.since as f64 / 1e9
            );
            book.accuse(at, PROGRESS, what);
        }
    }
}

/// A task waits until this is dropped.
#[derive(Debug)]
pub struct Waiting {
    oracle: Oracle,
    id: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        lock(&self.oracle.book).waits.retain(|wait| wait.id != self.id);
    }
}
