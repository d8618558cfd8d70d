//! Locks on a majority of independent stores: Redlock, with ballots as tokens.
//!
//! A request goes to all members at once, each with a short timeout, and is decided as soon as a majority is,
//! by the rules in [`protocol::quorum`](crate::protocol::quorum). Requests still unanswered then continue in
//! the background. A member that did not answer its last request is still asked but not waited for, so a
//! silent member delays only one call.
//!
//! Two things happen here that no other store does. A rejected ballot is followed by a higher one, once. That
//! is no unsafe retry, because a rejection is an answer: nothing that may have been carried out is repeated.
//! And a request given up at a silent member is released there for as long as its lease can run, because the
//! engine sees a single store, which has answered.

mod ask;
mod fan_in;
mod holds;
mod list;
mod member;
mod round;

use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{FutureExt, join_all, ready};

use crate::error::{Error, Result};
use crate::events::event;
use crate::name::LockName;
use crate::protocol::quorum::majority;
use crate::protocol::{Found, Kind, Verb};
use crate::runtime::Runtime;
use crate::store::{
    Capabilities, Cursor, Failure, Incarnation, Kinds, LeaseClock, Listener, Page, SETUP, Signals, Store,
    StoreExt, StoreFuture, StoreReply, StoreRequest, Topic,
};
use holds::OwnerRegistry;
use member::Member;

/// A store made of a majority of other stores. Clones share it.
#[derive(Clone)]
pub struct Quorum(Arc<QuorumInner>);

struct QuorumInner {
    members: Vec<Arc<Member>>,
    runtime: Arc<dyn Runtime>,
    holds: OwnerRegistry,
    /// A member that restarted more recently than the longest declared ttl may have forgotten a lease.
    signals: Signals,
    url: Arc<str>,
    /// Keeps the members' resources alive.
    _keeps: Box<dyn Any + Send + Sync>,
}

/// Maximum sequential steps of a call: two ballots, their undo, and one to spare.
const STEPS: u32 = 4;

impl Quorum {
    /// Creates a quorum of these stores; `keeps` lives as long as the quorum.
    ///
    /// # Errors
    /// `is_invalid` for fewer than 2 or more than 63 members, for a duplicate, and for a member that is
    /// itself several servers.
    pub fn new(
        members: Vec<Arc<dyn Store>>,
        keeps: Box<dyn Any + Send + Sync>,
        runtime: Arc<dyn Runtime>,
        url: Option<Arc<str>>,
    ) -> Result<Self> {
        let urls: Vec<&str> = members.iter().map(|store| &**store.url()).collect();
        if urls.len() < 2 || urls.len() > 63 {
            return Err(Error::invalid(format!("a quorum must have 2 to 63 members, got {}", urls.len())));
        }
        for (at, url) in urls.iter().enumerate() {
            let is_same = |other: usize| {
                Arc::ptr_eq(&members[at], &members[other]) || (*url != "memory:" && *url == urls[other])
            };
            if (0..at).any(is_same) {
                return Err(Error::invalid(format!(
                    "members of a quorum must be independent, got {url} twice"
                )));
            }
            if let Err(reason) = members[at].capabilities().member {
                return Err(Error::invalid(format!("{url} cannot be a member of a quorum: {reason}")));
            }
        }
        if urls.len().is_multiple_of(2) {
            event!(
                WARN,
                target: SETUP,
                "quorum_even",
                "an even number of members tolerates no more failures than one member fewer",
                members = urls.len(),
            );
        }
        let url = url.unwrap_or_else(|| format!("quorum:{}", urls.join(",")).into());
        let members: Vec<_> = members.into_iter().map(Member::new).collect();
        let (holds, signals) = (OwnerRegistry::default(), Signals::default());
        let inner = QuorumInner { members, runtime, holds, signals, url, _keeps: keeps };
        for member in &inner.members {
            member.store.signals().relay_to(&inner.signals);
        }
        Ok(Self(Arc::new(inner)))
    }
}

impl Store for Quorum {
    fn call(&self, request: StoreRequest, within: Duration) -> StoreFuture<StoreReply> {
        let inner = Arc::clone(&self.0);
        match request {
            StoreRequest::Lock(op) => async move {
                let answer = match op.verb {
                    Verb::Acquire { ttl_ms, .. } => inner.acquire(op, ttl_ms, within).await,
                    Verb::Renew { ttl_ms, bind, .. } => inner.renew(op, ttl_ms, bind, within).await,
                    Verb::Release { whose, .. } => inner.release(op, whose, within).await,
                    Verb::Inspect => inner.look(op, within).await,
                    Verb::Refresh { .. } | Verb::Resize => Err(Failure::Refused(Failure::cause(MUTEX_ONLY))),
                };
                answer.map(StoreReply::Lock)
            }
            .boxed(),
            StoreRequest::Record(_) => ready(Err(Failure::impossible(NO_VALUES))).boxed(),
            StoreRequest::Renewals(ops) => self.renew_each(ops, within),
        }
    }

    fn subscribe(&self, topic: Topic<'_>, within: Duration) -> StoreFuture<Listener> {
        let (inner, name, spec) = (Arc::clone(&self.0), topic.name.clone(), topic.spec);
        async move { inner.listen(&name, spec, within).await }.boxed()
    }

    /// Lists one member after another, and asks all members about each name found.
    fn list(&self, prefix: &str, from: Cursor, within: Duration) -> StoreFuture<Page> {
        let (inner, prefix) = (Arc::clone(&self.0), prefix.to_owned());
        async move { inner.list(&prefix, &from, within).await }.boxed()
    }

    /// The largest number that a member tells, if a majority does, because a waiter subscribes to all.
    fn waiting(&self, locks: &[(LockName, Found)], within: Duration) -> StoreFuture<Vec<Option<u64>>> {
        let (count, majority, part) = (locks.len(), self.0.majority(), self.0.part(within));
        let asked: Vec<_> = self.0.members.iter().map(|member| member.store.waiting(locks, part)).collect();
        async move {
            let told: Vec<_> = join_all(asked).await.into_iter().filter_map(Result::ok).collect();
            let largest = |at: usize| {
                let known = told.iter().filter_map(|counts| counts.get(at).copied().flatten());
                known.clone().max().filter(|_| known.count() >= majority)
            };
            Ok((0..count).map(largest).collect())
        }
        .boxed()
    }

    fn ready(&self, within: Duration) -> StoreFuture<()> {
        let inner = Arc::clone(&self.0);
        async move { inner.ready(within).await }.boxed()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kinds: Kinds::Only(&[Kind::Mutex], MUTEX_ONLY),
            clock: LeaseClock::Members,
            values: Err(NO_VALUES),
            member: Err("it consists of several servers, each of which may lose a lease"),
            ..Capabilities::SERVER
        }
    }

    /// Interrupted with each member.
    fn signals(&self) -> &Signals {
        &self.0.signals
    }

    fn url(&self) -> &Arc<str> {
        &self.0.url
    }
}

const NO_VALUES: &str = "two halves of a quorum could each keep a different value";
const MUTEX_ONLY: &str = "two halves of a quorum could each grant it";

impl QuorumInner {
    fn majority(&self) -> usize {
        majority(self.members.len())
    }

    /// Timeout of one member's request.
    fn part(&self, within: Duration) -> Duration {
        (within / STEPS).max(Duration::from_millis(1))
    }

    /// Fails if two members turned out to be the same server.
    fn twins(&self) -> Result<(), Failure> {
        let lives: Vec<Incarnation> = self.members.iter().map(|member| member.incarnation()).collect();
        for (at, life) in lives.iter().enumerate() {
            let Incarnation::Since { id, .. } = life else { continue };
            let is_same =
                |other: &Incarnation| matches!(other, Incarnation::Since { id: known, .. } if known == id);
            if let Some(other) = lives[..at].iter().position(is_same) {
                let (one, two) = (self.members[other].store.url(), self.members[at].store.url());
                return Err(Failure::Refused(Failure::cause(format!(
                    "{one} and {two} are the same server; members of a quorum must be independent"
                ))));
            }
        }
        Ok(())
    }

    /// Waits until every member answers, or until a majority does and the others have had their timeout.
    async fn ready(&self, within: Duration) -> Result<(), Failure> {
        let mut asks: Vec<_> = self.members.iter().map(|member| Some(member.store.ready(within))).collect();
        let mut said: Vec<Option<Result<(), Failure>>> = self.members.iter().map(|_| None).collect();
        let mut patience = self.runtime.sleep_until(self.runtime.now() + self.part(within));
        let mut is_over = false;
        poll_fn(|context| {
            for (ask, said) in asks.iter_mut().zip(&mut said) {
                if let Some(Poll::Ready(answer)) = ask.as_mut().map(|ask| ask.poll_unpin(context)) {
                    (*ask, *said) = (None, Some(answer));
                }
            }
            let count =
                |is: fn(&Option<Result<(), Failure>>) -> bool| said.iter().filter(|said| is(said)).count();
            // Fused, because a completed future must not be polled again.
            is_over = is_over || patience.poll_unpin(context).is_ready();
            let enough = is_over && count(|said| matches!(said, Some(Ok(())))) >= self.majority();
            if enough || count(Option::is_some) == said.len() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.twins()?;
        let ok = said.iter().filter(|said| matches!(said, Some(Ok(())))).count();
        if ok >= self.majority() {
            return Ok(());
        }
        let failures: Vec<_> = said.into_iter().map(|said| said.and_then(Result::err)).collect();
        let refused = failures.iter().filter(|failure| matches!(failure, Some(Failure::Refused(_)))).count();
        let cause = self.why(&failures);
        Err(if refused + self.majority() > self.members.len() {
            Failure::Refused(cause)
        } else {
            Failure::NotSent(cause)
        })
    }

    /// The failure of each member, by its URL.
    fn why(&self, failures: &[Option<Failure>]) -> crate::store::Cause {
        let of = |(member, failure): (&Arc<Member>, &Option<Failure>)| {
            failure.as_ref().map(|failure| format!("{}: {failure}", member.store.url()))
        };
        let each: Vec<String> = self.members.iter().zip(failures).filter_map(of).collect();
        let (needed, members) = (self.majority(), self.members.len());
        Failure::cause(format!("{needed} of {members} members are needed; {}", each.join("; ")))
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Quorum").field(&self.0.url).finish()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;
    use crate::owner::Owner;
    use crate::protocol::{Answer, Fence, Liveness, LockSpec, Op, ReleaseScope};
    use crate::runtime::{Driver, block_on};
    use crate::store::Decorator;
    use crate::store::memory::Memory;

    const DAY_MS: u64 = 86_400_000;
    const MINUTE: Duration = Duration::from_secs(60);

    /// A member as seen by one side. Requests reach it only while the gate is open.
    #[derive(Debug)]
    struct Gate {
        store: Arc<Memory>,
        is_open: watch::Sender<bool>,
    }

    impl Gate {
        fn new(store: &Arc<Memory>, is_open: bool) -> Arc<Self> {
            Arc::new(Self { store: Arc::clone(store), is_open: watch::Sender::new(is_open) })
        }
    }

    impl Decorator for Gate {
        fn inner(&self) -> &dyn Store {
            &*self.store
        }

        fn call(&self, request: StoreRequest, within: Duration) -> StoreFuture<StoreReply> {
            let (store, mut is_open) = (Arc::clone(&self.store), self.is_open.subscribe());
            async move {
                is_open.wait_for(|is_open| *is_open).await.expect("the gate is there");
                store.call(request, within).await
            }
            .boxed()
        }
    }

    /// Three members, with the last one behind a separate gate for each of two sides. If it restarts
    /// meanwhile, the second side sees the old one.
    struct Sides {
        runtime: Arc<dyn Runtime>,
        last: [Arc<Memory>; 2],
        gates: [Arc<Gate>; 2],
        sides: [Quorum; 2],
        owner: Owner,
    }

    impl Sides {
        fn new(are_open: [bool; 2], starts_anew: bool) -> Self {
            let runtime: Arc<dyn Runtime> = Driver::start().expect("a thread");
            let member = |_| Arc::new(Memory::new(Arc::clone(&runtime), "memory:"));
            let [one, two, last, anew] = std::array::from_fn(member);
            let last = [if starts_anew { anew } else { Arc::clone(&last) }, last];
            let gates = std::array::from_fn(|side| Gate::new(&last[side], are_open[side]));
            let sides = gates.each_ref().map(|gate: &Arc<Gate>| {
                let members =
                    [Arc::clone(&one) as Arc<dyn Store>, Arc::clone(&two) as _, Arc::clone(gate) as _];
                Quorum::new(members.into(), Box::new(()), Arc::clone(&runtime), None).expect("a quorum")
            });
            let owner = Owner::fresh("", &*runtime);
            Self { runtime, last, gates, sides, owner }
        }

        fn op(&self, verb: Verb) -> Op {
            let name = LockName::new("x").expect("a name");
            Op { name, spec: LockSpec::Mutex, owner: self.owner.clone(), request: 0, verb }
        }

        fn ask(&self, side: usize, verb: Verb) -> Answer {
            block_on(self.sides[side].request(self.op(verb), MINUTE)).expect("an answer")
        }

        /// Asks a side's last member directly.
        fn ask_last(&self, side: usize, verb: Verb) -> Answer {
            block_on(self.last[side].request(self.op(verb), MINUTE)).expect("an answer")
        }

        /// Waits until the last member reports a holder, or none.
        fn wait_until_held(&self, is_held: bool) {
            let limit = self.runtime.now() + Duration::from_secs(20);
            while matches!(self.ask_last(1, Verb::Inspect), Answer::Found(_)) != is_held {
                assert!(self.runtime.now() < limit, "held: {}", !is_held);
                self.sleep(1);
            }
        }

        /// Delivers the requests in flight on the first side, and waits for their consequences.
        fn arrives(&self) {
            self.gates[0].is_open.send_replace(true);
            self.sleep(500);
        }

        fn sleep(&self, ms: u64) {
            block_on(self.runtime.sleep_until(self.runtime.now() + Duration::from_millis(ms)));
        }

        /// Acquires on one side and takes over on the other. Returns the token.
        fn pass_on(&self) -> u64 {
            let Answer::Held { fence } = self.ask(0, acquire(Fence::Assign)) else { panic!("it is free") };
            for (side, bind) in [(0, Liveness::Lease), (1, Liveness::Process)] {
                let renew = Verb::Renew { ttl_ms: DAY_MS, hold: 0, bind: Some(bind), weight: None };
                assert_eq!(self.ask(side, renew), Answer::Held { fence });
            }
            fence
        }

        fn release(&self) {
            let release = Verb::Release { hold: 0, fence: Fence::Assign, whose: ReleaseScope::Own };
            assert_eq!(self.ask(1, release), Answer::Released { left: 0 });
        }
    }

    fn acquire(fence: Fence) -> Verb {
        Verb::Acquire {
            ttl_ms: DAY_MS,
            hold: 0,
            fence,
            wait_ms: None,
            listens: None,
            bind: Liveness::Process,
        }
    }

    #[test]
    fn those_who_were_turned_away_are_forgotten() {
        let sides = Sides::new([true; 2], false);
        let quorum = &sides.sides[0];
        let acquire = |request| {
            let owner = Owner::fresh("", &*sides.runtime);
            let op = Op { owner, request, ..sides.op(acquire(Fence::Assign)) };
            block_on(quorum.request(op, MINUTE)).expect("an answer")
        };
        assert!(matches!(acquire(0), Answer::Held { .. }));
        for request in 1..1_000 {
            assert!(matches!(acquire(request), Answer::Busy { .. }));
        }
        assert_eq!(quorum.0.holds.len(), 1);
    }

    #[test]
    fn what_arrives_after_a_hold_was_passed_on_takes_nothing_from_whoever_has_it() {
        let sides = Sides::new([false, true], false);
        sides.pass_on();
        // The takeover also acquired the lock on the last member.
        sides.wait_until_held(true);
        sides.arrives();
        sides.wait_until_held(true);
        sides.release();
        sides.wait_until_held(false);
    }

    #[test]
    fn a_late_arrival_for_an_ended_detached_hold_is_released_at_a_restarted_member() {
        let sides = Sides::new([false, true], true);
        let token = sides.pass_on();
        sides.release();
        sides.arrives();
        assert_eq!(sides.ask_last(0, Verb::Inspect), Answer::Free);
        let again = sides.ask_last(0, acquire(Fence::Ballot(token)));
        assert!(matches!(again, Answer::Behind { .. }), "it has been there: {again:?}");
    }

    #[test]
    fn what_arrives_after_its_release_is_refused() {
        let sides = Sides::new([false; 2], false);
        let token = sides.pass_on();
        sides.release();
        sides.gates[1].is_open.send_replace(true);
        block_on(sides.sides[1].signals().settled());
        let late = sides.ask_last(1, acquire(Fence::Ballot(token)));
        assert!(matches!(late, Answer::Behind { .. }), "{late:?}");
    }
}
