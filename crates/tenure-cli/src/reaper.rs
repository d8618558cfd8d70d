//! Orphans: as process 1 of a container, or as a subreaper, this process becomes the parent of processes
//! whose parents have ended. Nobody else can reap them, so without this they stay zombies.

use std::future::Future;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use tokio::signal::unix::SignalKind;

use crate::exit::Failure;
use crate::platform::{ended_children, gets_orphans};
use crate::signals;

/// Reaps orphans while this process runs; `None` if it gets none. Must run on the thread that starts
/// children, so that none ends between its start and its [`Claim`].
pub(crate) fn reap_orphans() -> Result<Option<impl Future<Output = ()> + Send + 'static>, Failure> {
    if !gets_orphans() {
        return Ok(None);
    }
    let mut changes = signals::stream(SignalKind::child())?;
    Ok(Some(async move {
        loop {
            reap();
            if changes.recv().await.is_none() {
                return;
            }
        }
    }))
}

fn reap() {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if !matches!(waitid(WaitId::All, look), Ok(Some(_))) {
        return;
    }
    let ended = ended_children();
    let claimed = claimed();
    for orphan in ended.into_iter().filter(|child| !claimed.contains(child)) {
        let _ = waitid(WaitId::Pid(orphan), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

/// A child that is reaped by the code that started it; dropped afterwards.
#[derive(Debug)]
pub(crate) struct Claim(Pid);

impl Claim {
    pub(crate) fn of(child: &Child) -> Self {
        let pid = Pid::from_child(child);
        claimed().push(pid);
        Self(pid)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = claimed();
        if let Some(at) = claimed.iter().position(|pid| *pid == self.0) {
            claimed.swap_remove(at);
        }
    }
}

fn claimed() -> MutexGuard<'static, Vec<Pid>> {
    static CLAIMED: Mutex<Vec<Pid>> = Mutex::new(Vec::new());
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner)
}
