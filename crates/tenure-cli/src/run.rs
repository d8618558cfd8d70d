//! `tenure run`: take the lock, run the command, keep the lease until it has ended, release.
#![expect(
    clippy::disallowed_methods,
    reason = "a timer of this command's own; the clock of leases is the library's"
)]

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tenure::{Frees, LastRun, LockName, Locks, Outcome};
use tokio::time::sleep;

use crate::cli::Run;
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
    if args.once_per.is_some() {
        store::must_be_named(&args.store, "--once-per")?;
    }
    let lease = args.max_hold.map_or(request.ttl, |most| most.min(request.ttl));
    let grace = work::grace(&args.job, lease);
    let url = store::url_with(&args.store, take::terms(request))?;
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
    let mut is_rerun = false;
    loop {
        let held = match args.once_per {
            Some(period) => begin(args, &locks, period, is_rerun, &mut signals).await?,
            None => {
                let wanted = Wanted { request, also: &args.also, locks: &locks, voice, is_rerun };
                wanted.take(&mut signals).await?.map(Held::Locks)
            }
        };
        let (locks, url, name, ttl) = (&locks, &*url, &*request.name, request.ttl);
        let work = Work { locks, url, name, ttl, grace, min_hold, job, voice };
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

/// Begins the job unless it has run in this window; otherwise reports that run and returns the exit code.
async fn begin(
    args: &Run,
    locks: &Locks,
    period: Duration,
    is_rerun: bool,
    signals: &mut Signals,
) -> Result<Result<Held, u8>, Failure> {
    let frees = if args.retry_lost { Frees::FailureOrLoss } else { Frees::Failure };
    let once = locks.once_per(&args.request.name, period)?.frees(frees).again(args.again);
    let begun = async {
        Ok::<_, Failure>(match is_rerun {
            true => once.try_begin().await?,
            false => store::unless_absent(locks, once.try_begin()).await??,
        })
    };
    match signals.or_end(begun).await {
        Ok(Ok(Some(turn))) => Ok(Ok(Held::Turn(turn))),
        Ok(Ok(None)) => {
            let last = match once.last().await {
                // By hand, only the lock counts.
                Err(error) if args.again && error.is_refused() => None,
                last => last?.filter(|last| !args.again || last.outcome == Outcome::Running),
            };
            let was = if args.again { "was running" } else { "has begun in this window" };
            args.output.voice().say(
                last.map_or_else(|| format!("job {:?} {was}", once.name()), |last| told(once.name(), &last)),
            );
            Ok(Err(args.request.busy_code))
        }
        Ok(Err(failure)) => Err(failure),
        Err(signal) => Ok(Err(of_signal(signal))),
    }
}

/// The message about the run that closed the window.
fn told(name: &LockName, last: &LastRun) -> String {
    let what = match last.outcome {
        Outcome::Running => "is running",
        Outcome::Lost => "was begun in this window by a run that died or lost its lock",
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
        _ => Ok(()),
    }
}

/// A random part of a time, the same for no two processes.
fn random_part(time: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) >> 11;
    time.mul_f64(random as f64 / (1_u64 << 53) as f64)
}
