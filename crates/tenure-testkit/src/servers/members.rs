//! The members of a cluster: processes that are stopped, killed and restarted.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

use super::process::Process;
use super::sweep_dirs_at_exit;

/// Members and their directory. Dropping it kills them and removes the directory.
#[derive(Debug)]
pub(super) struct Members {
    processes: Vec<Mutex<Option<Process>>>,
    dir: TempDir,
}

impl Members {
    /// `count` members, none of them running. Their directory is on a memory file system if possible, because
    /// every write is synced.
    pub(super) fn new(count: usize) -> Self {
        let shm = Path::new("/dev/shm");
        let mut dir = tempfile::Builder::new();
        dir.prefix("tenure-");
        let dir = if shm.is_dir() { dir.tempdir_in(shm) } else { dir.tempdir() };
        let dir = dir.expect("a temporary directory");
        Self { processes: (0..count).map(|_| Mutex::default()).collect(), dir }
    }

    /// Removes the directory when this process ends; for a `static`.
    pub(super) fn until_exit(&self) {
        sweep_dirs_at_exit([self.dir.path()]);
    }

    pub(super) fn count(&self) -> usize {
        self.processes.len()
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn log(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("log{at}"))
    }

    fn process(&self, at: usize) -> MutexGuard<'_, Option<Process>> {
        self.processes[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a running member.
    pub(super) fn runs(&self, at: usize, process: Process) {
        *self.process(at) = Some(process);
    }

    /// Whether a member was started and not killed.
    ///
    /// # Panics
    /// If it exited by itself.
    pub(super) fn is_running(&self, at: usize) -> bool {
        let mut process = self.process(at);
        let Some(running) = process.as_mut() else { return false };
        let log = || fs::read_to_string(self.log(at)).unwrap_or_default();
        assert!(!running.has_ended(), "a server ended: {}", log());
        true
    }

    pub(super) fn pids(&self) -> Vec<Option<u32>> {
        (0..self.count()).map(|at| self.process(at).as_ref().map(Process::id)).collect()
    }

    /// The memory of all running members, in bytes.
    pub(super) fn memory(&self) -> u64 {
        (0..self.count()).filter_map(|at| Some(self.process(at).as_ref()?.memory())).sum()
    }

    pub(super) fn stop(&self, at: usize) {
        self.process(at).as_ref().expect("it runs").stop();
    }

    pub(super) fn cont(&self, at: usize) {
        self.process(at).as_ref().expect("it runs").cont();
    }

    pub(super) fn kill(&self, at: usize) {
        drop(self.process(at).take().expect("it runs"));
    }
}
