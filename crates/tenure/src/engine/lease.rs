//! One grant: until when it is good, and the news of its end.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use super::Engine;
use crate::error::Error;
use crate::events::{event, millis, text};
use crate::metrics::{LossReason, Meter};
use crate::moment::Moment;
use crate::name::{LockName, Quoted};
use crate::options::{Options, Renewal};
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Liveness, LockSpec, Place, Verb, lease, parse_value, shown};

/// What is known of a grant, shared by its guard, its loss signals and the renewal.
pub(crate) struct Lease {
    /// The full name.
    pub(crate) name: LockName,
    pub(crate) rule: LockSpec,
    pub(crate) owner: Owner,
    pub(crate) fence: u64,
    pub(crate) hold: u64,
    /// What it is counted in.
    pub(super) meter: Meter,
    pub(crate) op_timeout: Duration,
    ttl: Duration,
    pub(super) grace: Duration,
    /// What it was bound to when it was granted.
    pub(super) bind: Liveness,
    /// When `max_hold` is over.
    pub(super) end: Option<Moment>,
    pub(super) renewal: Renewal,
    /// How often the store had been interrupted before it was asked for.
    pub(super) interruptions: u64,
    /// From when it is to be asked about, because the store may have forgotten it or ended it; 0 if
    /// it is not.
    doubtful_at: AtomicU64,
    /// When it was last asked about or renewed.
    checked: AtomicU64,
    /// How it stands with messages about its end: a [`Hearing`].
    hearing: AtomicU8,
    /// It was asked to be detached, and may be.
    detaches: AtomicBool,
    /// When the request was sent that last set the whole lease.
    sent: AtomicU64,
    /// When the last request was sent that may have set it, answered or not.
    asked: AtomicU64,
    /// When to ask for the whole lease, if it came with less.
    whole_at: Moment,
    /// Until when it is certainly ours.
    deadline: AtomicU64,
    /// Where it stands in the renewer's schedule; 0 if it does not.
    pub(super) due: AtomicU64,
    /// When it came into the caller's hands; unset if it never did.
    kept: AtomicU64,
    outcome: OnceLock<HoldEnd>,
    listeners: Mutex<Vec<(u64, Waker)>>,
    next_ear: AtomicU64,
    on_renewal: Mutex<Option<OnRenewal>>,
    pub(super) role: Role,
}

/// Called with the moment of the loss after each renewal.
pub(crate) type OnRenewal = Arc<dyn Fn(Moment) + Send + Sync>;

impl Lease {
    /// A grant whose lease was last set, to `first`, by a request that was sent at `sent` and
    /// answered at `answered`. A first lease that is shorter than it should be is renewed soon.
    pub(super) fn granted(grant: Grant<'_>, sent: Moment, answered: Moment, first: Duration) -> Self {
        let Grant { name, rule, owner, fence, hold, meter, begun, interruptions, options } = grant;
        let is_whole = first >= options.lease();
        Self {
            name: name.clone(),
            rule,
            owner: owner.clone(),
            fence,
            hold,
            meter,
            op_timeout: options.op_timeout,
            ttl: options.ttl,
            grace: options.grace,
            bind: bind(options),
            end: options.max_hold.map(|hold| begun + hold),
            renewal: options.renewal,
            interruptions,
            doubtful_at: AtomicU64::new(0),
            checked: AtomicU64::new(sent.0),
            hearing: AtomicU8::new(Hearing::Later as u8),
            detaches: AtomicBool::new(false),
            sent: AtomicU64::new(if is_whole { sent.0 } else { UNSET.0 }),
            asked: AtomicU64::new(sent.0),
            whole_at: lease::whole_at(answered, options.ttl),
            deadline: AtomicU64::new(lease::deadline(sent, answered, first).0),
            due: AtomicU64::new(0),
            kept: AtomicU64::new(UNSET.0),
            outcome: OnceLock::new(),
            listeners: Mutex::default(),
            next_ear: AtomicU64::new(0),
            on_renewal: Mutex::default(),
            role: Role::Alone,
        }
    }

    /// Another hold on the same terms, whose lease is not renewed.
    pub(super) fn like(&self, meter: Meter, op_timeout: Duration, role: Role) -> Self {
        let (name, owner) = (self.name.clone(), self.owner.clone());
        let Self { rule, fence, hold, ttl, grace, bind, end, renewal, .. } = *self;
        let Self { interruptions, whole_at, .. } = *self;
        let [sent, asked, deadline, due, kept, next_ear] = [const { AtomicU64::new(UNSET.0) }; 6];
        let [doubtful_at, checked] = [const { AtomicU64::new(0) }; 2];
        let (hearing, detaches) = (AtomicU8::new(Hearing::Never as u8), AtomicBool::new(false));
        let (outcome, listeners) = (OnceLock::new(), Mutex::default());
        Self {
            name,
            rule,
            owner,
            fence,
            hold,
            meter,
            op_timeout,
            ttl,
            grace,
            bind,
            end,
            renewal,
            interruptions,
            doubtful_at,
            checked,
            hearing,
            detaches,
            sent,
            asked,
            whole_at,
            deadline,
            due,
            kept,
            outcome,
            listeners,
            next_ear,
            on_renewal: Mutex::default(),
            role,
        }
    }

    /// The options of a hold like it.
    pub(super) fn options(&self) -> Options {
        Options {
            ttl: self.ttl,
            grace: self.grace,
            renewal: self.renewal,
            op_timeout: self.op_timeout,
            inherit_liveness: self.bind == Liveness::Work,
            ..Options::default()
        }
    }

    /// It comes into the caller's hands. False if it is there already, or has ended before.
    pub(super) fn kept(&self, now: Moment) -> bool {
        // 0 means "not yet".
        let now = now.0.max(UNSET.0 + 1);
        self.kept.compare_exchange(UNSET.0, now, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// For how long it has been in the caller's hands; `None` if it never was, as a term.
    pub(super) fn held_for(&self, now: Moment) -> Option<Duration> {
        if matches!(self.role, Role::Term(_)) {
            return None;
        }
        let kept = Moment(self.kept.load(Ordering::Acquire));
        (kept != UNSET && kept != NEVER).then(|| now.since(kept))
    }

    /// Moves the deadline after a renewal that was sent at `sent` for `ttl`. It never moves back.
    pub(crate) fn renewed(&self, sent: Moment, answered: Moment, ttl: Duration) {
        let term = self.term();
        term.sent.fetch_max(sent.0, Ordering::AcqRel);
        term.deadline.fetch_max(lease::deadline(sent, answered, ttl).0, Ordering::AcqRel);
        match &term.role {
            Role::Term(shares) => {
                let leases = lock(shares).leases.clone();
                leases.iter().for_each(|lease| lease.tell_renewal());
            }
            Role::Alone | Role::Share(_) => term.tell_renewal(),
        }
    }

    fn tell_renewal(&self) {
        let on_renewal = lock(&self.on_renewal).clone();
        if let Some(on_renewal) = on_renewal {
            on_renewal(self.lost_at());
        }
    }

    /// Replaces the function that is called after each renewal.
    pub(crate) fn on_renewal(&self, on_renewal: OnRenewal) {
        *lock(&self.on_renewal) = Some(on_renewal);
    }

    /// When the loss is announced: `grace` before another owner can have the lease.
    pub(crate) fn lost_at(&self) -> Moment {
        let deadline = Moment(self.term().deadline.load(Ordering::Acquire));
        let grace = if planted(Bug::NoGrace) { Duration::ZERO } else { self.grace };
        self.end.map_or(deadline, |end| deadline.min(end)) - grace
    }

    /// When the lease itself is over, also on the store, and also if a renewal that was never
    /// answered has set it.
    pub(super) fn lapses_at(&self) -> Moment {
        let asked = Moment(self.term().asked.load(Ordering::Acquire));
        asked + self.ttl_from(asked)
    }

    /// Until when there may be something to release. A hold that was taken over may have a longer
    /// lease than `max_hold` leaves it here: nothing ever shortens one.
    pub(super) fn over_at(&self) -> Moment {
        Moment(self.term().asked.load(Ordering::Acquire)) + self.ttl
    }

    /// When to renew next, unless there is nothing to renew or nothing to gain. A grant that came
    /// with less than a whole lease is renewed soon, also where nothing is renewed after that.
    pub(super) fn renew_at(&self) -> Option<Moment> {
        let sent = Moment(self.sent.load(Ordering::Acquire));
        if sent == UNSET {
            return (!planted(Bug::NeverWhole)).then_some(self.whole_at);
        }
        let reaches_end = self.end.is_some_and(|end| sent + self.ttl >= end);
        (self.renewal == Renewal::Automatic && !reaches_end).then(|| lease::renew_at(sent, self.ttl))
    }

    /// How much sooner it is renewed where many are.
    pub(super) fn spread(&self) -> Duration {
        lease::spread(self.ttl, self.hold)
    }

    /// The same for the first time: those that were acquired together are not renewed together.
    pub(super) fn first_spread(&self) -> Duration {
        lease::first_spread(self.ttl, self.hold)
    }

    /// A renewal is about to be sent. Returns the lease to ask for.
    pub(crate) fn asks(&self, now: Moment) -> Duration {
        self.term().asked.fetch_max(now.0, Ordering::AcqRel);
        self.ttl_from(now)
    }

    /// `max_hold` clips each lease.
    fn ttl_from(&self, now: Moment) -> Duration {
        self.end.map_or(self.ttl, |end| self.ttl.min(end.since(now)))
    }

    /// The store may have forgotten it: it is to be asked about from then on, also where it is not
    /// renewed.
    pub(super) fn doubt(&self, from: Moment) {
        let from = from.0.max(1);
        let sooner = |at: u64| (at == 0 || from < at).then_some(from);
        let _ = self.doubtful_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, sooner);
    }

    /// When it is to be asked about, if it is in doubt.
    pub(super) fn doubtful_at(&self) -> Option<Moment> {
        let at = self.doubtful_at.load(Ordering::Acquire);
        (at != 0).then_some(Moment(at))
    }

    /// Whether it is to be asked about now because it is in doubt. It is asked about once.
    pub(super) fn take_doubt(&self, now: Moment) -> bool {
        let take = |at: u64| (at != 0 && at <= now.0).then_some(0);
        self.doubtful_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok()
    }

    /// It is being asked about, or renewed.
    pub(super) fn is_checked(&self, now: Moment) {
        self.checked.fetch_max(now.0, Ordering::AcqRel);
    }

    /// When it was last asked about or renewed.
    pub(super) fn checked_at(&self) -> Moment {
        Moment(self.checked.load(Ordering::Acquire))
    }

    /// How it stands with messages about its end.
    pub(super) fn hearing(&self) -> Hearing {
        match self.hearing.load(Ordering::Acquire) {
            state if state == Hearing::Later as u8 => Hearing::Later,
            state if state == Hearing::Listens as u8 => Hearing::Listens,
            state if state == Hearing::Again as u8 => Hearing::Again,
            _ => Hearing::Never,
        }
    }

    pub(super) fn set_hearing(&self, hearing: Hearing) {
        self.hearing.store(hearing as u8, Ordering::Release);
    }

    /// When its holder begins to listen to messages about its end, if that is still to come.
    pub(super) fn listen_at(&self) -> Option<Moment> {
        let kept = Moment(self.kept.load(Ordering::Acquire));
        let is_to_come = kept != UNSET && self.hearing() == Hearing::Later && !planted(Bug::ForcedUnheard);
        if is_to_come { lease::listen_at(kept, self.ttl) } else { None }
    }

    /// Whether its holder tries to listen once more. Asked after a renewal.
    pub(super) fn listens_again(&self, now: Moment) -> bool {
        let kept = Moment(self.kept.load(Ordering::Acquire));
        self.hearing() == Hearing::Again && lease::listen_at(kept, self.ttl).is_some_and(|at| at <= now)
    }

    /// A request is about to be sent that lets go of it without releasing.
    pub(crate) fn detaches(&self) {
        self.term().detaches.store(true, Ordering::Release);
    }

    /// Whether its count may have no hold on this side any more: where one owner may hold several
    /// times.
    pub(super) fn may_be_detached(&self) -> bool {
        self.rule == LockSpec::Reentrant && self.term().detaches.load(Ordering::Acquire)
    }

    /// The request that sets the lease again.
    pub(crate) fn renewal(&self, ttl: Duration, bind: Option<Liveness>, weight: Option<u32>) -> Verb {
        Verb::Renew { ttl_ms: lease::millis(ttl), hold: self.hold, bind, weight }
    }

    /// The question whether it is still held, which changes nothing.
    pub(crate) fn question(&self) -> Verb {
        match self.rule {
            // Not all of a queue: only this place in it.
            LockSpec::Queue(_) => {
                Verb::Refresh { owners: Arc::new([self.owner.clone()]), wait_ms: 0, listens: None }
            }
            LockSpec::Mutex | LockSpec::Reentrant => Verb::Inspect,
        }
    }

    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// How the lease ended, if it has. Looks at the clock before anything else, so a process that
    /// was stopped for longer than its lease hears of it at once.
    pub(crate) fn outcome(&self, engine: &Engine) -> Option<HoldEnd> {
        let now = engine.now();
        if self.outcome.get().is_none() && now >= self.lost_at() && !planted(Bug::LossUnannounced) {
            self.expire(engine);
        }
        self.outcome.get().cloned()
    }

    pub(crate) fn remaining(&self, engine: &Engine) -> Duration {
        match self.outcome(engine) {
            Some(_) => Duration::ZERO,
            None => self.lost_at().since(engine.now()),
        }
    }

    /// Its time is over on this side, even if the store still keeps it.
    pub(super) fn expire(&self, engine: &Engine) {
        let (reason, text) = match self.end {
            Some(end)
                if Moment(self.term().deadline.load(Ordering::Acquire)) + lease::margin(self.ttl) >= end =>
            {
                (LossReason::MaxHold, "the longest hold (max_hold) is over")
            }
            _ => (LossReason::Expired, "its lease expired before it could be renewed"),
        };
        self.lose(engine, &Loss::new(reason, text));
    }

    /// Ends it as lost: final, and all listeners are told.
    pub(crate) fn lose(&self, engine: &Engine, loss: &Loss) {
        let error = Error::lost(&self.name, engine.store.url(), &loss.text);
        let term = self.term();
        if term.settle(engine, HoldEnd::Lost(error.clone()), Some(loss.reason)) {
            engine.renewer.forget(term);
            engine.local_queues.ask_soon(&self.name, None);
            if matches!(term.role, Role::Alone) {
                term.tell_loss(engine, loss);
            }
        }
        for share in term.shares() {
            if share.settle(engine, HoldEnd::Lost(error.clone()), Some(loss.reason)) {
                share.tell_loss(engine, loss);
            }
        }
    }

    /// Its release found that it was lost before.
    pub(super) fn found_lost(&self, engine: &Engine, loss: &Loss) -> Error {
        engine.metrics.lost(self.meter, loss.reason);
        self.tell_loss(engine, loss);
        Error::lost(&self.name, engine.store.url(), &loss.text)
    }

    fn tell_loss(&self, engine: &Engine, loss: &Loss) {
        event!(
            WARN,
            target: "tenure",
            "lock_lost",
            "lost",
            lock = text(&self.name),
            kind = self.meter.kind(),
            store = text(engine.store.url()),
            owner = text(&self.owner),
            fence = self.fence,
            held_ms = self.held_for(engine.now()).map(millis),
            cause = loss.reason.as_str(),
            reason = text(&loss.text),
        );
    }

    /// Why an answer to this hold's own request means that it is lost; `None` while it is held.
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

    /// A reentrant owner may have lost this hold and have another, with another token. Members of a
    /// quorum that have taken it again have a later ballot.
    fn wrote(&self, value: &[u8]) -> bool {
        let is_same =
            |fence| fence == self.fence || self.rule != LockSpec::Reentrant || planted(Bug::TokenUnverified);
        parse_value(value).is_some_and(|(owner, fence)| owner == self.owner && is_same(fence))
    }

    /// Sets the outcome, once. It is counted before anyone can be told.
    pub(super) fn settle(&self, engine: &Engine, outcome: HoldEnd, loss: Option<LossReason>) -> bool {
        let mut first = false;
        self.outcome.get_or_init(|| {
            first = true;
            // One that ends before it comes into the caller's hands never does.
            let _ = self.kept.compare_exchange(UNSET.0, NEVER.0, Ordering::AcqRel, Ordering::Acquire);
            if let Some(held) = self.held_for(engine.now()) {
                engine.metrics.ended(self.meter, held);
                if let Some(reason) = loss {
                    engine.metrics.lost(self.meter, reason);
                }
            }
            outcome
        });
        if first {
            // Not under the lock: a woken task may drop a listener.
            let listeners = std::mem::take(&mut *self.listeners());
            listeners.into_iter().for_each(|(_, waker)| waker.wake());
        }
        first
    }

    /// What is renewed and released for it: itself, unless it shares a hold.
    pub(crate) fn term(&self) -> &Self {
        self.shared_term().map_or(self, |term| term)
    }

    /// The same, if it shares a hold.
    pub(super) fn shared_term(&self) -> Option<&Arc<Self>> {
        match &self.role {
            Role::Share(term) => Some(term),
            Role::Alone | Role::Term(_) => None,
        }
    }

    fn shares(&self) -> Vec<Arc<Self>> {
        match &self.role {
            Role::Term(shares) if planted(Bug::LossToldToOne) => {
                lock(shares).leases.first().cloned().into_iter().collect()
            }
            Role::Term(shares) => lock(shares).leases.clone(),
            Role::Alone | Role::Share(_) => Vec::new(),
        }
    }

    /// How it ended, as far as is known without a look at the clock.
    pub(super) fn known_outcome(&self) -> Option<HoldEnd> {
        self.outcome.get().cloned()
    }

    /// A number for one who listens to its end.
    pub(super) fn next_listener(&self) -> u64 {
        self.next_ear.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn listeners(&self) -> MutexGuard<'_, Vec<(u64, Waker)>> {
        lock(&self.listeners)
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("name", &self.name).field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// How a hold stands with messages that say that it may have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Hearing {
    /// Its holder listens once it has held for a while.
    Later,
    Listens,
    /// It could not, and tries again after the next renewal.
    Again,
    /// The store refuses it.
    Never,
}

/// No request has set the whole lease yet, or it is not in the caller's hands yet.
const UNSET: Moment = Moment(0);
/// It does not come into the caller's hands any more.
const NEVER: Moment = Moment(u64::MAX);

/// What a store's silence about a hold means.
pub(super) const GONE: &str = "it is gone from the store: expired, forced open, flushed or evicted";

/// Why a hold is lost.
#[derive(Debug)]
pub(crate) struct Loss {
    reason: LossReason,
    text: Cow<'static, str>,
}

impl Loss {
    pub(super) fn new(reason: LossReason, text: impl Into<Cow<'static, str>>) -> Self {
        Self { reason, text: text.into() }
    }
}

pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whose grant a lease is.
pub(super) struct Grant<'a> {
    pub(super) name: &'a LockName,
    pub(super) rule: LockSpec,
    pub(super) owner: &'a Owner,
    pub(super) fence: u64,
    pub(super) hold: u64,
    pub(super) meter: Meter,
    /// From when `max_hold` counts.
    pub(super) begun: Moment,
    /// As the store counted them before the first request.
    pub(super) interruptions: u64,
    pub(super) options: &'a Options,
}

/// Which of the holds of one owner share one hold on the store.
pub(super) enum Role {
    /// It shares with none.
    Alone,
    /// What the store has, for all that share it. It is in no caller's hands itself.
    Term(Box<Mutex<Shares>>),
    /// In a caller's hands: its lease is that one's.
    Share(Arc<Lease>),
}

/// Those that share a hold.
#[derive(Default)]
pub(super) struct Shares {
    pub(super) leases: Vec<Arc<Lease>>,
    /// No more may come.
    pub(super) is_closed: bool,
}

/// What a hold with these options is bound to.
pub(crate) fn bind(options: &Options) -> Liveness {
    if options.inherit_liveness { Liveness::Work } else { Liveness::Process }
}

/// How a hold ended: what [`Lost`](crate::Lost) resolves to.
///
/// ```
/// # tenure::block_on(async {
/// use tenure::{HoldEnd, Locks};
///
/// let guard = Locks::memory().mutex("nightly")?.lock().await?;
/// let lost = guard.lost();
/// guard.release().await?;
/// match lost.await {
///     HoldEnd::Lost(error) => panic!("stop the work: {error}"),
///     _ => println!("the work is done"),
/// }
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum HoldEnd {
    /// The lease is over, or about to be. The error says why: expired, taken by another client,
    /// gone from the store, or held for
    /// [`max_hold`](crate::Options::max_hold). It [`is_lost`](Error::is_lost).
    Lost(Error),
    /// The guard was released, dropped or detached.
    Released,
}

impl HoldEnd {
    /// Whether the lock was lost.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let guard = tenure::Locks::memory().mutex("nightly")?.lock().await?;
    /// let lost = guard.lost();
    /// drop(guard);
    /// assert!(!lost.await.is_lost());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_))
    }

    /// The loss as an error; `None` if the guard was released.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let guard = tenure::Locks::memory().mutex("nightly")?.lock().await?;
    /// let lost = guard.lost();
    /// drop(guard);
    /// assert!(lost.await.into_error().is_none());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub fn into_error(self) -> Option<Error> {
        match self {
            Self::Lost(error) => Some(error),
            Self::Released => None,
        }
    }
}

impl fmt::Display for HoldEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(error) => fmt::Display::fmt(error, f),
            Self::Released => f.write_str("the lock was released"),
        }
    }
}

/// Says that a lock was acquired, for those who watch.
pub(super) fn announce(engine: &Engine, lease: &Lease, waited: Duration) {
    event!(
        DEBUG,
        target: "tenure",
        "lock_acquired",
        "acquired",
        lock = text(&lease.name),
        kind = lease.meter.kind(),
        store = text(engine.store.url()),
        owner = text(&lease.owner),
        fence = lease.fence,
        waited_ms = millis(waited),
    );
}
