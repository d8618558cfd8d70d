//! The background process of `tenure acquire --hold`: renews a lock until it is released, until another
//! process ends, or until a script's descriptor is closed.

use std::env::ArgsOs;
use std::fs::File;
use std::future::poll_fn;
use std::io::{self, Write};
use std::pin::pin;
use std::thread;
use std::time::Duration;

use clap::Parser;
use futures_util::future::{Either, pending, select};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, setsid};
use tenure::{Guard, Locks, Owner};
use tokio::sync::oneshot;

use crate::asked::with_runtime;
use crate::cli::Store;
use crate::descriptor;
use crate::duration::duration;
use crate::exit::{Failure, LOST, USAGE};
use crate::platform::Handle;
use crate::signals::{FORWARDED, Signals, block};
use crate::store::{self, Guarantees};

#[derive(Parser)]
#[command(no_binary_name = true)]
struct Keep {
    #[command(flatten)]
    store: Store,
    #[arg(long, value_parser = duration)]
    ttl: Duration,
    #[arg(long)]
    owner: String,
    #[arg(long)]
    while_pid: Option<i32>,
    #[arg(long)]
    fd: Option<i32>,
    name: String,
}

/// Signals upon which it releases the lock, unless the end of a script does that.
const ENDS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::QUIT];

/// The stage that keeps the lock. The first line of its output reports success, or the exit code and the reason.
pub(crate) fn stage(args: ArgsOs) -> Option<u8> {
    let args = &Keep::try_parse_from(args).ok()?;
    // Detach from the terminal and from the script's process group.
    let _ = setsid();
    // A service manager sends them to every process of a unit, and the script may work on.
    block(match args.while_pid.is_some() || args.fd.is_some() {
        true => &FORWARDED,
        false => &[Signal::HUP, Signal::USR1, Signal::USR2],
    });
    Some(match last(args).and_then(|last| with_runtime(async |_| until_over(args, last).await)) {
        Ok(()) => 0,
        Err(Failure { code, message }) => {
            let _ = writeln!(io::stdout(), "{code} {message}");
            code
        }
    })
}

/// What the lock's lifetime is tied to.
enum Last {
    Process(Handle),
    /// A script's descriptor of this file, locked by the OS.
    Descriptor(File),
}

fn last(args: &Keep) -> Result<Option<Last>, Failure> {
    let file = args.fd.map(descriptor::again).transpose()?;
    descriptor::close_inherited(file.as_ref());
    let process = args.while_pid.map(process).transpose()?;
    Ok(file.map(Last::Descriptor).or(process.map(Last::Process)))
}

async fn until_over(args: &Keep, last: Option<Last>) -> Result<(), Failure> {
    let mut signals = Signals::catch(&ENDS)?;
    let locks = store::open(&args.store, Guarantees::default(), |options| options.ttl(args.ttl))?;
    let owner: Owner = args.owner.parse()?;
    let Some(guard) = locks.resume(&args.name, &owner).await? else {
        return Err(Failure::new(LOST, "the lease expired before the lock could be kept"));
    };
    // The script that waits for the output continues.
    let mut out = io::stdout();
    let _ = out.write_all(b"kept\n").and_then(|()| out.flush());
    if !is_over(last, &locks, &guard, &mut signals).await {
        let _ = guard.release().await;
    }
    Ok(())
}

/// Waits until the lock was released or lost (`true`), or what it was kept for ends, or `tenure stop` or a signal asks
/// for its release.
async fn is_over(last: Option<Last>, locks: &Locks, guard: &Guard, signals: &mut Signals) -> bool {
    let stopped = pin!(async {
        let asked = pin!(locks.stop_requested(guard));
        match select(asked, poll_fn(|context| signals.poll(context))).await {
            Either::Left((Err(_), signal)) => drop(signal.await),
            Either::Left(_) | Either::Right(_) => {}
        }
    });
    let ended = pin!(async {
        let told = match last.map(end_of) {
            Some(Ok(ended)) => ended.await.is_ok(),
            _ => false,
        };
        // If the system cannot tell when it ends, do not treat that as the end.
        if !told {
            pending().await
        }
    });
    matches!(select(guard.lost(), select(ended, stopped)).await, Either::Left(_))
}

/// Resolves when it has ended; cancelled if the system cannot detect that.
fn end_of(last: Last) -> io::Result<oneshot::Receiver<()>> {
    let (sender, ended) = oneshot::channel();
    thread::Builder::new().name("end".into()).spawn(move || {
        let waited = match last {
            Last::Process(process) => process.wait(),
            // Closes the file afterwards, because the next holder's script may use it, too.
            Last::Descriptor(file) => descriptor::wait(&file),
        };
        // Dropped without a message if the wait failed.
        let _ = waited.map(|()| sender.send(()));
    })?;
    Ok(ended)
}

/// The process whose end releases the lock.
pub(crate) fn process(pid: i32) -> Result<Handle, Failure> {
    let refuse = |why: String| Failure::new(USAGE, format!("--while-pid {pid}: {why}"));
    if pid <= 0 {
        return Err(refuse("it must be above 0".into()));
    }
    let pid = Pid::from_raw(pid).expect("it is above 0");
    match Handle::open(pid) {
        Ok(process) if process.has_ended() => Err(refuse("it has ended".into())),
        Ok(process) => Ok(process),
        Err(Errno::SRCH) => Err(refuse("there is no such process".into())),
        Err(error) => Err(refuse(error.to_string())),
    }
}
