//! `tenure run`: take the lock, run the command, keep the lease until it has ended, release.
#![expect(
    clippy::disallowed_methods,
    reason = "a timer of this command's own; the clock of leases is the library's"
)]

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{join, join_all};
use rustix::process::Signal;
use tenure::{Holder, LockName, Locks, Multi, MultiGuard, Options, Owner, Status};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use crate::child::Child;
use crate::cli::Run;
use crate::exit::{self, Failure, of_exec, of_signal, of_status};
use crate::output::{Span, Voice, chain};
use crate::signals::{FORWARDED, Signals};
use crate::store::Terms;
use crate::terminal::Terminal;
use crate::watch::{End, Watch};
use crate::{ancestors, clock, kind, launch, limits, printer, status, store, warnings};

/// Runs a command under a lock; returns the code to exit with.
pub(crate) fn run(args: &Run) -> u8 {
    let voice = Voice { quiet: args.quiet, verbose: args.verbose };
    let _printer = (!voice.quiet).then(|| warnings::say(voice.verbose));
    // All on this thread: the kernel kills the command when the *thread* that started it dies, and
    // this one lives longest.
    let code = limits::check().and_then(|()| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| Failure::own("cannot start", &error))?.block_on(under_lock(args, voice))
    });
    code.unwrap_or_else(|failure| {
        voice.say(failure.message);
        failure.code
    })
}

async fn under_lock(args: &Run, voice: Voice) -> Result<u8, Failure> {
    let own = |error| Failure::own("cannot catch signals", &error);
    let mut signals = Signals::catch(&FORWARDED).map_err(own)?;
    // A file of the store that may not grow is then an error (EFBIG), and does not end the process.
    // The command has the default again.
    let _too_large = Signals::catch(&[Signal::XFSZ]).map_err(own)?;
    let terms = Terms { acks: args.acks, restart_grace: args.restart_grace };
    let locks = store::open(&args.store, terms, |_| options(args))?;
    let wanted = kind::all(args, &locks)?;

    // What was granted to a wait that ended otherwise is given back when the last handle is
    // dropped, at the end of this.
    match signals.or_end(take(args, &locks, &wanted, voice)).await {
        Ok(Ok(Some(guards))) => hold(args, guards, &mut signals, voice).await,
        Ok(Ok(None)) => match signals.or_end(busy(args, &locks, voice)).await {
            Ok(which) => {
                voice.say(which?);
                Ok(args.busy_code)
            }
            Err(signal) => Ok(of_signal(signal)),
        },
        Ok(Err(failure)) => Err(failure),
        Err(signal) => Ok(of_signal(signal)),
    }
}

fn options(args: &Run) -> Options {
    let options = Options::new().ttl(args.ttl).grace(grace(args)).label(label(&args.name));
    options.inherit_liveness(true).unfenced(args.unfenced)
}

fn grace(args: &Run) -> Duration {
    args.grace.unwrap_or_else(|| Duration::from_secs(5).min(args.ttl / 3))
}

/// The name, as far as the label of an owner can say it.
fn label(name: &str) -> String {
    let fits = |char: char| char.is_ascii_alphanumeric() || matches!(char, '.' | '_' | '-');
    let fitting = name.chars().map(|char| if fits(char) { char } else { '-' });
    // One that begins with a hyphen would look like an option where an owner is an argument.
    fitting.skip_while(|char| *char == '-').take(64).collect()
}

/// Waits for the lock as long as was asked for.
async fn take(
    args: &Run,
    locks: &Locks,
    wanted: &Multi,
    voice: Voice,
) -> Result<Option<MultiGuard>, Failure> {
    let start = clock::now();
    let aside = async {
        if args.wait.is_some() {
            // What is busy by then is not granted at once.
            sleep(Duration::from_millis(50)).await;
            waits_for_itself(args, locks, voice).await;
        }
        join(say_who_holds(args, locks, voice), say_of_silence(args, locks, voice)).await;
    };
    let guards = beside(aside, async {
        match args.wait {
            _ if args.no_wait => wanted.try_lock().await,
            Some(limit) if limit.is_zero() => wanted.try_lock().await,
            Some(limit) => wanted.try_lock_for(limit).await,
            // Asked once first: a store that is not there at all is told at once, however long the
            // lock may take.
            None => match wanted.try_lock().await? {
                None if waits_for_itself(args, locks, voice).await => Ok(None),
                None => wanted.lock().await.map(Some),
                granted => Ok(granted),
            },
        }
    });
    let guards = guards.await?;
    let waited = Span(clock::now() - start);
    for guard in guards.iter().flat_map(|guards| guards.iter()) {
        let (name, token, store) = (guard.name(), guard.fence(), locks.url());
        voice.detail(format_args!("lock {name:?} acquired after {waited}, token {token}, in store {store}"));
    }
    Ok(guards)
}

/// Says so, where a run above this one holds what this one waits for.
async fn waits_for_itself(args: &Run, locks: &Locks, voice: Voice) -> bool {
    let held = ancestors::hold(args, locks).await;
    for status in &held {
        let (name, holders) = (&status.name, status::holders(status));
        let advice = if args.wait.is_some() { "" } else { "; with -w SECONDS it waits all the same" };
        voice.say(format_args!(
            "lock {name} is held by a run that started this one, which would wait for itself: {holders}{advice}"
        ));
    }
    !held.is_empty()
}

/// What a wait says that takes longer than a moment.
async fn say_who_holds(args: &Run, locks: &Locks, voice: Voice) {
    if !voice.verbose {
        return;
    }
    sleep(Duration::from_millis(100)).await;
    for found in held_by_others(args, locks).await {
        match found {
            Ok(status) if args.also.is_empty() => {
                let holders = status::holders(&status);
                voice.detail(format_args!("waiting for {holders}, in store {}", locks.url()));
            }
            Ok(status) => {
                let (name, holders) = (&status.name, status::holders(&status));
                voice.detail(format_args!("waiting for lock {name:?}: {holders}, in store {}", locks.url()));
            }
            Err(error) => voice.detail(format_args!("waiting: {}", chain(&error))),
        }
    }
}

/// How often a wait looks whether its store answers.
const LOOK: Duration = Duration::from_secs(2);
/// How often it says that the store does not.
const AGAIN: Duration = Duration::from_secs(60);

/// Says when the store stops answering during a wait, once a minute while it does not, and when it
/// is back.
async fn say_of_silence(args: &Run, locks: &Locks, voice: Voice) {
    let store = locks.url();
    let (mut since, mut said_at) = (None, None);
    loop {
        sleep(LOOK).await;
        let asked = clock::now();
        match (locks.inspect(&args.name).await, since) {
            (Ok(_), None) => {}
            (Ok(_), Some(start)) => {
                let silence = Span(clock::now() - start);
                voice.say(format_args!("store {store} answers again, after {silence}; still waiting"));
                (since, said_at) = (None, None);
            }
            (Err(error), _) => {
                since.get_or_insert(asked);
                if said_at.is_none_or(|said_at| asked >= said_at + AGAIN) {
                    said_at = Some(asked);
                    voice.say(format_args!("{}; still waiting", chain(&error)));
                }
            }
        }
    }
}

/// Which of the locks is busy, as far as that can be learnt in a moment.
async fn busy(args: &Run, locks: &Locks, voice: Voice) -> Result<String, Failure> {
    let name = LockName::new(&args.name)?;
    if args.also.is_empty() {
        return Ok(format!("lock {name:?} is busy"));
    }
    let mut names = Vec::new();
    if !voice.quiet
        && let Ok(found) = timeout(Duration::from_millis(500), held_by_others(args, locks)).await
    {
        names.extend(found.into_iter().flatten().map(|status| format!("lock {:?}", status.name)));
    }
    Ok(match &names[..] {
        // It is free by now, or the store does not say.
        [] => format!("lock {name:?}, or one of the others, is busy"),
        [one] => format!("{one} is busy"),
        several => format!("{} are busy", several.join(" and ")),
    })
}

/// Those of the wanted locks that others hold, so that this run cannot.
async fn held_by_others(args: &Run, locks: &Locks) -> Vec<tenure::Result<Status>> {
    let names = [&args.name].into_iter().chain(&args.also);
    let found = join_all(names.map(|name| locks.inspect(name))).await;
    let mut held: Vec<_> = found.into_iter().filter_map(Result::transpose).collect();
    // A run that waits for one of several locks holds those before it.
    let this = Owner::new("").ok();
    let is_ours = |owner: &Owner| {
        let made_here =
            this.as_ref().is_some_and(|this| (owner.host(), owner.pid()) == (this.host(), this.pid()));
        made_here || args.kind.owner.as_ref().is_some_and(|ours| *ours == owner.to_string())
    };
    let is_anothers = |holder: &Holder| !holder.owner.as_ref().is_some_and(is_ours);
    for status in held.iter_mut().flatten() {
        status.holders.retain(is_anothers);
        status.waiters.retain(is_anothers);
    }
    held.retain(|found| !matches!(found, Ok(status) if kind::has_room(args, status)));
    held
}

/// Does the work, and polls `aside` meanwhile without waiting for it.
async fn beside<T>(aside: impl Future<Output = ()>, work: impl Future<Output = T>) -> T {
    let (mut aside, mut work) = (pin!(aside), pin!(work));
    let mut is_done = false;
    poll_fn(|context| {
        let result = work.as_mut().poll(context);
        is_done = is_done || result.is_ready() || aside.as_mut().poll(context).is_ready();
        result
    })
    .await
}

/// Runs the command under the lock, and releases that.
async fn hold(args: &Run, guards: MultiGuard, signals: &mut Signals, voice: Voice) -> Result<u8, Failure> {
    // The first is NAME itself: see kind::all.
    let [guard, ..] = &*guards else { unreachable!("a multi-lock has at least one lock") };
    let terminal = Terminal::open();
    let with_terminal = terminal.as_ref().is_some_and(Terminal::is_all_ours);
    let mut command = launch::command(&args.command, voice, with_terminal);
    command
        .env("TENURE_NAME", &args.name)
        .env("TENURE_OWNER", guard.owner().to_string())
        .env("TENURE_FENCE", guard.fence().to_string())
        .env("TENURE_TTL_MS", args.ttl.as_millis().to_string());
    let (held, owners) = ancestors::held(guards.iter().map(|guard| guard.owner()));
    command.env(held, owners);

    // All that can fail comes before there is a command to look after.
    let own = |error| Failure::own("cannot catch signals", &error);
    if terminal.is_some() {
        signals.also(&[Signal::WINCH, Signal::TSTP]).map_err(own)?;
    }
    let changes = signal(SignalKind::child()).map_err(own)?;
    // The command writes there too, and what was said before comes before.
    printer::catch_up(Duration::from_millis(100));
    if !guards.is_held() {
        let why = guards.lost().await;
        drop(guards);
        voice.say(format_args!("{why}; the command was not started"));
        return Ok(exit::LOST);
    }
    let child = match Child::start(&mut command) {
        Ok(child) => child,
        Err(error) => return refuse(guards, &error).await,
    };
    let mut watch =
        Watch { child, changes, signals, guards: &guards, grace: grace(args), terminal, told_to_stop: false };
    let ended = watch.until_it_ends().await;
    let status =
        match ended.map_err(|error| Failure::own("cannot read the exit status of the command", &error))? {
            End::Exited(status) => status,
            End::Lost(why) => {
                drop(guards);
                voice.say(format_args!("{}; the command was stopped", chain(&why)));
                return Ok(exit::LOST);
            }
        };
    match guards.release().await {
        Ok(()) => Ok(of_status(status)),
        Err(error) if error.is_lost() => {
            voice.say(format_args!("{}; the command may have ended without the lock", chain(&error)));
            Ok(exit::LOST)
        }
        Err(error) => {
            voice.say(format_args!("lock not released; others wait until its lease ends: {}", chain(&error)));
            Ok(of_status(status))
        }
    }
}

/// The command did not even come to the stage that starts it.
async fn refuse(guards: MultiGuard, error: &io::Error) -> Result<u8, Failure> {
    let _ = guards.release().await;
    let too_long = error.kind() == io::ErrorKind::ArgumentListTooLong;
    let code = if too_long { of_exec(error) } else { exit::OWN };
    Err(Failure { code, message: format!("cannot start a process: {error}") })
}
