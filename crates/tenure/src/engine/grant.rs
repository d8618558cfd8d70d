//! A lease: what was granted, its deadline, and how it ended. `loss.rs` has what follows its end in the engine.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use super::hold_end::HoldEnd;
use crate::metrics::{LossReason, Meter};
use crate::moment::Moment;
use crate::name::{LockName, Quoted};
use crate::options::{HoldOptions, Renewal};
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Liveness, LockSpec, Place, Verb, lease, parse_value, shown};
use crate::sync::Locked;

/// A lease, shared by its guard, its loss signals and the renewer. Dereferences to its [`Grant`],
/// which never changes.
pub(crate) struct Lease {
    grant: Grant,
    pub(super) role: Role,
    state: Locked<LeaseState>,
}

/// What was granted to whom, and for how long.
#[derive(Clone)]
pub(crate) struct Grant {
    /// The full name.
    pub(crate) name: LockName,
    pub(crate) spec: LockSpec,
    pub(crate) owner: Owner,
    pub(crate) fence: u64,
    pub(crate) hold: u64,
    /// The lock's counters.
    pub(super) meter: Meter,
    pub(crate) options: HoldOptions,
    /// The end of `max_hold`.
    pub(super) end: Option<Moment>,
    /// The store's count of interruptions before the first request.
    pub(super) interruptions: u64,
}

/// The mutable state of a held lock.
pub(super) struct LeaseState {
    phase: Phase,
    extent: Extent,
    /// When the last request was sent that may have extended the lease, answered or not.
    asked_at: Moment,
    /// The end of the longest lease that a request asked for which was not for the ttl, answered or not.
    asked_until: Moment,
    /// The end of the time for which the lock is certainly held.
    pub(super) deadline: Moment,
    /// When the renewer looks at it next; `None` while it is not scheduled.
    pub(super) due: Option<Moment>,
    /// Verify from this time on, because the store may have forgotten or ended it.
    pub(super) doubtful_at: Option<Moment>,
    /// When it was last verified or renewed.
    checked_at: Moment,
    hearing: Hearing,
    /// A request to detach it was sent.
    detaches: bool,
    /// A request that ends it was sent, other than a release.
    ends: bool,
    /// A request to make it an ordinary reader was sent, and may have been carried out.
    weakens: bool,
    listeners: Vec<(u64, Waker)>,
    next_listener: u64,
    on_renewal: Option<OnRenewal>,
}

/// Called after each renewal with the new time of loss.
pub(crate) type OnRenewal = Arc<dyn Fn(Moment) + Send + Sync>;

/// The phases of a grant.
enum Phase {
    /// On its way to the caller.
    Granted,
    /// In the caller's hands.
    Held { since: Moment },
    /// Lost or released. `held_since` is `None` if it never reached the caller.
    Ended { held_since: Option<Moment>, end: HoldEnd },
}

/// How much of the lease the store has granted.
enum Extent {
    /// The remaining time of a ticket. The full lease is requested at `whole_at`.
    Part { whole_at: Moment },
    /// The full lease, by a request sent at this time.
    Whole { sent: Moment },
}

/// Whether a holder subscribes to messages that its hold may have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hearing {
    /// Not yet; it subscribes once it has held for a while.
    Later,
    Listens,
    /// The subscription failed; the next renewal retries it.
    Again,
    /// The store refuses the subscription.
    Never,
}

/// The request that set a lease.
#[derive(Clone, Copy)]
pub(super) struct Granting {
    pub(super) sent: Moment,
    pub(super) answered: Moment,
    /// The lease it set.
    pub(super) first: Duration,
    /// The lease that a first request asks for.
    pub(super) whole: Duration,
}

impl Deref for Lease {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        &self.grant
    }
}

impl Lease {
    /// A grant that was set by `request`.
    pub(super) fn granted(grant: Grant, role: Role, request: Granting) -> Self {
        let Granting { sent, answered, first, whole } = request;
        let deadline = lease::deadline(sent, answered, first);
        let extent = match first >= whole {
            true => Extent::Whole { sent },
            false => Extent::Part { whole_at: lease::whole_at(answered, grant.options.ttl, deadline) },
        };
        let state = LeaseState { extent, deadline, ..LeaseState::new(sent, Hearing::Later) };
        Self { grant, role, state: Locked::new(state) }
    }

    /// A share of `root`, which has the lease.
    pub(super) fn share_of(root: &Arc<Self>, meter: Meter, op_timeout: Duration) -> Self {
        let options = HoldOptions { op_timeout, ..root.options };
        let grant = Grant { meter, options, ..root.grant.clone() };
        let state = LeaseState::new(Moment::default(), Hearing::Never);
        Self { grant, role: Role::Share(Arc::clone(root)), state: Locked::new(state) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, LeaseState> {
        self.state.lock()
    }

    /// Marks it as held by the caller; false if it already was, or has ended.
    pub(super) fn keep(&self, now: Moment) -> bool {
        let mut state = self.state();
        let is_new = matches!(state.phase, Phase::Granted);
        if is_new {
            state.phase = Phase::Held { since: now };
        }
        is_new
    }

    /// How long the caller has held it; `None` if it never reached the caller, as for a root.
    pub(super) fn held_for(&self, now: Moment) -> Option<Duration> {
        match self.role {
            Role::Root(_) => None,
            Role::Alone | Role::Share(_) => self.state().phase.held_since().map(|since| now.since(since)),
        }
    }

    /// Moves the deadline after a renewal for `ttl` that was sent at `sent`. It never moves back.
    pub(crate) fn renewed(&self, sent: Moment, answered: Moment, ttl: Duration) {
        let root = self.root();
        {
            let mut state = root.state();
            state.extent = match state.extent {
                Extent::Whole { sent: before } => Extent::Whole { sent: sent.max(before) },
                Extent::Part { .. } => Extent::Whole { sent },
            };
            state.deadline = state.deadline.max(lease::deadline(sent, answered, ttl));
        }
        match &root.role {
            Role::Root(shares) => {
                let leases = shares.lock().leases.clone();
                leases.iter().for_each(|lease| lease.tell_renewal());
            }
            Role::Alone | Role::Share(_) => root.tell_renewal(),
        }
    }

    fn tell_renewal(&self) {
        // Called outside the lock, because it may do anything.
        let on_renewal = self.state().on_renewal.clone();
        if let Some(on_renewal) = on_renewal
            && catch_unwind(AssertUnwindSafe(|| on_renewal(self.lost_at()))).is_err()
        {
            // It must not cost the other holds their renewals, and is not called again.
            let panicked = self.state().on_renewal.take();
            drop(panicked);
        }
    }

    /// Replaces the function called after each renewal.
    pub(crate) fn on_renewal(&self, on_renewal: OnRenewal) {
        // Dropped outside the lock, because dropping it may do anything.
        let before = self.state().on_renewal.replace(on_renewal);
        drop(before);
    }

    /// When the loss is announced: `grace` before another owner can get the lease.
    pub(crate) fn lost_at(&self) -> Moment {
        self.root().state().lost_at(self)
    }

    /// When the lease expires on the store, assuming that an unanswered renewal extended it.
    pub(super) fn lapses_at(&self) -> Moment {
        let asked_at = self.root().state().asked_at;
        asked_at + self.ttl_from(asked_at)
    }

    /// The end of the time in which there may be something to release. The lease of a resumed hold may last
    /// longer on the store than `max_hold` allows here.
    pub(super) fn over_at(&self) -> Moment {
        let state = self.root().state();
        state.deadline.max(state.asked_at + self.options.ttl).max(state.asked_until)
    }

    /// How much earlier it is renewed when there are many leases.
    pub(super) fn spread(&self) -> Duration {
        lease::spread(self.options.ttl, self.hold)
    }

    /// The same for the first renewal, so that leases granted together are not renewed together.
    pub(super) fn first_spread(&self) -> Duration {
        lease::first_spread(self.options.ttl, self.hold)
    }

    /// The lease to request in a renewal sent now.
    pub(crate) fn ask(&self, now: Moment) -> Duration {
        let mut state = self.root().state();
        state.asked_at = state.asked_at.max(now);
        self.ttl_from(now)
    }

    /// The same for another lease than the ttl.
    pub(crate) fn ask_for(&self, now: Moment, time: Duration) -> Duration {
        self.ask(now);
        let time = self.clipped(now, time);
        self.set_asked_until(now + time);
        time
    }

    /// Records the end of a lease for which a request is about to be sent, and which is not the ttl.
    pub(crate) fn set_asked_until(&self, until: Moment) {
        let mut state = self.root().state();
        state.asked_until = state.asked_until.max(until);
    }

    /// The lease, clipped to `max_hold`.
    fn ttl_from(&self, now: Moment) -> Duration {
        self.clipped(now, self.options.ttl)
    }

    fn clipped(&self, now: Moment, time: Duration) -> Duration {
        self.end.map_or(time, |end| time.min(end.since(now)))
    }

    /// Whether to retry the subscription, after a renewal.
    pub(super) fn listens_again(&self, now: Moment) -> bool {
        let state = self.state();
        let listen_at = state.phase.held_since().and_then(|since| lease::listen_at(since, self.options.ttl));
        state.hearing == Hearing::Again && listen_at.is_some_and(|at| at <= now)
    }

    pub(super) fn set_hearing(&self, hearing: Hearing) {
        self.state().hearing = hearing;
    }

    /// When it was last verified or renewed.
    pub(super) fn checked_at(&self) -> Moment {
        self.state().checked_at
    }

    /// Records that a request to detach it is about to be sent.
    pub(crate) fn set_detaching(&self) {
        self.root().state().detaches = true;
    }

    /// Whether the store may count it as detached. Only the reentrant kind counts holds.
    pub(super) fn may_be_detached(&self) -> bool {
        self.spec == LockSpec::Reentrant && self.root().state().detaches
    }

    /// Records whether a request that makes it an ordinary reader may have been carried out; returns what was
    /// recorded before.
    pub(crate) fn set_weakening(&self, weakens: bool) -> bool {
        std::mem::replace(&mut self.state().weakens, weakens)
    }

    /// Whether the store may have it as an ordinary reader, who cannot be upgraded.
    pub(super) fn may_be_reader(&self) -> bool {
        self.state().weakens
    }

    /// Records that a request that ends it beside a record is about to be sent.
    pub(crate) fn set_ending(&self) {
        self.root().state().ends = true;
    }

    /// Whether a request in flight may have ended or detached it. The answer to that request decides.
    pub(super) fn may_have_ended(&self) -> bool {
        self.may_be_detached() || self.root().state().ends
    }

    /// The request that renews the lease.
    pub(crate) fn renewal(&self, ttl: Duration, bind: Option<Liveness>, weight: Option<u32>) -> Verb {
        Verb::Renew { ttl_ms: lease::millis(ttl), hold: self.hold, bind, weight }
    }

    /// A request that verifies the lease without changing it.
    pub(crate) fn question(&self) -> Verb {
        match self.spec {
            // Concerns only its own ticket.
            LockSpec::Queue(_) => {
                Verb::Refresh { owners: Arc::new([self.owner.clone()]), wait_ms: 0, listens: None }
            }
            LockSpec::Mutex | LockSpec::Reentrant => Verb::Inspect,
        }
    }

    /// How it ended, without checking the clock.
    pub(super) fn known_outcome(&self) -> Option<HoldEnd> {
        match &self.state().phase {
            Phase::Ended { end, .. } => Some(end.clone()),
            Phase::Granted | Phase::Held { .. } => None,
        }
    }

    /// The loss revealed by the answer to a request of this hold; `None` if it is still held.
    pub(crate) fn refusal(&self, answer: &Answer) -> Option<Loss> {
        let other_kind =
            |kind| Some(Loss::new(LossReason::Taken, format!("its name is now in use as a {kind}")));
        let gone = || Some(Loss::new(LossReason::Gone, GONE));
        let value = match answer {
            Answer::Found(found) if found.holders.iter().any(|holder| self.wrote(&holder.value)) => {
                return None;
            }
            Answer::Found(found) => match found.holders.first() {
                Some(holder) => &*holder.value,
                None => return other_kind(found.kind),
            },
            Answer::Busy { holder, .. } => holder.as_bytes(),
            Answer::Free => return gone(),
            Answer::Mismatch { kind, .. } => return other_kind(*kind),
            Answer::Places { places, .. } if !matches!(places[..], [Place::Held { .. }]) => return gone(),
            Answer::Waiting { .. } => return gone(),
            _ => return None,
        };
        let text = match parse_value(value) {
            Some((owner, fence)) => format!("it was taken by {owner} with token {fence}"),
            None => format!("it was taken by a foreign client that wrote {}", Quoted(&shown(value))),
        };
        Some(Loss::new(LossReason::Taken, text))
    }

    /// Whether this hold wrote the value. The token is compared only for the reentrant kind, whose owner may
    /// have lost this hold and taken another; on a quorum, members that were acquired again have a later
    /// ballot.
    fn wrote(&self, value: &[u8]) -> bool {
        let is_same =
            |fence| fence == self.fence || self.spec != LockSpec::Reentrant || planted(Bug::TokenUnverified);
        parse_value(value).is_some_and(|(owner, fence)| owner == self.owner && is_same(fence))
    }

    /// Moves the deadline, even back, after a request for a lease of `time` that was sent at `sent`.
    pub(super) fn set_deadline(&self, sent: Moment, now: Moment, time: Duration) {
        let mut state = self.state();
        (state.extent, state.deadline) = (Extent::Whole { sent }, lease::deadline(sent, now, time));
    }

    /// Ends it unless it has ended already. `count` is called before anybody can see that, with the time since when
    /// it was held, if it counts as a hold. Returns who listens.
    pub(super) fn end(&self, end: HoldEnd, count: impl FnOnce(Moment)) -> Option<Vec<Waker>> {
        let mut state = self.state();
        if matches!(state.phase, Phase::Ended { .. }) {
            return None;
        }
        let held_since = state.phase.held_since();
        state.phase = Phase::Ended { held_since, end };
        held_since.filter(|_| matches!(self.role, Role::Alone | Role::Share(_))).map(count);
        let listeners = std::mem::take(&mut state.listeners);
        Some(listeners.into_iter().map(|(_, waker)| waker).collect())
    }

    /// The lease that is renewed and released: the shared one, or its own.
    pub(crate) fn root(&self) -> &Self {
        self.shared_root().map_or(self, |root| root)
    }

    /// The lease that it shares with the owner's other holds.
    pub(super) fn shared_root(&self) -> Option<&Arc<Self>> {
        match &self.role {
            Role::Share(root) => Some(root),
            Role::Alone | Role::Root(_) => None,
        }
    }

    pub(super) fn shares(&self) -> Vec<Arc<Self>> {
        match &self.role {
            Role::Root(shares) if planted(Bug::LossToldToOne) => {
                shares.lock().leases.first().cloned().into_iter().collect()
            }
            Role::Root(shares) => shares.lock().leases.clone(),
            Role::Alone | Role::Share(_) => Vec::new(),
        }
    }
}

impl LeaseState {
    /// The state of a lease that was set by a request sent at `sent`.
    fn new(sent: Moment, hearing: Hearing) -> Self {
        Self {
            phase: Phase::Granted,
            extent: Extent::Whole { sent },
            asked_at: sent,
            asked_until: sent,
            deadline: sent,
            due: None,
            doubtful_at: None,
            checked_at: sent,
            hearing,
            detaches: false,
            ends: false,
            weakens: false,
            listeners: Vec::new(),
            next_listener: 0,
            on_renewal: None,
        }
    }

    pub(super) fn lost_at(&self, grant: &Grant) -> Moment {
        let grace = if planted(Bug::NoGrace) { Duration::ZERO } else { grant.options.grace };
        grant.end.map_or(self.deadline, |end| self.deadline.min(end)) - grace
    }

    /// When to renew next; `None` if renewal is off or `max_hold` leaves nothing to gain. A partial lease is
    /// always renewed.
    pub(super) fn renew_at(&self, grant: &Grant) -> Option<Moment> {
        let sent = match self.extent {
            Extent::Part { whole_at } => return (!planted(Bug::NeverWhole)).then_some(whole_at),
            Extent::Whole { sent } => sent,
        };
        let reaches_end = grant.end.is_some_and(|end| sent + grant.options.ttl >= end);
        let is_renewed = grant.options.renewal == Renewal::Automatic && !reaches_end;
        is_renewed.then(|| lease::renew_at(sent, grant.options.ttl))
    }

    /// When its holder subscribes to messages about its end, if it has not yet.
    pub(super) fn listen_at(&self, grant: &Grant) -> Option<Moment> {
        match self.phase {
            Phase::Held { since } if self.hearing == Hearing::Later && !planted(Bug::ForcedUnheard) => {
                lease::listen_at(since, grant.options.ttl)
            }
            _ => None,
        }
    }

    /// Verify it from `from` on, even if it is not renewed.
    pub(super) fn doubt(&mut self, from: Moment) {
        self.doubtful_at = Some(self.doubtful_at.map_or(from, |at| at.min(from)));
    }

    /// Whether to verify it now. Clears the doubt.
    pub(super) fn take_doubt(&mut self, now: Moment) -> bool {
        self.doubtful_at.take_if(|at| *at <= now).is_some()
    }

    /// Records that it is being verified or renewed.
    pub(super) fn check(&mut self, now: Moment) {
        self.checked_at = self.checked_at.max(now);
    }

    /// A number for a new listener.
    pub(super) fn next_listener(&mut self) -> u64 {
        self.next_listener += 1;
        self.next_listener
    }

    /// Registers a listener's waker and returns the one it replaces.
    pub(super) fn listen(&mut self, id: u64, waker: Waker) -> Result<Option<Waker>, HoldEnd> {
        if let Phase::Ended { end, .. } = &self.phase {
            return Err(end.clone());
        }
        match self.listeners.iter_mut().find(|(known, _)| *known == id) {
            Some((_, known)) => Ok(Some(std::mem::replace(known, waker))),
            None => {
                self.listeners.push((id, waker));
                Ok(None)
            }
        }
    }

    pub(super) fn forget_listener(&mut self, id: u64) -> Option<Waker> {
        let at = self.listeners.iter().position(|(known, _)| *known == id)?;
        Some(self.listeners.remove(at).1)
    }
}

impl Phase {
    fn held_since(&self) -> Option<Moment> {
        match self {
            Self::Granted => None,
            Self::Held { since } => Some(*since),
            Self::Ended { held_since, .. } => *held_since,
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("name", &self.name).field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// The loss of a hold that the store no longer has.
pub(super) const GONE: &str = "it is gone from the store: expired, forced open, flushed or evicted";

/// Why a hold was lost.
#[derive(Debug)]
pub(crate) struct Loss {
    pub(super) reason: LossReason,
    pub(super) text: Cow<'static, str>,
}

impl Loss {
    pub(super) fn new(reason: LossReason, text: impl Into<Cow<'static, str>>) -> Self {
        Self { reason, text: text.into() }
    }
}

/// How a lease relates to its owner's other holds.
pub(super) enum Role {
    /// Not shared.
    Alone,
    /// The hold on the store, on behalf of its shares. No caller has it.
    Root(Box<Locked<Shares>>),
    /// In a caller's hands. The root has the lease.
    Share(Arc<Lease>),
}

/// The shares of a root.
#[derive(Default)]
pub(super) struct Shares {
    pub(super) leases: Vec<Arc<Lease>>,
    /// No more shares may join.
    pub(super) is_closed: bool,
}
