//! `tenure run`: take the lock, run the command, keep the lease until it has ended, release.
#![expect(
    clippy::disallowed_methods,
    reason = "a timer of this command's own; the clock of leases is the library's"
)]

use std::future::pending;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::time::Duration;

use tenure::{Frees, LastRun, LockName, Locks, OncePer, Outcome, Period};
use tokio::time::{sleep, timeout};

use crate::cli::{Missed, Run};
use crate::config::config;
use crate::exit::{self, Failure, of_signal};
use crate::held::Held;
use crate::output::{Span, Voice};
use crate::signals::Signals;
use crate::wanted::Wanted;
use crate::work::{self, Ended, Work};
use crate::{asked, clock, store, take};

/// Runs a command under a lock; returns the exit code.
pub(crate) fn run(args: &Run) -> u8 {
    let voice = args.output.voice();
    asked::run(voice, under_lock(args, voice))
}

async fn under_lock(args: &Run, voice: Voice) -> Result<u8, Failure> {
    let (mut signals, _too_large) = work::signals()?;
    let request = &args.request;
    check_holds(args)?;
    let period = period(args)?;
    if period.is_some() {
        store::must_be_named(&args.store, "a job")?;
    }
    let lease = args.max_hold.map_or(request.ttl, |most| most.min(request.ttl));
    let grace = work::grace(&args.job, lease);
    let url = store::url_with(&args.store, take::guarantees(request))?;
    let locks = store::open_at(&url, &args.store.prefix, |options| {
        let options = take::options(request, options).grace(grace).inherit_liveness(true);
        match args.max_hold {
            Some(most) => options.max_hold(most),
            None => options,
        }
    })?;
    if let Some(splay) = args.splay
        && let Err(signal) = signals.or_end(sleep(random_part(splay))).await
    {
        return Ok(of_signal(signal));
    }
    let (min_hold, job) = (args.min_hold, &args.job);
    let once = period.map(|period| job_of(args, &locks, period)).transpose()?;
    let variables = &*store::variables(&args.store, &url)?;
    let work = {
        let (locks, url, name, ttl) = (&locks, &*url, &*request.name, request.ttl);
        Work { locks, url, variables, name, ttl, grace, min_hold, job, voice }
    };
    if let Some(once) = once.as_ref().filter(|_| args.forever) {
        return forever(once, &work, &mut signals).await;
    }
    let mut is_rerun = false;
    loop {
        let held = match &once {
            Some(once) => begin(args, &locks, once, is_rerun, &mut signals).await?,
            None => {
                let wanted = Wanted { request, also: &args.also, locks: &locks, voice, is_rerun };
                wanted.take(&mut signals).await?.map(Held::Locks)
            }
        };
        match held {
            Err(code) => return Ok(code),
            Ok(held) => match work.once(held, &mut signals).await? {
                Ended::Lost if args.retry_lost => {
                    voice.say("waiting for the lock again (--retry-lost)");
                    is_rerun = true;
                }
                ended => return Ok(ended.code()),
            },
        }
    }
}

/// The windows of --once-per or --schedule.
fn period(args: &Run) -> Result<Option<Period>, Failure> {
    let Some(period) = args.schedule.as_ref().or(args.once_per.as_ref()) else { return Ok(None) };
    let period = match &args.zone {
        None => period.clone(),
        Some(zone) => match period.clone().in_zone(zone) {
            // The zone of the configuration is for the periods that can have one.
            Err(_) if config().flag("run", "zone").is_some_and(|(of, _)| of.value == *zone) => period.clone(),
            zoned => zoned?,
        },
    };
    Ok(Some(match args.missed {
        Missed::Run => period,
        Missed::Within(open_for) => period.open_for(open_for),
    }))
}

fn job_of(args: &Run, locks: &Locks, period: Period) -> Result<OncePer, Failure> {
    let frees = if args.retry_lost { Frees::FailureOrLoss } else { Frees::Failure };
    Ok(locks.once_per(&args.request.name, period)?.frees(frees).again(args.again))
}

/// Runs the job in each window, until a signal ends it; returns the exit code.
async fn forever(once: &OncePer, work: &Work<'_>, signals: &mut Signals) -> Result<u8, Failure> {
    let Work { locks, voice, .. } = *work;
    // A store that refuses from the start needs its user. One that is away is waited for.
    match signals.or_end(once.last()).await {
        Ok(Err(error)) if !error.is_unreachable() && !error.is_unknown() => return Err(error.into()),
        Ok(_) => {}
        Err(signal) => return Ok(of_signal(signal)),
    }
    voice.detail(format_args!("waiting for the windows of job {:?}, in store {}", once.name(), locks.url()));
    loop {
        let mut ended_by = None;
        let end = async { ended_by = signals.or_end(pending::<()>()).await.err() };
        let Some(turn) = once.begin_until(end).await? else {
            return Ok(ended_by.map_or(exit::OWN, of_signal));
        };
        let late = Span(turn.late_by());
        voice.detail(format_args!("job {:?} begins {late} after the start of its window", once.name()));
        match work.once(Held::Turn(turn), signals).await {
            Ok(Ended::Told(code)) => return Ok(code),
            // A loss has been reported.
            Ok(Ended::Code(0) | Ended::Lost) => {}
            Ok(Ended::Code(code)) => {
                voice.say(format_args!("job {:?} failed: exit code {code}", once.name()))
            }
            Err(failure) => voice.say(failure.message),
        }
    }
}

/// Begins the job unless it has run in this window; otherwise reports that run and returns the exit code.
async fn begin(
    args: &Run,
    locks: &Locks,
    once: &OncePer,
    is_rerun: bool,
    signals: &mut Signals,
) -> Result<Result<Held, u8>, Failure> {
    let begun = async {
        Ok::<_, Failure>(match is_rerun {
            true => once.try_begin().await?,
            false => store::unless_absent(locks, once.try_begin()).await??,
        })
    };
    let mut begun = pin!(begun);
    match signals.or_end(begun.as_mut()).await {
        Ok(Ok(Some(turn))) => Ok(Ok(Held::Turn(turn))),
        Ok(Ok(None)) => {
            let last = match once.last().await {
                // By hand, only the lock counts.
                Err(error) if args.again && error.is_refused() => None,
                last => last?.filter(|last| !args.again || last.outcome == Outcome::Running),
            };
            let has_passed = |last: &LastRun| clock::since_1970(last.window.end) <= clock::unix();
            let was = match last.as_ref().is_none_or(has_passed) {
                true if args.again => "was running",
                true if args.missed != Missed::Run => "missed its window (--missed)",
                _ => "has begun in this window",
            };
            let last = last.filter(|last| !has_passed(last) || last.outcome == Outcome::Running);
            args.output.voice().say(
                last.map_or_else(|| format!("job {:?} {was}", once.name()), |last| told(once.name(), &last)),
            );
            Ok(Err(args.request.busy_code))
        }
        Ok(Err(failure)) => Err(failure),
        Err(signal) => {
            // A request under way may close the window, in which the command then never ran.
            if let Ok(Ok(Some(turn))) = timeout(BEGINS, begun).await {
                let _ = Held::Turn(turn).give_back("ended by a signal before it began").await;
            }
            Ok(Err(of_signal(signal)))
        }
    }
}

/// How long a job that a signal ends may take to learn whether it has begun.
const BEGINS: Duration = Duration::from_secs(1);

/// The message about the run that closed the window.
fn told(name: &LockName, last: &LastRun) -> String {
    let what = match last.outcome {
        Outcome::Running => "is running",
        Outcome::Lost => "was begun in this window by a run that died or lost its lock",
        Outcome::Failed(_) if last.is_open => {
            "has failed in this window, and missed the time to run again (--missed)"
        }
        _ => "has run in this window",
    };
    let end = clock::since_1970(last.window.end);
    let left = Span(end.saturating_sub(clock::unix()));
    let lease = last.remaining.map_or(String::new(), |left| format!(", {} left", Span(left)));
    format!("job {name:?} {what}: {}{lease}; the window ends in {left}", last.owner)
}

fn check_holds(args: &Run) -> Result<(), Failure> {
    match (args.min_hold, args.max_hold) {
        (Some(least), Some(most)) if least >= most => {
            Err(Failure::new(exit::USAGE, "--min-hold must be shorter than --max-hold"))
        }
        // As flags, they conflict: the command that is stopped would begin again each time.
        (_, Some(_)) if args.retry_lost => Err(Failure::new(
            exit::USAGE,
            "--max-hold, also of the configuration, cannot be used with --retry-lost",
        )),
        _ => Ok(()),
    }
}

/// A random part of a time, the same for no two processes.
fn random_part(time: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) >> 11;
    time.mul_f64(random as f64 / (1_u64 << 53) as f64)
}
