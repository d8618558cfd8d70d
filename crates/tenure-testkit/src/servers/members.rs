//! The members of a cluster of etcd or ZooKeeper: processes that are stopped, killed and restarted.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use super::between::Between;
use super::eventually;
use super::port::Port;
use super::process::Process;
use super::sweep_dirs_at_exit;

/// One or several servers that elect a leader. Dropping it kills them and removes their directories.
pub trait Ensemble {
    #[doc(hidden)]
    fn members(&self) -> &Members;

    /// The URL scheme.
    #[doc(hidden)]
    fn scheme(&self) -> &'static str;

    /// Whether this member leads; `None` if it knows no leader.
    #[doc(hidden)]
    fn leads(&self, at: usize) -> Option<bool>;

    #[doc(hidden)]
    fn launch(&self, at: usize);

    /// For servers in a `static`, which is never dropped: removes their directory when this process ends.
    #[must_use]
    fn until_exit(self) -> Self
    where
        Self: Sized,
    {
        sweep_dirs_at_exit([self.members().dir.path()]);
        self
    }

    /// The TLS port: `HOST:PORT`.
    ///
    /// # Panics
    /// If it was started without one.
    fn encrypted(&self) -> String {
        self.members().encrypts.as_ref().expect("a server that encrypts").address().to_string()
    }

    /// Cuts a member from the others in both directions while all keep running and serving clients.
    ///
    /// # Panics
    /// If it was not started by `partitioned`.
    fn isolate(&self, at: usize) {
        let members = self.members();
        let between = members.between.as_ref().expect("members whose network can be cut");
        (0..members.count()).filter(|other| *other != at).for_each(|other| between.cut(at, other));
    }

    /// Ends all cuts.
    fn heal(&self) {
        self.members().between.as_ref().expect("members whose network can be cut").heal();
    }

    /// The members' memory, in bytes.
    fn memory(&self) -> u64 {
        let members = self.members();
        (0..members.count()).filter_map(|at| Some(members.process(at).as_ref()?.memory())).sum()
    }

    /// The URL with all members.
    fn url(&self) -> String {
        let addresses = self.members().clients.iter().map(|port| port.address().to_string());
        format!("{}://{}", self.scheme(), addresses.collect::<Vec<_>>().join(","))
    }

    /// The URL of one member.
    fn url_of(&self, at: usize) -> String {
        format!("{}://{}", self.scheme(), self.members().clients[at].address())
    }

    /// The client address of the first member.
    fn address(&self) -> SocketAddr {
        self.members().clients[0].address()
    }

    /// Waits until every running member knows a leader.
    fn ready(&self) {
        let members = self.members();
        let knows = |at| !members.is_running(at) || self.leads(at).is_some();
        let limit = Duration::from_secs(90);
        eventually("there is a leader", limit, || (0..members.count()).all(knows));
    }

    /// The index of the leader; waits until there is one.
    fn leader(&self) -> usize {
        let (members, mut leader) = (self.members(), None);
        eventually("there is a leader", Duration::from_secs(60), || {
            let mut running = (0..members.count()).filter(|at| members.is_running(*at));
            leader = running.find(|at| self.leads(*at) == Some(true));
            leader.is_some()
        });
        leader.expect("there is one")
    }

    /// Stops a member (SIGSTOP).
    fn stop(&self, at: usize) {
        self.members().process(at).as_ref().expect("it runs").stop();
    }

    /// Resumes a member (SIGCONT).
    fn cont(&self, at: usize) {
        self.members().process(at).as_ref().expect("it runs").cont();
    }

    /// Kills a member; its data stays.
    fn kill(&self, at: usize) {
        drop(self.members().process(at).take().expect("it runs"));
    }

    /// Restarts a killed member with its data.
    fn restart(&self, at: usize) {
        assert!(!self.members().is_running(at), "it runs already");
        self.launch(at);
        self.ready();
    }
}

/// Members and their directory. Dropping it kills them and removes the directory.
#[derive(Debug)]
pub struct Members {
    processes: Vec<Mutex<Option<Process>>>,
    pub(super) clients: Vec<Port>,
    /// The TLS port of a single member.
    pub(super) encrypts: Option<Port>,
    pub(super) between: Option<Between>,
    dir: TempDir,
}

impl Members {
    /// `count` members, none of them running. Their directory is on a memory file system if possible, because
    /// every write is synced.
    pub(super) fn new(count: usize, encrypts: Option<Port>, between: Option<Between>) -> Self {
        let shm = Path::new("/dev/shm");
        let mut dir = tempfile::Builder::new();
        dir.prefix("tenure-");
        let dir = if shm.is_dir() { dir.tempdir_in(shm) } else { dir.tempdir() };
        let dir = dir.expect("a temporary directory");
        let processes = (0..count).map(|_| Mutex::default()).collect();
        let clients = (0..count).map(|_| Port::claim()).collect();
        Self { processes, clients, encrypts, between, dir }
    }

    pub(super) fn count(&self) -> usize {
        self.processes.len()
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn log(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("log{at}"))
    }

    fn process(&self, at: usize) -> MutexGuard<'_, Option<Process>> {
        self.processes[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a member's process.
    pub(super) fn run(&self, at: usize, program: &Path, arguments: &[&str]) {
        let process = Process::start(program, arguments, &[], &self.log(at)).expect("setpriv");
        *self.process(at) = Some(process);
        if let Some(between) = &self.between {
            between.know((0..self.count()).map(|at| self.process(at).as_ref().map(Process::id)).collect());
        }
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
}
