//! Subscribes, once a hold has lasted a second, to messages that it may have been ended by force, so that the
//! loss is announced immediately and not at the next renewal.
//!
//! A message ends nothing by itself, because anyone may send messages. It makes the renewer verify the hold,
//! rate-limited by [`check_at`](crate::protocol::lease::check_at).

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::FutureExt;

use super::Engine;
use super::grant::{Hearing, Lease};
use super::listener_count::CountedListener;
use super::lost::LossListener;
use super::waiters::subscription::{Heard, Subscription};
use crate::planted::{Bug, planted};
use crate::protocol::Notification;
use crate::store::{Failure, Purpose, Topic};

/// Subscribes for this hold, unless the maximum is reached.
pub(super) fn subscribe(engine: &Arc<Engine>, lease: &Arc<Lease>) {
    let Some(listening) = engine.listeners.enter() else { return lease.set_hearing(Hearing::Again) };
    lease.set_hearing(Hearing::Listens);
    let task = listen(Arc::clone(engine), Arc::clone(lease), listening);
    engine.runtime.spawn(task.boxed());
}

/// Listens until the hold has ended.
async fn listen(engine: Arc<Engine>, lease: Arc<Lease>, _listening: CountedListener) {
    let topic = Topic::new(&lease.name, lease.spec, Purpose::Hold(&lease.owner));
    let mut subscription = Subscription::Connecting(engine.store.subscribe(topic, lease.options.op_timeout));
    let end = LossListener::new(&engine, &lease);
    loop {
        let heard = poll_fn(|context| match end.listen(context) {
            Some(_) => Poll::Ready(None),
            None => subscription.poll(context).map(Some),
        });
        match heard.await {
            // The hold has ended, whatever the way.
            None => return,
            // Grants of other tickets, or its own upgrade to writer.
            Some(Heard::Message(Notification::Granted { .. } | Notification::First { .. })) => {}
            Some(Heard::Message(_)) if planted(Bug::MessageEndsHold) => {
                return lease.expire(&engine);
            }
            // Messages sent before the subscription was confirmed may have been missed.
            Some(Heard::Open | Heard::Message(_)) => engine.renewer.check(&engine, &lease),
            // The server forbids it: only renewals will tell.
            Some(Heard::Over(Some(Failure::Refused(_)))) => return lease.set_hearing(Hearing::Never),
            // Not subscribed, or not any more: the renewer subscribes again.
            Some(Heard::Over(failure)) => {
                lease.set_hearing(Hearing::Again);
                if failure.is_none() {
                    engine.renewer.check(&engine, &lease);
                }
                return;
            }
        }
    }
}
