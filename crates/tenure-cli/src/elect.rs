//! `tenure elect` runs a command while this host leads; `tenure leader` shows the leader.
#![expect(
    clippy::disallowed_methods,
    reason = "a timer of this command's own; the clock of leases is the library's"
)]

use std::process;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::{Value, json};
use tenure::diagnosis::host;
use tenure::{Change, Leader, Observer};
use tokio::time::{sleep, timeout};

use crate::cli;
use crate::exit::{BUSY, FREE, Failure, USAGE, chain, of_signal};
use crate::held::Held;
use crate::output::{self, Line, Voice};
use crate::signals::{END_THE_WAIT, Signals};
use crate::store::{self, Guarantees};
use crate::waiting::Silence;
use crate::work::{self, Work};
use crate::{ancestors, take, waiting};

/// Runs the command while this host leads; returns the exit code.
pub(crate) async fn elect(args: &cli::Elect, voice: Voice) -> Result<u8, Failure> {
    let (mut signals, _too_large) = work::signals()?;
    let grace = work::grace(&args.job, args.ttl);
    if args.job.grace.is_some_and(|grace| grace.is_zero()) {
        let what =
            "--grace must be longer than 0s for an election: CMD ends within it, before another host leads";
        return Err(Failure::new(USAGE, what));
    }
    store::must_be_named(&args.store, "an election")?;
    let url = store::url_with(&args.store, Guarantees::default())?;
    let locks = store::open_at(&url, &args.store.prefix, |options| {
        options.ttl(args.ttl).grace(grace).label(&args.label).inherit_liveness(true)
    })?;
    let variables = &*store::variables(&args.store, &url)?;
    let payload = args.payload.clone().unwrap_or_else(who);
    let election = locks.election(&args.name, payload)?;
    let name = election.name();
    let mut observer = election.observe();
    if args.print {
        match signals.or_end(store::unless_absent(&locks, say_news(&mut observer, voice))).await {
            Ok(said) => said??,
            Err(signal) => return Ok(of_signal(signal)),
        }
    }
    // An unreachable store is reported immediately, however long the wait to lead may be.
    let asked = locks.with(|options| options.op_timeout(waiting::LOOK))?;
    let ask = async || asked.ping().await;
    let elected = async {
        let leader = store::unless_absent(&locks, election.leader()).await??;
        if let Some(leader) = leader.filter(|leader| ancestors::above().contains(&leader.owner)) {
            let message = format!(
                "election {name:?} is led by a command that started this one, which would wait for itself: {}",
                leader.owner
            );
            return Err(Failure::new(BUSY, message));
        }
        voice.detail(format_args!("a candidate of {name:?}, in store {}", locks.url()));
        Ok(take::beside(waiting::say_of_silence(locks.url(), voice, ask), election.campaign()).await?)
    };
    let all = async {
        let term = match signals.or_end(elected).await {
            Ok(term) => term?,
            Err(signal) => return Ok(of_signal(signal)),
        };
        voice.detail(format_args!("leads {name:?}, term {}", term.fence()));
        let (locks, url, name, ttl, job) = (&locks, &*url, &*args.name, args.ttl, &args.job);
        let work = Work { locks, url, variables, name, ttl, grace, min_hold: None, job, voice };
        work.under(Held::Term(term), &mut signals).await
    };
    if !args.print {
        return all.await;
    }
    let ended = take::beside(say_who_leads(&mut observer, voice), all).await;
    // A short command ends before the observer has read that its term began and the one before it ended.
    if let Ok(Err(error)) = signals.or_end(say_news(&mut observer, voice)).await {
        voice.say(format_args!("the last changes of leader are unknown: {}", chain(&error)));
    }
    ended
}

/// Prints the changes that are in the store by now.
async fn say_news(observer: &mut Observer, voice: Voice) -> tenure::Result<()> {
    while let Some(change) = observer.try_next().await? {
        voice.say(said(true, &change));
    }
    Ok(())
}

/// Prints each change of leader. The observer retries a store that does not answer; an error is printed once.
async fn say_who_leads(observer: &mut Observer, voice: Voice) {
    loop {
        match observer.next().await {
            Ok(change) => voice.say(said(true, &change)),
            Err(error) if error.is_unreachable() || error.is_unknown() => sleep(AGAIN).await,
            Err(error) => return voice.say(chain(&error)),
        }
    }
}

/// Host and process.
fn who() -> String {
    format!("{}:{}", host(), process::id())
}

/// Prints the leader; returns the exit code.
pub(crate) async fn leader(args: &cli::Leader) -> Result<u8, Failure> {
    store::must_be_named(&args.store, "an election")?;
    let locks = store::open_existing(&args.store)?;
    let election = locks.election(&args.name, "")?;
    if !args.watch {
        let Some(leader) = store::unless_absent(&locks, election.leader()).await?? else { return Ok(FREE) };
        print(args, &Change::Elected(leader)).await?;
        return Ok(0);
    }
    let mut signals = Signals::catch(&END_THE_WAIT)?;
    store::unless_absent(&locks, election.leader()).await??;
    let election = locks.with(|options| options.op_timeout(waiting::LOOK))?.election(&args.name, "")?;
    let mut observer = election.observe();
    let mut silence = Silence::default();
    loop {
        match signals.or_end(observer.next()).await {
            Ok(Ok(change)) => {
                silence.ends();
                match signals.or_end(print(args, &change)).await {
                    Ok(Ok(true)) => {}
                    Ok(is_read) => return is_read.map(|_| 0),
                    Err(signal) => return Ok(of_signal(signal)),
                }
            }
            Ok(Err(error)) => {
                silence.outlasts(error, "still watching")?;
                if let Err(signal) = signals.or_end(sleep(AGAIN)).await {
                    return Ok(of_signal(signal));
                }
            }
            Err(signal) => {
                // Changes that were read but not printed yet, as far as their reader takes them.
                while let Some(Ok(change)) = observer.next().now_or_never() {
                    if !matches!(timeout(LAST, print(args, &change)).await, Ok(Ok(true))) {
                        break;
                    }
                }
                return Ok(of_signal(signal));
            }
        }
    }
}

/// Retry interval while the store does not answer.
const AGAIN: Duration = Duration::from_millis(500);
/// How long a reader of the last changes is waited for after a signal.
const LAST: Duration = Duration::from_millis(100);

/// Prints a change; returns whether standard output is still open.
async fn print(args: &cli::Leader, change: &Change) -> Result<bool, Failure> {
    let line = if args.json { object(&args.name, change).to_string() } else { said(args.watch, change) };
    output::print_while_read(format!("{line}\n")).await
}

fn said(names_change: bool, change: &Change) -> String {
    let who =
        |Leader { payload, fence, owner, .. }: &Leader| format!("{}, term {fence}, {owner}", Line(payload));
    match change {
        Change::Elected(leader) if !names_change => who(leader),
        Change::Elected(leader) => format!("elected: {}", who(leader)),
        Change::Updated(leader) => format!("updated: {}", who(leader)),
        Change::Resigned(leader) => format!("resigned: {}", who(leader)),
        Change::Missed(count) => format!("missed: {}", output::plural(*count, "change")),
        _ => "rewritten: the store has lost reported changes".to_owned(),
    }
}

fn object(name: &str, change: &Change) -> Value {
    let (word, leader) = match change {
        Change::Elected(leader) => ("elected", leader),
        Change::Updated(leader) => ("updated", leader),
        Change::Resigned(leader) => ("resigned", leader),
        Change::Missed(count) => return json!({ "name": name, "change": "missed", "missed": count }),
        _ => return json!({ "name": name, "change": "rewritten" }),
    };
    let Leader { payload, fence, owner, .. } = leader;
    json!({ "name": name, "change": word, "payload": payload, "fence": fence, "owner": owner.as_str() })
}
