//! Merges the messages of all members into one subscription.
//!
//! A single member's message that a lock is free means little: the other members may not have processed the
//! release yet, or it may come from the undo of a client that got no majority. It is therefore forwarded once
//! a majority has sent the same, or after a short delay if no majority does. While a client holds a bare
//! majority, each waiter that asks takes the remaining members, releases them, and so wakes the next waiters;
//! the delay therefore grows with each minority message.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};

use super::QuorumInner;
use crate::moment::Moment;
use crate::name::LockName;
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::lease::millis;
use crate::protocol::{LockSpec, Notification};
use crate::runtime::Runtime;
use crate::store::{Failure, Listener, Publisher, Purpose, Topic};

/// Initial and maximum delay of a message sent by a minority.
const KEPT: Duration = Duration::from_millis(20);
const KEPT_MOST: Duration = Duration::from_secs(1);
/// After this long without a minority message the delay is reset.
const QUIET: Duration = Duration::from_secs(5);

impl QuorumInner {
    /// Subscribes to all members; ready when a majority is subscribed.
    pub(super) async fn listen(
        self: &Arc<Self>,
        name: &LockName,
        spec: LockSpec,
        within: Duration,
    ) -> Result<Listener, Failure> {
        let part = self.part(within);
        let join = |member: &Arc<super::Member>| {
            Source::Joining(member.store.subscribe(Topic::new(name, spec, Purpose::Watch), part))
        };
        let mut sources: Vec<Source> = self.members.iter().map(join).collect();
        let mut failures: Vec<Option<Failure>> = vec![None; sources.len()];
        poll_fn(|context| {
            for (source, failure) in sources.iter_mut().zip(&mut failures) {
                if let Some(why) = source.join(context) {
                    *failure = Some(why);
                }
            }
            let joining = sources.iter().any(|source| matches!(source, Source::Joining(_)));
            let is_enough = heard(&sources) >= self.majority();
            if is_enough || !joining { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        if heard(&sources) < self.majority() {
            return Err(Failure::NotSent(self.why(&failures)));
        }
        let (majority, runtime) = (self.majority(), Arc::clone(&self.runtime));
        Ok(Listener::new(|publisher| {
            let (said, passed_on, timer, kept, heard) = (Vec::new(), None, None, KEPT, runtime.now());
            let relay = Relay { sources, majority, said, passed_on, timer, kept, heard, runtime, publisher };
            // Ends when the listener is dropped.
            self.runtime.spawn(relay.run().boxed());
            Box::new(())
        }))
    }
}

/// The subscription to one member.
enum Source {
    Joining(BoxFuture<'static, Result<Listener, Failure>>),
    On(Listener),
    Off,
}

impl Source {
    /// Polls a pending subscription. Returns the failure if it failed now.
    fn join(&mut self, context: &mut Context<'_>) -> Option<Failure> {
        let Self::Joining(listener) = self else { return None };
        match listener.poll_unpin(context) {
            Poll::Pending => None,
            Poll::Ready(Ok(listener)) => {
                *self = Self::On(listener);
                None
            }
            Poll::Ready(Err(failure)) => {
                *self = Self::Off;
                Some(failure)
            }
        }
    }

    fn next(&mut self, context: &mut Context<'_>) -> Poll<Notification> {
        let Self::On(listener) = self else { return Poll::Pending };
        let message = pin!(listener.next()).poll(context);
        match message {
            Poll::Ready(Some(wake)) => Poll::Ready(wake),
            Poll::Ready(None) => {
                *self = Self::Off;
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

fn heard(sources: &[Source]) -> usize {
    sources.iter().filter(|source| matches!(source, Source::On(_))).count()
}

/// The owner whose hold has ended, and a bit set of the members that reported it.
type Ending = (Option<Owner>, u64);

struct Relay {
    sources: Vec<Source>,
    majority: usize,
    /// Releases reported by a minority so far.
    said: Vec<Ending>,
    /// The release forwarded last, so that the reports of the remaining members are ignored.
    passed_on: Option<Ending>,
    /// When the minority reports are forwarded regardless.
    timer: Option<BoxFuture<'static, ()>>,
    /// Current delay, and the time of the last minority report.
    kept: Duration,
    heard: Moment,
    runtime: Arc<dyn Runtime>,
    publisher: Publisher,
}

impl Relay {
    /// Runs until the listener is dropped or too few members remain subscribed.
    async fn run(mut self) {
        let publisher = self.publisher.clone();
        let mut over = pin!(publisher.over());
        poll_fn(|context| {
            while self.step(context) {}
            let is_over = over.as_mut().poll(context).is_ready() || self.is_late();
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn is_late(&self) -> bool {
        let may_hear = self.sources.iter().filter(|source| !matches!(source, Source::Off)).count();
        may_hear < self.majority
    }

    /// Polls everything once. Returns whether there was news.
    fn step(&mut self, context: &mut Context<'_>) -> bool {
        let mut news = false;
        for member in 0..self.sources.len() {
            self.sources[member].join(context);
            if let Poll::Ready(message) = self.sources[member].next(context) {
                news = true;
                match message {
                    Notification::Free { by } => self.hear(member, by),
                    message => self.publisher.say(message),
                }
            }
        }
        if self.timer.as_mut().is_some_and(|timer| timer.poll_unpin(context).is_ready()) {
            news = true;
            let by = match &self.said[..] {
                [(by, _)] => by.clone(),
                _ => None,
            };
            self.said.clear();
            self.timer = None;
            self.kept = (2 * self.kept).min(KEPT_MOST);
            self.publisher.say(Notification::Free { by });
        }
        news
    }

    fn hear(&mut self, member: usize, by: Option<Owner>) {
        let bit = 1 << member;
        if let Some((known, members)) = &mut self.passed_on
            && *known == by
            && *members & bit == 0
        {
            *members |= bit;
            return;
        }
        let at = match self.said.iter().position(|(known, _)| *known == by) {
            Some(at) => at,
            None => {
                self.said.push((by, 0));
                self.said.len() - 1
            }
        };
        self.said[at].1 |= bit;
        if self.said[at].1.count_ones() as usize >= self.majority {
            let ending = self.said.remove(at);
            if self.said.is_empty() {
                self.timer = None;
            }
            self.kept = KEPT;
            self.publisher.say(Notification::Free { by: ending.0.clone() });
            self.passed_on = Some(ending);
        } else if self.timer.is_none() && !planted(Bug::MinorityUnheard) {
            let now = self.runtime.now();
            if now.since(self.heard) >= QUIET {
                self.kept = KEPT;
            }
            self.heard = now;
            // Jitter, because other clients receive the same messages.
            let random = Duration::from_millis(self.runtime.random() % millis(self.kept));
            self.timer = Some(self.runtime.sleep_until(now + self.kept + random));
        }
    }
}
