//! `tenure acquire`, `renew` and `verify`: locks that outlive the process that acquires them.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tenure::{LockName, Locks, Owner};
use tokio::task::yield_now;

use crate::cli::{Acquire, Kind, Renew, Verify};
use crate::exit::{self, Failure};
use crate::output::{self, Voice};
use crate::store::{self, Guarantees};
use crate::wanted::Wanted;
use crate::{asked, clock, descriptor, keep, launch, take, work};

/// Acquires a lock and prints its owner; returns the exit code.
pub(crate) fn acquire(args: &Acquire) -> u8 {
    let voice = args.output.voice();
    asked::run(voice, take_and_leave(args, voice))
}

async fn take_and_leave(args: &Acquire, voice: Voice) -> Result<u8, Failure> {
    let request = &args.request;
    refuse_reentrant(&request.kind)?;
    // Fail before a lock is acquired that could not be kept.
    args.while_pid.map(keep::process).transpose()?;
    args.fd.map(descriptor::check).transpose()?;
    let is_silent = args.fd.is_some() && !args.json;
    if !is_silent && args.while_pid.is_none() && output::is_closed() {
        let message = "standard output is closed, so nothing could learn the owner and release the lock";
        return Err(Failure::new(exit::OWN, message));
    }
    let (mut signals, _too_large) = work::signals()?;
    let locks =
        store::open(&args.store, take::guarantees(request), |options| take::options(request, options))?;
    let wanted = Wanted { request, also: &[], locks: &locks, voice, is_rerun: false };
    let guards = match wanted.take(&mut signals).await? {
        Ok(guards) => guards,
        Err(code) => return Ok(code),
    };
    let guard = guards.into_guards().pop().expect("one lock was asked for");
    let token = guard.fence();
    // Detaching renews once more, so the lease ends no sooner than that.
    let deadline_ms = millis(clock::unix() + guard.remaining());
    let owner = guard.detach().await?;
    let kept = match args.fd {
        Some(fd) => descriptor::lock(fd).and_then(|()| start_keeper(args, &owner)),
        None if args.hold => start_keeper(args, &owner),
        None => Ok(()),
    };
    // One that came since the grant.
    let signal = signals.or_end(yield_now()).await.err();
    if kept.is_err() || signal.is_some() {
        give_back(&locks, &request.name, &owner).await?;
        return kept.map(|()| signal.map_or(0, exit::of_signal));
    }
    if is_silent {
        return Ok(0);
    }
    let line = match args.json {
        true => {
            let object = json!({
                "name": request.name, "owner": owner.as_str(), "token": token, "deadline_ms": deadline_ms,
            });
            format!("{object}\n")
        }
        false => format!("{owner}\n"),
    };
    // Without the owner, nobody could release the lock.
    match signals.or_end(output::print_aside(line)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            give_back(&locks, &request.name, &owner).await?;
            return Err(Failure::own("cannot print the owner; the lock was released", &error));
        }
        Err(signal) => {
            give_back(&locks, &request.name, &owner).await?;
            return Ok(exit::of_signal(signal));
        }
    }
    match args.fd.is_none() && !args.hold && millis(clock::unix()) >= deadline_ms {
        true => Err(not_held(&request.name, &owner)?),
        false => Ok(0),
    }
}

/// Holds of a reentrant mutex are counted, and an owner may have several.
fn refuse_reentrant(kind: &Kind) -> Result<(), Failure> {
    if !kind.reentrant {
        return Ok(());
    }
    let message = "--reentrant: one owner may hold such a lock several times, so an owner does not \
                   identify a hold; use `tenure run --reentrant`";
    Err(Failure::new(exit::USAGE, message))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

async fn give_back(locks: &Locks, name: &str, owner: &Owner) -> Result<(), Failure> {
    if let Some(guard) = locks.resume(name, owner).await? {
        guard.release().await?;
    }
    Ok(())
}

/// Starts the keeper process, and waits until it has taken over.
fn start_keeper(args: &Acquire, owner: &Owner) -> Result<(), Failure> {
    let request = &args.request;
    let mut renewing = launch::again();
    renewing.arg(launch::KEEP).arg(format!("--ttl={}ms", request.ttl.as_millis()));
    renewing.args([format!("--prefix={}", args.store.prefix), format!("--owner={owner}")]);
    renewing.args(args.while_pid.map(|pid| format!("--while-pid={pid}")));
    renewing.args(args.fd.map(|fd| format!("--fd={fd}")));
    renewing.args(["--", &request.name]);
    // Not as an argument, which every user of the machine can read: it may contain a password.
    renewing.env(store::STORE_URL, store::url_with(&args.store, take::guarantees(request))?);
    renewing.env_remove(store::STORE_FILE);
    renewing.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let what = "cannot start the process that keeps the lock";
    let own = |error| Failure::new(exit::OWN, launch::unstarted(what, &error));
    let mut renewing = renewing.spawn().map_err(own)?;
    let mut said = String::new();
    let mut pipe = BufReader::new(renewing.stdout.take().expect("its output is a pipe"));
    pipe.read_line(&mut said).map_err(own)?;
    match said.trim_end().split_once(' ') {
        _ if said == "kept\n" => Ok(()),
        Some((code, message)) => Err(Failure::new(code.parse().unwrap_or(exit::OWN), message)),
        None => Err(Failure::new(exit::OWN, "the process that keeps the lock exited immediately")),
    }
}

/// Renews the lease of a hold; returns the exit code.
pub(crate) async fn renew(args: &Renew) -> Result<u8, Failure> {
    let owner: Owner = args.owner.parse()?;
    let guarantees = Guarantees { acks: args.acks.replicas, ..Guarantees::default() };
    let locks = store::open_existing_with(&args.target.store, guarantees, |options| options.ttl(args.ttl))?;
    let asked = clock::unix();
    let Some(left) = store::unless_absent(&locks, locks.renew_detached(&args.target.name, &owner)).await??
    else {
        return Err(not_held(&args.target.name, &owner)?);
    };
    if args.json {
        let deadline_ms = millis(asked + left);
        let object: Value =
            json!({ "name": args.target.name, "owner": owner.as_str(), "deadline_ms": deadline_ms });
        if output::is_closed() {
            return Err(Failure::new(exit::OWN, "cannot print: standard output is closed"));
        }
        output::print_all(format!("{object}\n")).map_err(|error| Failure::own("cannot print", &error))?;
    }
    Ok(0)
}

/// Checks whether this owner holds the lock; returns the exit code.
pub(crate) async fn verify(args: &Verify) -> Result<u8, Failure> {
    let owner: Owner = args.owner.parse()?;
    let locks = store::open_existing(&args.target.store)?;
    let status = store::unless_absent(&locks, locks.inspect(&args.target.name)).await??;
    let is_held =
        |status: &tenure::Status| status.holders.iter().any(|holder| holder.owner.as_ref() == Some(&owner));
    match status {
        Some(status) if is_held(&status) => Ok(0),
        Some(status) if status.unlisted > 0 => {
            let message = format!("lock {:?} has more holders than the store lists", status.name);
            Err(Failure::new(exit::STORE, message))
        }
        _ => Err(not_held(&args.target.name, &owner)?),
    }
}

/// Releases this owner's hold; returns the exit code.
pub(crate) async fn release(locks: &Locks, name: &str, owner: &str) -> Result<u8, Failure> {
    let owner: Owner = owner.parse()?;
    // An unanswered release leaves the lock held until its lease ends, so use the shortest lease.
    let locks = locks.with(|options| options.ttl(Duration::from_secs(1)))?;
    let Some(guard) = store::unless_absent(&locks, locks.resume(name, &owner)).await?? else {
        return Err(not_held(name, &owner)?);
    };
    guard.release().await?;
    Ok(0)
}

fn not_held(name: &str, owner: &Owner) -> Result<Failure, Failure> {
    let name = LockName::new(name)?;
    Ok(Failure::new(exit::LOST, format!("lock {name:?} is not held by {owner} any more")))
}
