//! The process that `tenure acquire --hold` leaves in the background: it renews a lock until that
//! is released, or another process ends.

use std::io::{self, Write};
use std::pin::pin;
use std::thread;

use futures_util::future::{Either, pending, select};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, setsid};
use tenure::{Guard, Locks, Owner};
use tokio::sync::oneshot;

use crate::cli::Keep;
use crate::exit::{Failure, LOST, USAGE};
use crate::store::{self, Terms};

/// Keeps the lock. The first line of its output says that it does, or the code and the reason why
/// not.
pub(crate) fn keep(args: &Keep) -> u8 {
    // Neither the terminal nor what ends the group of the script reaches it.
    let _ = setsid();
    match tenure::block_on(until_over(args)) {
        Ok(()) => 0,
        Err(Failure { code, message }) => {
            let _ = writeln!(io::stdout(), "{code} {message}");
            code
        }
    }
}

async fn until_over(args: &Keep) -> Result<(), Failure> {
    let process = args.while_pid.map(process).transpose()?;
    let locks = store::open(&args.store, Terms::default(), |options| options.ttl(args.ttl))?;
    let owner: Owner = args.owner.parse()?;
    let Some(guard) = locks.resume(&args.name, &owner).await? else {
        return Err(Failure { code: LOST, message: "the lease was over before it could be kept".into() });
    };
    say_kept();
    release_at_the_end_of(process, &locks, guard).await;
    Ok(())
}

/// After this the script that waits for the output goes on.
fn say_kept() {
    let mut out = io::stdout();
    let _ = out.write_all(b"kept\n").and_then(|()| out.flush());
}

/// Returns when the lock was released or lost, or when it was released here because the process has
/// ended or `tenure stop` asked for it.
async fn release_at_the_end_of(process: Option<OwnedFd>, locks: &Locks, guard: Guard) {
    if is_over(process, locks, &guard).await {
        return;
    }
    let _ = guard.release().await;
}

/// Returns whether the lock was released or lost, or is to be released here.
async fn is_over(process: Option<OwnedFd>, locks: &Locks, guard: &Guard) -> bool {
    let stopped = pin!(async {
        if locks.stop_requested(guard).await.is_err() {
            pending().await
        }
    });
    let ended = pin!(async {
        let told = match process.map(end_of) {
            Some(Ok(ended)) => ended.await.is_ok(),
            _ => false,
        };
        // Where the system does not tell when the process ends, that is not its end.
        if !told {
            pending().await
        }
    });
    matches!(select(guard.lost(), select(ended, stopped)).await, Either::Left(_))
}

/// Resolves when the process has ended, or to an error where the system does not tell.
fn end_of(process: OwnedFd) -> io::Result<oneshot::Receiver<()>> {
    let (sender, ended) = oneshot::channel();
    thread::Builder::new().name("process".into()).spawn(move || {
        let mut fds = [PollFd::new(&process, PollFlags::IN)];
        let polled = loop {
            match poll(&mut fds, None) {
                Err(Errno::INTR) => {}
                polled => break polled,
            }
        };
        // Dropped where the system refuses to say.
        let _ = polled.map(|_| sender.send(()));
    })?;
    Ok(ended)
}

/// It names this process also when its number is given to another.
pub(crate) fn process(pid: i32) -> Result<OwnedFd, Failure> {
    let refuse = |why: String| Failure { code: USAGE, message: format!("--while-pid {pid}: {why}") };
    if pid <= 0 {
        return Err(refuse("a process has a number above 0".into()));
    }
    let pid = Pid::from_raw(pid).expect("it is above 0");
    pidfd_open(pid, PidfdFlags::empty()).map_err(|error| match error {
        Errno::SRCH => refuse("there is no such process".into()),
        error => refuse(error.to_string()),
    })
}
