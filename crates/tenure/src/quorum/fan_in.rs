//! Messages of all members, as one subscription.
//!
//! One member's word that a lock is free means little: the others may not have heard of the release
//! yet, or it was the undo of a client who got no majority. So it is passed on when a majority has
//! said the same, or a little later if no majority does. While one has a bare majority, the client
//! that asks takes the rest, gives it back, and so wakes all who ask next: each such word is kept
//! back for longer than the one before.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};

use super::Inner;
use crate::moment::Moment;
use crate::name::LockName;
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::lease::millis;
use crate::protocol::{LockSpec, Notification};
use crate::runtime::Runtime;
use crate::store::{Failure, Listener, Publisher};

/// How long a few members' word is kept back for others to say the same: at first, and at most.
const KEPT: Duration = Duration::from_millis(20);
const KEPT_MOST: Duration = Duration::from_secs(1);
/// After so long without such a word the next is kept back no longer than the first.
const QUIET: Duration = Duration::from_secs(5);

impl Inner {
    /// Listens to all; ready when a majority is heard.
    pub(super) async fn listen(
        self: &Arc<Self>,
        name: &LockName,
        rule: LockSpec,
        within: Duration,
    ) -> Result<Listener, Failure> {
        let part = self.part(within);
        let join = |member: &Arc<super::Member>| Source::Joining(member.store.listen(name, rule, part));
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
            // It ends when the listener is dropped.
            self.runtime.spawn(relay.run().boxed());
            Box::new(())
        }))
    }
}

/// A member's messages.
enum Source {
    Joining(BoxFuture<'static, Result<Listener, Failure>>),
    On(Listener),
    Off,
}

impl Source {
    /// Goes on subscribing. Why it failed, if it did now.
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

/// Whose hold has ended, and the members that said so, one bit each.
type Ending = (Option<Owner>, u64);

struct Relay {
    sources: Vec<Source>,
    majority: usize,
    /// What was said by too few so far.
    said: Vec<Ending>,
    /// What was passed on last: the others will say the same.
    passed_on: Option<Ending>,
    /// When what was said is passed on all the same.
    timer: Option<BoxFuture<'static, ()>>,
    /// How long the next word is kept back, and when one last was.
    kept: Duration,
    heard: Moment,
    runtime: Arc<dyn Runtime>,
    publisher: Publisher,
}

impl Relay {
    /// Until no client listens any more, or too few members are heard.
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

    /// Looks at everything once. Whether there was news.
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
            // At random, because others hear the same.
            let random = Duration::from_millis(self.runtime.random() % millis(self.kept));
            self.timer = Some(self.runtime.sleep_until(now + self.kept + random));
        }
    }
}
