//! Subscribes to messages that a hold may have been ended by force, from its first second on, so
//! that the loss is announced at once and not at the next renewal.
//!
//! A message ends nothing. It makes the renewer verify the hold, and no more often than [`check_at`](crate::protocol::lease::check_at) says: anyone may send messages.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use futures_util::future::FutureExt;

use super::Engine;
use super::lease::{Hearing, Lease};
use super::lost::LossListener;
use super::waiters::subscription::{Heard, Subscription};
use crate::planted::{Bug, planted};
use crate::protocol::Notification;
use crate::store::Failure;

/// The holder of so many listens at most: each costs the server a subscription. What is held beside
/// these is told at its renewals.
pub(super) const MOST: usize = 1_024;

/// How many holds of one `Locks` are listened for.
#[derive(Default)]
pub(super) struct Listeners(AtomicUsize);

/// One of them.
struct Listening(Arc<Engine>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.listeners.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Listeners {
    pub(super) fn is_full(&self) -> bool {
        self.0.load(Ordering::Acquire) >= MOST
    }

    /// Begins to listen for this hold, unless as many are listened for already.
    pub(super) fn listen(engine: &Arc<Engine>, lease: &Arc<Lease>) {
        let listening = Listening(Arc::clone(engine));
        if engine.listeners.0.fetch_add(1, Ordering::AcqRel) >= MOST {
            return lease.set_hearing(Hearing::Again);
        }
        lease.set_hearing(Hearing::Listens);
        let task = listen(Arc::clone(engine), Arc::clone(lease), listening);
        engine.runtime.spawn(task.boxed());
    }
}

/// Listens until the hold has ended.
async fn listen(engine: Arc<Engine>, lease: Arc<Lease>, _listening: Listening) {
    let opening = engine.store.listen_while_held(&lease.name, lease.rule, &lease.owner, lease.op_timeout);
    let mut subscription = Subscription::Connecting(opening);
    let end = LossListener::new(&engine, &lease);
    loop {
        let heard = poll_fn(|context| match end.listen(context) {
            Some(_) => Poll::Ready(None),
            None => subscription.poll(context).map(Some),
        });
        match heard.await {
            None => return,
            // Tickets of others are called, or its own has become the writer.
            Some(Heard::Message(Notification::Granted { .. })) => {}
            Some(Heard::Message(_)) if planted(Bug::MessageEndsHold) => {
                return lease.expire(&engine);
            }
            // What was said before the subscription was confirmed was missed.
            Some(Heard::Open | Heard::Message(_)) => engine.renewer.check(&engine, &lease),
            Some(Heard::Over(Some(Failure::Refused(_)))) => return lease.set_hearing(Hearing::Never),
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
