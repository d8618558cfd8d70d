//! A wait queue's subscription to messages about its lock. Requests go on while it connects.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use futures_util::future::{BoxFuture, FutureExt, pending};

use crate::planted::{Bug, planted};
use crate::protocol::Notification;
use crate::store::{Failure, Listener, Station};

pub(in crate::engine) enum Subscription {
    Idle,
    Connecting(BoxFuture<'static, Result<Listener, Failure>>),
    Open(Listener),
}

pub(in crate::engine) enum Heard {
    /// The subscription is confirmed. Earlier messages may have been missed.
    Open,
    Message(Notification),
    /// The subscription has ended, or failed with this failure.
    Over(Option<Failure>),
}

impl Subscription {
    pub(in crate::engine) fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    /// Whether no other client waits for the lock, as far as known.
    pub(in crate::engine) fn is_alone(&self) -> bool {
        self.station().is_some_and(Station::is_alone)
    }

    /// The station of the open subscription.
    pub(in crate::engine) fn station(&self) -> Option<&Station> {
        match self {
            Self::Open(listener) => Some(listener.station()),
            _ => None,
        }
    }

    pub(in crate::engine) fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }

    /// Tells the store that no task of this process is waiting any more.
    pub(in crate::engine) fn rest(&self) {
        if let Self::Open(listener) = self {
            listener.rest();
        }
    }

    /// Discards the messages so far.
    pub(in crate::engine) fn drain(&mut self) {
        if let Self::Open(listener) = self {
            listener.drain();
        }
    }

    pub(in crate::engine) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Heard> {
        let heard = match self {
            // Nobody has asked for messages.
            Self::Idle => return Poll::Pending,
            Self::Connecting(opening) => match ready!(opening.poll_unpin(context)) {
                Ok(listener) => {
                    *self = Self::Open(listener);
                    if planted(Bug::OpenIgnored) {
                        return self.poll(context);
                    }
                    return Poll::Ready(Heard::Open);
                }
                Err(failure) => Heard::Over(Some(failure)),
            },
            Self::Open(listener) => {
                let message = ready!(pin!(listener.next()).poll(context));
                match message {
                    Some(Notification::Reconnected) if planted(Bug::ReconnectIgnored) => {
                        return self.poll(context);
                    }
                    Some(message) => return Poll::Ready(Heard::Message(message)),
                    // The connection is gone, and with it perhaps messages.
                    None => Heard::Over(None),
                }
            }
        };
        *self =
            if planted(Bug::NeverListensAgain) { Self::Connecting(pending().boxed()) } else { Self::Idle };
        Poll::Ready(heard)
    }
}
