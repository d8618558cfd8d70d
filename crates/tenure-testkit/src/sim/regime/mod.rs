//! Which faults a schedule has. Drawn by regime: a schedule in which everything goes wrong at once
//! never gets far enough to show the subtle mistakes, so each has its own trouble and leaves the
//! rest alone.

mod kind;
mod node_faults;

use std::time::Duration;

use tenure::internals::protocol::{LockSpec, QueueSpec, lease};

use super::clock::{MS, SECOND, TrueTime};
use super::executor::Sim;

pub use kind::LockKind;
pub use node_faults::NodeFaults;

/// The trouble a schedule has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Regime {
    /// None. So everything must happen at once.
    Quiet,
    /// Requests, replies and messages get lost, connections are cut.
    Lossy,
    /// Answers take so long that much of a lease, or all of it, is gone when they arrive.
    Slow,
    /// Processes and the server stop and go on.
    Pausing,
    /// Processes die.
    Killing,
    /// Clocks run at different speeds, and renewals fail, so that leases are used to their end.
    Drifting,
    /// The shortest leases there are.
    Tiny,
    /// Everything at once.
    Storm,
    /// The server forgets everything now and then, or an operator deletes a key. Exclusion is not
    /// promised then; the rest is.
    Forgetting,
    /// Processes are cut off for a while, one way or both, and no client is told.
    Parted,
    /// The server goes back to what it was a while ago. Exclusion is not promised then; the rest
    /// is.
    Rewinding,
    /// A key of a lock disappears: what is held, or the counter of its tokens.
    Evicting,
    /// The server's clock is set ahead, and back.
    Stepping,
    /// What arrives, arrives when a lease, a request's time or a wait ends, or just beside it.
    Brink,
    /// The server does not know its scripts, so requests are overtaken by those behind them. Else
    /// none.
    Unscripted,
    /// Messages get lost, come late and come twice, many wait, and requests arrive, unless their
    /// connection is cut. So the client that relies on what it is told waits for ever, or for the
    /// rest of a lease.
    LateMessages,
    /// Each process has one request or reply lost, with its connection, and no more. So the client
    /// that is renewed loses nothing.
    Hiccup,
    /// Many hold and wait for no longer than a few messages take, and what leaves first may come
    /// last. So all of it meets on its way. Else nothing.
    Rush,
    /// The same on a server that goes back again and again, by as little.
    Relapsing,
    /// The server stands still for longer than any client's patience.
    Outage,
    /// What arrives, arrives at the very nanosecond when a lease or a request's time ends.
    OnTheDot,
    /// Many wait in line, and hold to the end of a time that is as short as messages take. Else
    /// nothing.
    Fleeting,
    /// Many hold and wait as briefly, and connections end again and again.
    Flapping,
}

impl Regime {
    /// All of them. New ones come last, so that what an earlier one is called by stays.
    pub const ALL: [Self; 23] = [
        Self::Quiet,
        Self::Lossy,
        Self::Slow,
        Self::Pausing,
        Self::Killing,
        Self::Drifting,
        Self::Tiny,
        Self::Storm,
        Self::Forgetting,
        Self::Parted,
        Self::Rewinding,
        Self::Evicting,
        Self::Stepping,
        Self::Brink,
        Self::Unscripted,
        Self::LateMessages,
        Self::Hiccup,
        Self::Rush,
        Self::Relapsing,
        Self::Outage,
        Self::OnTheDot,
        Self::Fleeting,
        Self::Flapping,
    ];

    /// That of a seed: they take turns.
    pub fn of(seed: u64) -> Self {
        Self::ALL[(seed % Self::ALL.len() as u64) as usize]
    }

    /// Whether everything must happen at once.
    pub fn is_calm(self) -> bool {
        matches!(self, Self::Quiet | Self::Unscripted | Self::Rush | Self::Fleeting)
    }

    /// Whether nothing stands still, and a request whose connection is well is answered at once.
    pub fn is_gentle(self) -> bool {
        self.is_calm() || matches!(self, Self::Lossy | Self::LateMessages | Self::Hiccup)
    }

    /// That of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|regime| format!("{regime:?}") == name)
    }
}

/// What the network does to one message; shares in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// What a message takes one way, at least and at most.
    pub latency: (TrueTime, TrueTime),
    /// How many take longer, and how long at most.
    pub late: (u32, TrueTime),
    /// How many arrive at the very moment when a lease ends, or just beside it.
    pub edge: u32,
    /// How many requests, and replies, arrive when the time that was given to them is over, or just
    /// beside that.
    pub limit: u32,
    /// How many of those that arrive at such a moment, or beside it, arrive at it.
    pub exact: u32,
    /// Requests that disappear, with everything after them on that connection.
    pub lose_request: u32,
    /// Replies that disappear, with everything after them on that connection.
    pub lose_reply: u32,
    /// A process loses no more than one of those.
    pub once: bool,
    /// Requests that are not sent at all.
    pub refuse: u32,
    /// Requests that are sent a second time, as the server does not know their script: what is
    /// sent meanwhile comes first.
    pub again: u32,
    /// Requests with little time whose silence ends the connection as others' does.
    pub impatient: u32,
    /// How long it takes at most until messages are heard again.
    pub messages_late: TrueTime,
    /// Subscriptions that are not answered, beside those whose replies disappear.
    pub lose_subscription: u32,
    /// Wake-ups that disappear.
    pub lose_wake: u32,
    /// Wake-ups that come twice.
    pub repeat_wake: u32,
    /// How many wake-ups come late, and how much at most: the server may have forgotten everything
    /// by then.
    pub late_wake: (u32, TrueTime),
}

impl Faults {
    /// A network without any.
    pub const NONE: Self = Self {
        latency: (20_000, 2 * MS),
        late: (0, 0),
        edge: 0,
        limit: 0,
        exact: 0,
        lose_request: 0,
        lose_reply: 0,
        once: false,
        refuse: 0,
        again: 0,
        impatient: 0,
        messages_late: 500 * MS,
        lose_subscription: 0,
        lose_wake: 0,
        repeat_wake: 0,
        late_wake: (0, 0),
    };
}

/// The numbers of one schedule.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The regime it was drawn from.
    pub regime: Regime,
    /// The network until it heals.
    pub faults: Faults,
    /// Faults of processes and servers until everything heals.
    pub node_faults: NodeFaults,
    /// The lease.
    pub ttl: Duration,
    /// For how long a wait without a limit goes on while nothing answers.
    pub patience: Duration,
    /// For how long any client holds or waits at most, and how far a server goes back, where that
    /// has nothing to do with leases.
    pub brief: Option<TrueTime>,
    /// How wrong clocks are at most, in parts per million.
    pub ppm: u32,
    /// How many processes.
    pub processes: usize,
    /// How many tasks each of them has at most.
    pub tasks: u32,
    /// How many locks there are.
    pub names: u32,
    /// What kinds of locks they are.
    pub kinds: [LockKind; 2],
    /// How many of a thousand acquisitions are of both locks at once.
    pub both: u32,
    /// How often a task acquires at most.
    pub rounds: u32,
    /// How many of a thousand acquisitions, renewals and releases are dropped before they end.
    pub cancel: u32,
    /// How many of a thousand acquisitions are not renewed by themselves.
    pub unrenewed: u32,
    /// How many of a thousand have a limit to how long they hold, and how long that is at most.
    pub limited: (u32, TrueTime),
    /// How many of a thousand holds go on until their lease is over.
    pub overstay: u32,
    /// How many of a thousand waits end just when a lease does.
    pub brink: u32,
    /// How many of a thousand holds that were passed on are taken over just when their lease ends.
    pub last_moment: u32,
    /// By how much a clock is set ahead and back again at most.
    pub step: TrueTime,
    /// Until when there are faults.
    pub heals_at: TrueTime,
    /// From when on everything must happen at once.
    pub strict_from: TrueTime,
    /// After how long at most the end of a lease is noticed that no client was told of. On a server
    /// the client that waits knows when it is.
    pub looks: TrueTime,
    /// Whether all wall clocks agree within less than a member of a quorum allows for.
    pub is_near: bool,
    /// Permille of acquisitions before which an operator ends all holds by force.
    pub forced: u32,
    /// How much longer than its lease a store keeps a hold at most, where it is bound to a session.
    pub session: TrueTime,
    /// How many round trips a call takes at most, where it takes several.
    pub trips: u32,
    /// Whether the server removes a waiter whose client does not hear its call.
    pub passes: bool,
}

/// Everything the code under test may do by itself once nothing fails any more: an attempt that is
/// still running, the pause after it, and the next.
pub const RECOVERY: TrueTime = 3 * SECOND;

/// More than a question and its answer take where nothing fails.
pub const ROUND_TRIP: Duration = Duration::from_millis(30);

/// The shortest lease, and the shortest limit of a hold.
pub const SHORTEST: TrueTime = 50 * MS;

/// The longest that a waiter sleeps who hears nothing.
const SLEEP: Duration = Duration::from_secs(30);

impl Plan {
    /// The lease in true time, on the slowest clock.
    pub fn lease(&self) -> TrueTime {
        let lease = self.ttl.as_nanos() as TrueTime;
        lease + self.drift() + self.session
    }

    /// Whether the permits of this lock are set while it is in use: where the server forgets
    /// nothing of it.
    pub fn resizes(&self, index: usize) -> bool {
        let NodeFaults { forget, delete, rewind, evict, step, .. } = self.node_faults;
        self.kinds[index] == LockKind::Semaphore(3) && forget + delete + rewind + evict + step == 0
    }

    /// By how much two clocks may differ after a lease.
    pub fn drift(&self) -> TrueTime {
        self.ttl.as_nanos() as TrueTime / 1_000 * 2 * TrueTime::from(self.ppm) / 1_000
    }

    /// Draws for how long a client holds or waits, or how far a server goes back: so much at most,
    /// unless all is brief.
    pub fn span(&self, sim: &Sim, most: TrueTime) -> TrueTime {
        match self.brief {
            // Its square: short ones, which cross more of what is on its way, come more often.
            Some(brief) => brief * TrueTime::from(sim.choose(1_000)).pow(2) / 1_000_000,
            None => sim.between(0, most),
        }
    }

    /// More than a question and its answer take where nothing fails.
    pub fn trip(&self) -> Duration {
        self.trips
            * match self.brief {
                Some(_) => Duration::from_nanos(3 * self.faults.latency.1),
                None => ROUND_TRIP,
            }
    }

    /// For how long a place in a queue is kept, in true time.
    pub fn wait(&self) -> TrueTime {
        lease::wait(self.ttl).as_nanos() as TrueTime + self.drift() + self.session
    }

    /// Draws the numbers of a schedule in one regime.
    pub fn draw(sim: &Sim, regime: Regime) -> Self {
        let ttl = |low, high| Duration::from_nanos(sim.between(low, high) / MS * MS);
        let mut plan = Self {
            regime,
            faults: Faults::NONE,
            node_faults: NodeFaults::default(),
            ttl: ttl(2 * SECOND, 20 * SECOND),
            patience: Duration::from_secs(60),
            brief: None,
            ppm: 100,
            processes: 1 + sim.choose(3) as usize,
            tasks: 3,
            names: 1,
            kinds: [LockKind::Mutex; 2],
            both: 0,
            rounds: 3,
            cancel: 250,
            unrenewed: 150,
            limited: (100, 0),
            overstay: 50,
            brink: 0,
            last_moment: 0,
            step: 0,
            heals_at: 0,
            strict_from: 0,
            looks: 0,
            is_near: false,
            forced: 0,
            session: 0,
            trips: 1,
            passes: true,
        };
        if sim.chance(200) {
            (plan.names, plan.both) = (2, 300 * sim.choose(2));
        }
        for sort in plan.kinds.iter_mut().take(plan.names as usize) {
            *sort = LockKind::draw(sim);
        }
        let near = sim.between(MS / 50, 5 * MS);
        plan.faults.latency = (near, 2 * near);
        plan.faults.impatient = if regime.is_calm() { 0 } else { 500 };
        let (quiet, none) = (plan.faults, plan.node_faults);
        match regime {
            Regime::Quiet => {}
            Regime::Lossy => {
                let (lose_request, lose_reply, refuse, lose_wake, repeat_wake) = (40, 40, 30, 200, 50);
                plan.faults =
                    Faults { lose_request, lose_reply, refuse, lose_wake, repeat_wake, edge: 20, ..quiet };
                plan.faults.late_wake = (50, 3 * SECOND);
                plan.node_faults = NodeFaults { most: 4, cut: 3, delay_messages: 2, ..none };
            }
            Regime::Slow => {
                plan.ttl = ttl(100 * MS, 3 * SECOND);
                plan.faults = Faults { latency: (MS, 60 * MS), late: (300, 1_300 * MS), edge: 100, ..quiet };
                plan.unrenewed = 300;
            }
            Regime::Pausing => {
                plan.ttl = ttl(300 * MS, 10 * SECOND);
                plan.faults = Faults { edge: 20, ..quiet };
                plan.node_faults = NodeFaults { most: 6, pause: 5, stall: 2, ..none };
                plan.overstay = 200;
            }
            Regime::Killing => {
                plan.processes = 3;
                plan.node_faults = NodeFaults { most: 3, kill: 3, cut: 1, ..none };
            }
            Regime::Drifting => {
                plan.ttl = ttl(5 * SECOND, 30 * SECOND);
                plan.ppm = 5_000;
                plan.processes = 2 + sim.choose(2) as usize;
                plan.faults = Faults { lose_request: 60, lose_reply: 60, edge: 60, ..quiet };
                plan.node_faults = NodeFaults { most: 3, stall: 2, cut: 1, ..none };
                (plan.unrenewed, plan.overstay) = (500, 600);
            }
            Regime::Tiny => {
                plan.ttl = ttl(50 * MS, 150 * MS);
                let (latency, late) = ((MS / 10, 10 * MS), (50, 100 * MS));
                plan.faults = Faults { latency, late, edge: 100, lose_reply: 10, ..quiet };
                plan.node_faults = NodeFaults { most: 2, pause: 1, ..none };
                plan.overstay = 200;
            }
            Regime::Storm => {
                plan.ttl = ttl(100 * MS, 15 * SECOND);
                plan.ppm = 5_000;
                let (latency, late) = ((MS / 10, 20 * MS), (60, 1_200 * MS));
                let (lose_request, lose_reply, refuse, lose_wake, repeat_wake) = (20, 20, 20, 100, 30);
                let storm = Faults { latency, late, lose_request, lose_reply, refuse, ..quiet };
                plan.faults = Faults { edge: 50, lose_wake, repeat_wake, ..storm };
                plan.node_faults =
                    NodeFaults { most: 6, pause: 3, kill: 1, cut: 2, delay_messages: 2, stall: 2, ..none };
                plan.faults.late_wake = (100, 3 * SECOND);
                (plan.unrenewed, plan.overstay) = (250, 250);
            }
            Regime::Forgetting => {
                plan.faults.late_wake = (300, 2 * SECOND);
                plan.node_faults = NodeFaults { most: 4, forget: 3, delete: 3, cut: 1, ..none };
                plan.forced = 30;
            }
            Regime::Parted => {
                plan.ttl = ttl(300 * MS, 10 * SECOND);
                plan.processes = 2 + sim.choose(2) as usize;
                plan.faults = Faults { edge: 50, ..quiet };
                plan.node_faults = NodeFaults { most: 6, part: 6, cut: 1, ..none };
                plan.overstay = 200;
            }
            Regime::Rewinding => {
                plan.node_faults = NodeFaults { most: 4, rewind: 5, cut: 1, ..none };
            }
            Regime::Evicting => {
                plan.faults.edge = 20;
                plan.node_faults = NodeFaults { most: 4, delete: 2, evict: 3, ..none };
            }
            Regime::Stepping => {
                plan.ttl = ttl(300 * MS, 20 * SECOND);
                plan.step = sim.between(10 * MS, 600 * SECOND);
                plan.node_faults = NodeFaults { most: 4, step: 1, ..none };
            }
            Regime::Brink => {
                plan.ttl = ttl(300 * MS, 5 * SECOND);
                plan.processes = 2 + sim.choose(2) as usize;
                plan.faults = Faults { edge: 100, limit: 60, ..quiet };
                (plan.unrenewed, plan.overstay, plan.brink) = (300, 400, 500);
            }
            Regime::Unscripted => plan.faults.again = 200,
            Regime::Rush | Regime::Relapsing | Regime::Fleeting | Regime::Flapping => {
                (plan.processes, plan.tasks, plan.rounds) = (1 + sim.choose(2) as usize, 7, 5);
                let near = MS + TrueTime::from(sim.choose(4_000)) * MS / 1_000;
                // There more is to happen than a new connection takes.
                let near = if regime == Regime::Flapping { near / 20 } else { near };
                plan.faults.latency = (near / 8, 2 * near);
                plan.brief = Some(8 * near);
                plan.overstay = 0;
                if regime == Regime::Relapsing {
                    plan.node_faults = NodeFaults { most: 8, evenly: true, rewind: 1, ..none };
                    if sim.chance(500) {
                        plan.kinds = [LockKind::Reentrant; 2];
                    }
                }
                if regime == Regime::Flapping {
                    plan.node_faults =
                        NodeFaults { most: 12, evenly: true, cut: 3, delay_messages: 1, ..none };
                }
                if regime == Regime::Fleeting {
                    plan.kinds = [LockKind::Fair, LockKind::Semaphore(2)];
                    plan.limited = (600, SHORTEST + near);
                    (plan.overstay, plan.last_moment) = (400, 500);
                }
            }
            Regime::Outage => {
                plan.ttl = ttl(SECOND, 10 * SECOND);
                plan.patience = ttl(MS, 3 * SECOND);
                plan.node_faults = NodeFaults { most: 3, evenly: true, stall: 1, ..none };
            }
            Regime::OnTheDot => {
                plan.ttl = ttl(300 * MS, 5 * SECOND);
                plan.faults = Faults { edge: 100, limit: 100, exact: 500, ..quiet };
                (plan.unrenewed, plan.overstay, plan.brink) = (300, 400, 500);
            }
            Regime::Hiccup => {
                plan.ttl = ttl(SECOND, 5 * SECOND);
                plan.faults = Faults { lose_request: 60, lose_reply: 60, once: true, ..quiet };
                plan.overstay = 500;
            }
            Regime::LateMessages => {
                (plan.processes, plan.tasks, plan.names, plan.both) = (2, 5, 1, 0);
                plan.node_faults = NodeFaults { most: 8, delay_messages: 3, cut: 2, ..none };
                plan.faults = Faults { repeat_wake: 200, messages_late: 2 * SECOND, ..quiet };
                plan.faults.late_wake = (400, 2 * SECOND);
                let is_told = sim.chance(500);
                if !is_told {
                    (plan.faults.lose_wake, plan.faults.lose_subscription) = (400, 200);
                }
                if is_told || sim.chance(500) {
                    // Of a kind without places, which are asked about every so often, and no client
                    // goes on to say more.
                    plan.kinds[0] = if sim.chance(700) { LockKind::Mutex } else { LockKind::Reentrant };
                    plan.ttl = ttl(60 * SECOND, 120 * SECOND);
                    plan.rounds = 1;
                }
            }
        }
        if plan.limited.1 == 0 {
            plan.limited.1 = 2 * (plan.ttl.as_nanos() as TrueTime).max(SHORTEST);
        }
        if !regime.is_calm() {
            plan.heals_at = match (regime, plan.brief) {
                (_, Some(brief)) => brief * TrueTime::from(2 + sim.choose(60)),
                (Regime::Outage, _) => 3 * plan.lease() + SECOND,
                _ => sim.between(200 * MS, 3 * plan.lease() + SECOND),
            };
            // A lease that was set by a clock which is set back since ends so much later.
            plan.strict_from = plan.heals_at + plan.step + plan.lease() + RECOVERY;
            if regime == Regime::LateMessages {
                // A client that missed something was told so, or will have tried again to listen;
                // else it asks when it has slept enough.
                let known = if plan.faults.lose_wake == 0 { lease::WAIT_MAX } else { SLEEP.min(plan.ttl) };
                plan.strict_from = plan.heals_at + known.as_nanos() as TrueTime + RECOVERY;
            }
        }
        plan
    }
}
