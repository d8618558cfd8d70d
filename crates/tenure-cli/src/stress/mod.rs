//! `tenure stress`: processes of this program contend for locks on the store, and their histories are judged.
//!
//! A `worker` acquires locks and writes its history; the `crew` starts workers, reads their histories and
//! kills or pauses some; `tenure-history` merges the histories and reports violations.
#![expect(clippy::disallowed_methods, reason = "the command uses timers of tokio")]

use std::fmt::Write;
use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tenure::Locks;
use tenure_history::judge::{Judge, Length};
use tenure_history::line::{End, Sort};
use tokio::time::sleep;

use crate::cli::Stress;
use crate::exit::{self, Failure, USAGE};
use crate::output::{self, Line, Span, Voice, complain, plural};
use crate::signals::Signals;
use crate::{asked, clock, store, version};

mod crew;
pub(crate) mod worker;

use crew::Crew;
use worker::{Dice, Orders, PERMITS, lock, nanos, now};

/// Poll interval.
const LOOK: Duration = Duration::from_millis(10);
/// How long a busy machine may take for something that is due.
const BUSY: Duration = Duration::from_secs(5);
/// Maximum time a queue keeps the place of a dead waiter.
const PLACE: Duration = Duration::from_secs(5);

/// Stresses a store; returns the exit code.
pub(crate) fn stress(args: &Stress) -> u8 {
    // On this thread: the kernel kills each worker when the thread that started it ends.
    asked::code(asked::with_runtime(async |_| hammer(args).await), Voice::LOUD)
}

/// The faults that were injected.
#[derive(Debug, Default)]
struct Faults {
    killed: u64,
    stopped: u64,
    hooks: u64,
    hooks_failed: u64,
    /// The exit status of the last failed hook.
    failure: Option<ExitStatus>,
}

impl Faults {
    fn hook_ended(&mut self, status: ExitStatus) {
        if !status.success() {
            self.hooks_failed += 1;
            self.failure = Some(status);
        }
    }
}

async fn hammer(args: &Stress) -> Result<u8, Failure> {
    let own = |error: io::Error| Failure::own("stress cannot continue", &error);
    let mut signals = Signals::catch(&[Signal::INT, Signal::TERM])?;
    if args.stall <= args.ttl {
        let message = "--stall must be longer than --ttl: a killed holder keeps its lock for a lease";
        return Err(Failure::new(USAGE, message));
    }
    let other = args.with.as_deref().map(version::of).transpose()?;
    let url = store::url(&args.store)?;
    let mut orders = Orders {
        prefix: args.store.prefix.clone(),
        ttl: args.ttl,
        hold: args.hold,
        tasks: args.tasks,
        names: args.names,
        run: format!("stress-{:x}:", clock::unix().as_micros()),
        sorts: Vec::new(),
        pulse: worker::pulse(args.processes),
    };
    let locks = Locks::open(&url)?.with(|_| orders.options())?;
    orders.sorts = sorts(args, &locks)?;
    // The store must answer. Its other locks do not matter, because names are new with each run.
    let asked = locks.with(|options| options.op_timeout(store::PATIENCE))?;
    store::unless_absent(&locks, asked.inspect(&orders.name(lock(Sort::Mutex, 0)))).await??;

    let begun = now();
    let mut judge = Judge::new(begun, nanos(args.stall));
    let mut crew = Crew::new(args.with.clone(), url, orders.clone());
    for _ in 0..args.processes {
        crew.start().map_err(own)?;
    }
    let faults = run(args, begun, &mut crew, &mut judge, &mut signals).await.map_err(own)?;
    // Waiting and holding tasks stop at once. A process that takes longer is stuck.
    let limit = now() + nanos(args.stall + BUSY);
    crew.end();
    while !crew.is_empty() && now() < limit {
        sleep(LOOK).await;
        crew.hear(&mut judge).map_err(own)?;
    }
    let stuck = crew.kill_the_rest();
    while !crew.is_empty() {
        sleep(LOOK).await;
        crew.hear(&mut judge).map_err(own)?;
    }
    judge.finish();
    for worker in stuck {
        judge.accuse("progress", format_args!("process {worker} did not end when asked to"));
    }
    let left = left_behind(&locks, &orders, now() + nanos(args.ttl + PLACE + BUSY)).await;
    if let Ok(left) = &left {
        left.iter().for_each(|one| judge.accuse("left behind", one));
    }
    let took = Duration::from_nanos(now() - begun);
    let left = left.map(|left| left.len());
    if let Some(other) = other {
        output::print(format_args!("versions: {}, {other}\n", version::own()))?;
    }
    output::print(verdict(&judge, &faults, left.as_ref().ok().copied(), took))?;
    if judge.violated() > 0 {
        return Ok(exit::VIOLATED);
    }
    left?;
    if let Some(failure) = faults.failure {
        let hooks = plural(faults.hooks_failed, "hook");
        let message = format!("{hooks} of {} failed, the last with {failure}", faults.hooks);
        return Err(Failure::new(exit::OWN, message));
    }
    match judge.failure {
        Some(failure) if judge.checked() == 0 => {
            Err(Failure::new(exit::STORE, format!("no lock was granted: {failure}")))
        }
        _ => Ok(0),
    }
}

/// The requested kinds, or all that the store supports.
fn sorts(args: &Stress, locks: &Locks) -> Result<Vec<Sort>, Failure> {
    let try_one = |sort| {
        let owner = tenure::Owner::new("stress")?;
        match sort {
            Sort::Mutex => locks.mutex("stress").map(drop),
            Sort::Fair => locks.fair_mutex("stress").map(drop),
            Sort::Rwlock => locks.rwlock("stress").map(drop),
            Sort::Semaphore => locks.semaphore("stress", PERMITS).map(drop),
            Sort::Reentrant => locks.reentrant_mutex("stress", &owner).map(drop),
        }
    };
    let mut found = Vec::new();
    for sort in if args.kind.is_empty() { &Sort::ALL[..] } else { &args.kind } {
        match try_one(*sort) {
            Ok(()) => found.push(*sort),
            Err(error) if error.is_unsupported() && args.kind.is_empty() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// Runs until the time is over or a signal arrives.
async fn run(
    args: &Stress,
    begun: u64,
    crew: &mut Crew,
    judge: &mut Judge,
    signals: &mut Signals,
) -> io::Result<Faults> {
    let (dice, mut faults) = (Dice::new(), Faults::default());
    let every = nanos(args.every);
    let next = || now() + every / 2 + dice.below(every + 1);
    let (mut kill_at, mut stop_at, mut hook_at) = (next(), next(), next());
    let mut hook: Option<Child> = None;
    let pause = nanos((args.length / 10).clamp(Duration::from_secs(1), Duration::from_secs(60)));
    let (end, mut tell_at) = (begun + nanos(args.length), begun + pause);
    while now() < end {
        if let Err(signal) = signals.or_end(sleep(LOOK)).await {
            complain(format_args!("ended early, by signal {}", signal.as_raw()));
            break;
        }
        crew.hear(judge)?;
        let now = now();
        if args.kill && kill_at <= now {
            faults.killed += u64::from(crew.kill_one(&dice)?);
            kill_at = next();
        }
        if args.pause && stop_at <= now {
            faults.stopped += u64::from(crew.stop_one(&dice, dice.up_to(2 * args.ttl)));
            stop_at = next();
        }
        match (&mut hook, &args.hook) {
            (Some(running), _) => {
                if let Some(status) = running.try_wait()? {
                    faults.hook_ended(status);
                    (hook, hook_at) = (None, next());
                }
            }
            (None, Some(command)) if hook_at <= now => {
                faults.hooks += 1;
                hook = Some(start(command)?);
            }
            _ => {}
        }
        if tell_at <= now {
            let (so_far, all) = (Span(Duration::from_nanos(now - begun)), Span(args.length));
            complain(format_args!("{so_far} of {all}: {}", progress(judge, &faults)));
            tell_at += pause;
        }
    }
    // The hook may be about to repair what it broke.
    if let Some(mut hook) = hook {
        let limit = now() + nanos(BUSY);
        while hook.try_wait()?.is_none() && now() < limit {
            sleep(LOOK).await;
            crew.hear(judge)?;
        }
        if hook.try_wait()?.is_none() {
            let _ = kill_process_group(Pid::from_child(&hook), Signal::KILL);
            complain(format_args!("the hook did not end within {} and was killed", Span(BUSY)));
        }
        faults.hook_ended(hook.wait()?);
    }
    Ok(faults)
}

/// Starts a user's command, with its output on standard error, like our progress.
fn start(hook: &str) -> io::Result<Child> {
    let mut command = Command::new("sh");
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.args(["-c", hook]).stdin(Stdio::null()).stdout(io::stderr()).spawn()
}

/// Locks that are still held or awaited after all processes have ended and all leases have expired.
async fn left_behind(locks: &Locks, orders: &Orders, limit: u64) -> Result<Vec<String>, Failure> {
    let mut left = Vec::new();
    for sort in &orders.sorts {
        for number in 0..orders.names {
            let name = orders.name(lock(*sort, number));
            loop {
                match locks.inspect(&name).await {
                    Ok(None) => break,
                    Ok(Some(status)) if now() >= limit => {
                        let (holders, waiters) = (status.holders.len() as u64, status.waiters.len() as u64);
                        let (holders, waiters) = (plural(holders, "holder"), plural(waiters, "waiter"));
                        left.push(format!("{} has {holders} and {waiters}", Line(&name)));
                        break;
                    }
                    Err(error) if now() >= limit => return Err(error.into()),
                    _ => sleep(LOOK).await,
                }
            }
        }
    }
    Ok(left)
}

fn progress(judge: &Judge, faults: &Faults) -> String {
    let mut text = format!("{} checked", plural(judge.checked(), "acquisition"));
    let mut add = |count: u64, what: &str| {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    };
    add(faults.killed, "killed");
    add(faults.stopped, "stopped");
    add(faults.hooks, "hooks run");
    add(judge.failed, "failed");
    let lost = judge.ends.get(&End::Lost).copied().unwrap_or(0);
    add(lost, "lost");
    add(judge.violated(), "VIOLATIONS");
    if let Some(stall) = judge.stall {
        let _ = write!(text, ", longest stall {}", Length(stall.length));
    }
    text
}

/// The text printed at the end.
fn verdict(judge: &Judge, faults: &Faults, left: Option<usize>, took: Duration) -> String {
    let list = |all: Vec<String>| if all.is_empty() { "none".to_owned() } else { all.join(", ") };
    let grants: Vec<String> = judge.grants.iter().map(|(sort, count)| format!("{sort} {count}")).collect();
    let ends: Vec<String> = judge.ends.iter().map(|(end, count)| format!("{count} {end}")).collect();
    let mut text = format!("acquisitions checked: {} in {}", judge.checked(), Span(took));
    if !grants.is_empty() {
        let _ = write!(text, " ({})", list(grants));
    }
    let _ = write!(text, "\nholds: {}\n", list(ends));
    let _ = writeln!(text, "waits given up: {}", judge.left);
    let _ = write!(text, "requests that failed: {}", judge.failed);
    if let Some(failure) = &judge.failure {
        let _ = write!(text, ", the last: {}", Line(failure));
    }
    let Faults { killed, stopped, hooks, hooks_failed, .. } = faults;
    let _ = write!(text, "\nfaults: {killed} killed, {stopped} stopped, {hooks} hooks run");
    if *hooks_failed > 0 {
        let _ = write!(text, " ({hooks_failed} failed)");
    }
    let _ = match judge.stall {
        Some(stall) => writeln!(
            text,
            "\nlongest stall: {}, of {}, until {}",
            Length(stall.length),
            stall.lock,
            judge.at(stall.time)
        ),
        None => writeln!(text, "\nlongest stall: none"),
    };
    let _ = match left {
        Some(left) => writeln!(text, "left behind: {left}"),
        None => writeln!(text, "left behind: unknown, the store does not answer"),
    };
    let _ = write!(text, "violations: {}", judge.violated());
    if judge.violated() > 0 {
        let sorts = judge.violations.iter().map(|(sort, count)| format!("{sort} {count}"));
        let _ = write!(text, " ({})", list(sorts.collect()));
    }
    text.push('\n');
    for what in &judge.evidence {
        let _ = writeln!(
            text,
            "{}",
            what.lines().map(|line| Line(line).to_string()).collect::<Vec<_>>().join("\n")
        );
    }
    if judge.violated() > judge.evidence.len() as u64 {
        let _ = writeln!(text, "and {} more", judge.violated() - judge.evidence.len() as u64);
    }
    text
}
