//! Upgrades a reader to the writer: it takes the writer's weight immediately, which keeps newcomers out, and
//! waits until the other readers have left. Two upgrades cannot deadlock, because the store admits one
//! upgradeable holder at a time.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::FutureExt;

use super::call::Call;
use super::grant::Lease;
use super::lost::{HoldEnd, Lost};
use super::waiters::subscription::{Heard, Subscription};
use super::{Engine, backoff};
use crate::error::{Error, Result};
use crate::moment::Moment;
use crate::protocol::{Answer, Notification, QueueSpec, lease};
use crate::store::{Failure, Purpose, Topic};

/// How much of the requested weight a hold has.
enum WeightShare {
    Whole,
    /// Other holders remain; the first of their leases ends after this time.
    Waits(Duration),
}

/// Waits until this hold is the writer's. At the limit, returns false and the hold remains a reader's.
pub(crate) async fn upgrade(engine: &Arc<Engine>, lease: &Arc<Lease>, limit: Option<Moment>) -> Result<bool> {
    if lease.may_be_reader() {
        // The store would answer that it is held, by a reader beside others.
        let what = "it may be an ordinary reader since a downgrade without an answer: downgrade it again, or release it";
        let failure = Failure::Unknown(Failure::cause(what));
        return Err(Error::failed(Some(&lease.name), engine.store.url(), failure));
    }
    let mut lost = Lost::new(engine, lease);
    let mut subscription = Subscription::Idle;
    // `may_grow`: the store may have given it the writer's weight.
    let (mut attempt, mut may_grow) = (0, false);
    loop {
        let asked_at = engine.now();
        let asked = take(engine, lease, QueueSpec::WRITER.weight, may_grow).await;
        may_grow |= asked.is_ok() || asked.as_ref().is_err_and(Error::is_unknown);
        let is_out = limit.is_some_and(|limit| engine.now() >= limit);
        let pause = match asked {
            Ok(WeightShare::Whole) => return Ok(true),
            Ok(WeightShare::Waits(_)) if is_out => {
                take(engine, lease, QueueSpec::UPGRADEABLE.weight, may_grow).await?;
                return Ok(false);
            }
            Ok(WeightShare::Waits(left)) => {
                attempt = 0;
                // The refresh interval of a waiter.
                left.min(lease::WAIT_MAX / 3)
            }
            Err(error) if (error.is_unreachable() || error.is_unknown()) && !is_out => {
                attempt += 1;
                engine.jittered(backoff(attempt - 1))
            }
            Err(error) => return Err(error),
        };
        if subscription.is_idle() {
            // Messages for a resumed hold go to the client that created its owner.
            let topic = Topic::new(&lease.name, lease.spec, Purpose::Grants(lease.owner.client()));
            subscription = Subscription::Connecting(engine.store.subscribe(topic, lease.options.op_timeout));
        }
        let until = engine.now() + pause;
        let mut timer = engine.runtime.sleep_until(limit.map_or(until, |limit| until.min(limit)));
        // Polls in a fixed order, so that a seed replays.
        let end = poll_fn(|context| {
            if let Poll::Ready(end) = lost.poll_unpin(context) {
                return Poll::Ready(Some(end));
            }
            while let Poll::Ready(heard) = subscription.poll(context) {
                match heard {
                    Heard::Message(Notification::Granted { tickets }) if tickets.contains(&lease.fence) => {
                        return Poll::Ready(None);
                    }
                    Heard::Message(Notification::Granted { .. } | Notification::First { .. }) => {}
                    // Messages may have been missed, or may come from anyone, so verify.
                    Heard::Open | Heard::Message(_) => {
                        let at = lease::check_at(asked_at, engine.now());
                        timer = engine.runtime.sleep_until(limit.map_or(at, |limit| at.min(limit)));
                    }
                    // The timer remains.
                    Heard::Over(_) => break,
                }
            }
            timer.poll_unpin(context).map(|()| None)
        })
        .await;
        if let Some(error) = end.and_then(HoldEnd::into_error) {
            return Err(error);
        }
    }
}

/// Requests this weight. If the hold `may_grow`, its weight is unknown until a request is answered.
async fn take(engine: &Arc<Engine>, lease: &Lease, weight: u32, may_grow: bool) -> Result<WeightShare> {
    let ended = || lease.outcome(engine).and_then(HoldEnd::into_error);
    if let Some(lost) = ended() {
        return Err(lost);
    }
    let sent = engine.now();
    let ttl = lease.ask(sent);
    let within = lease.options.op_timeout.min(lease.remaining(engine)).max(Duration::from_millis(1));
    let verb = lease.renewal(ttl, None, Some(weight));
    let answer = engine.call(&Call::of(lease, verb), sent, within).await;
    let answer = answer.map_err(|failure| {
        let failure = match failure {
            Failure::NotSent(cause) if may_grow => Failure::Unknown(cause),
            failure => failure,
        };
        Error::failed(Some(&lease.name), engine.store.url(), failure)
    })?;
    if let Some(loss) = lease.refusal(&answer) {
        lease.lose(engine, &loss);
    } else if let Answer::Held { .. } = answer {
        lease.renewed(sent, engine.now(), ttl);
    }
    match (ended(), answer) {
        (Some(lost), _) => Err(lost),
        (None, Answer::Held { .. }) => Ok(WeightShare::Whole),
        (None, Answer::Growing { retry_in_ms, .. }) => {
            Ok(WeightShare::Waits(Duration::from_millis(retry_in_ms)))
        }
        (None, answer) => Err(engine.unexpected_answer(&lease.name, &answer)),
    }
}
