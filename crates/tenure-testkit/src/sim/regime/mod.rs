//! Which faults a schedule has. Each regime has its own faults only, because a schedule in which everything
//! fails at once never gets far enough to show subtle bugs.
//!
//! | module | what it holds |
//! |---|---|
//! | `kind` | the kinds of locks that a schedule uses |
//! | `node_faults` | likelihoods of faults of whole processes, connections and servers |

mod kind;
mod node_faults;

use std::time::Duration;

use tenure::internals::protocol::{LockSpec, QueueSpec, lease};

use super::clock::{MS, SECOND, TrueTime};
use super::executor::Sim;

pub use kind::LockKind;
pub use node_faults::NodeFaults;

/// The kind of faults in a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Regime {
    /// No faults, so everything must happen promptly.
    Quiet,
    /// Requests, replies and messages are lost, connections are cut.
    Lossy,
    /// Replies take so long that most or all of the lease is gone when they arrive.
    Slow,
    /// Processes and the server pause and resume.
    Pausing,
    /// Processes die.
    Killing,
    /// Clocks run at different rates, and renewals fail, so that leases are used to their end.
    Drifting,
    /// Minimum leases.
    Tiny,
    /// All faults together.
    Storm,
    /// The server loses all data now and then, or an operator deletes a key. Exclusion is not guaranteed
    /// then; everything else is.
    Forgetting,
    /// Processes are partitioned for a while, in one direction or both, unnoticed.
    Parted,
    /// The server returns to an earlier state. Exclusion is not guaranteed then; everything else is.
    Rewinding,
    /// A key is evicted: a held lock, or the token counter.
    Evicting,
    /// The server's clock is stepped forward and back.
    Stepping,
    /// Messages arrive as a lease, a request's timeout or a wait ends, or close to it.
    Brink,
    /// The server has no scripts cached, so that requests are overtaken by later ones. No other faults.
    Unscripted,
    /// Messages are lost, late and duplicated, and there are many waiters; requests arrive unless their
    /// connection is cut. A client that relies on messages would wait forever, or for the rest of a lease.
    LateMessages,
    /// Each process loses a single request or reply together with its connection, so a renewed hold must
    /// survive.
    Hiccup,
    /// Many clients hold and wait no longer than a few messages take, and messages overtake each other, so
    /// everything crosses in flight. No other faults.
    Rush,
    /// Like `Rush`, on a server that repeatedly goes back by as little.
    Relapsing,
    /// The server stalls for longer than any client's patience.
    Outage,
    /// Messages arrive at the exact nanosecond at which a lease or a request's timeout ends.
    OnTheDot,
    /// Many clients queue, and hold to the end of a lease as short as messages take. No other faults.
    Fleeting,
    /// Many clients hold and wait as briefly, and connections are cut again and again.
    Flapping,
}

impl Regime {
    /// All regimes. New ones are appended, so that earlier ones keep their index.
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

    /// The regime that a seed selects, in rotation.
    pub fn of(seed: u64) -> Self {
        Self::ALL[(seed % Self::ALL.len() as u64) as usize]
    }

    /// Whether everything must happen promptly.
    pub fn is_calm(self) -> bool {
        matches!(self, Self::Quiet | Self::Unscripted | Self::Rush | Self::Fleeting)
    }

    /// Whether nothing stalls, and requests on an intact connection are answered promptly.
    pub fn is_gentle(self) -> bool {
        self.is_calm() || matches!(self, Self::Lossy | Self::LateMessages | Self::Hiccup)
    }

    /// The regime of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|regime| format!("{regime:?}") == name)
    }
}

/// Faults of the network; probabilities in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Minimum and maximum latency in one direction.
    pub latency: (TrueTime, TrueTime),
    /// Probability of a late message, and its maximum delay.
    pub late: (u32, TrueTime),
    /// Probability that a message arrives at the end of a lease, or close to it.
    pub edge: u32,
    /// Probability that a request or reply arrives at its timeout, or close to it.
    pub limit: u32,
    /// Probability that such a message arrives at the exact moment.
    pub exact: u32,
    /// Probability that a request is lost, with everything after it on its connection.
    pub lose_request: u32,
    /// Probability that a reply is lost, with everything after it on its connection.
    pub lose_reply: u32,
    /// At most one of those losses per process.
    pub once: bool,
    /// Probability that a request is not sent.
    pub refuse: u32,
    /// Probability that a request is sent twice because the server has no script cached, so that later ones
    /// overtake it.
    pub again: u32,
    /// Probability that a request with a short timeout gives the connection up like others.
    pub impatient: u32,
    /// Maximum time to re-establish a message connection.
    pub messages_late: TrueTime,
    /// Probability that a subscription is not answered, besides lost replies.
    pub lose_subscription: u32,
    /// Probability that a wake-up is lost.
    pub lose_wake: u32,
    /// Probability that a wake-up is delivered twice.
    pub repeat_wake: u32,
    /// Probability of a late wake-up, and its maximum delay, by which time the server may have lost all data.
    pub late_wake: (u32, TrueTime),
}

impl Faults {
    /// A network without faults.
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

    /// Adds the faults of a regime.
    fn of(self, regime: Regime) -> Self {
        match regime {
            Regime::Lossy => {
                let (lose_request, lose_reply, refuse, lose_wake, repeat_wake) = (40, 40, 30, 200, 50);
                let late_wake = (50, 3 * SECOND);
                let lossy = Self { lose_request, lose_reply, refuse, edge: 20, ..self };
                Self { lose_wake, repeat_wake, late_wake, ..lossy }
            }
            Regime::Slow => Self { latency: (MS, 60 * MS), late: (300, 1_300 * MS), edge: 100, ..self },
            Regime::Pausing | Regime::Evicting => Self { edge: 20, ..self },
            Regime::Drifting => Self { lose_request: 60, lose_reply: 60, edge: 60, ..self },
            Regime::Tiny => {
                let (latency, late) = ((MS / 10, 10 * MS), (50, 100 * MS));
                Self { latency, late, edge: 100, lose_reply: 10, ..self }
            }
            Regime::Storm => {
                let (latency, late) = ((MS / 10, 20 * MS), (60, 1_200 * MS));
                let (lose_request, lose_reply, refuse, lose_wake, repeat_wake) = (20, 20, 20, 100, 30);
                let late_wake = (100, 3 * SECOND);
                let storm = Self { latency, late, lose_request, lose_reply, refuse, ..self };
                Self { edge: 50, lose_wake, repeat_wake, late_wake, ..storm }
            }
            Regime::Forgetting => Self { late_wake: (300, 2 * SECOND), ..self },
            Regime::Parted => Self { edge: 50, ..self },
            Regime::Brink => Self { edge: 100, limit: 60, ..self },
            Regime::Unscripted => Self { again: 200, ..self },
            Regime::LateMessages => {
                let late_wake = (400, 2 * SECOND);
                Self { repeat_wake: 200, messages_late: 2 * SECOND, late_wake, ..self }
            }
            Regime::Hiccup => Self { lose_request: 60, lose_reply: 60, once: true, ..self },
            Regime::OnTheDot => Self { edge: 100, limit: 100, exact: 500, ..self },
            _ => self,
        }
    }
}

/// The parameters of one schedule.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Its regime.
    pub regime: Regime,
    /// Faults of the network until it heals.
    pub faults: Faults,
    /// Faults of processes and servers until everything heals.
    pub node_faults: NodeFaults,
    /// The lease.
    pub ttl: Duration,
    /// Maximum time that the store keeps a place without a refresh.
    pub place_max: Duration,
    /// How long the store keeps the place of a client that receives messages; 0 if no longer than another.
    pub kept: TrueTime,
    /// Some clients acquire free locks by plain commands.
    pub has_plain_clients: bool,
    /// How long a wait without a limit continues while nothing answers.
    pub patience: Duration,
    /// Maximum time for which clients hold or wait, and by which a server goes back, if that is independent
    /// of leases.
    pub brief: Option<TrueTime>,
    /// Maximum rate error of clocks, in parts per million.
    pub ppm: u32,
    /// Number of processes.
    pub processes: usize,
    /// Maximum number of tasks per process.
    pub tasks: u32,
    /// Number of locks.
    pub names: u32,
    /// Kinds of the locks.
    pub kinds: [LockKind; 2],
    /// Permille of acquisitions of both locks at once.
    pub both: u32,
    /// Maximum number of acquisitions per task.
    pub rounds: u32,
    /// Permille of acquisitions, renewals and releases that are dropped before they end.
    pub cancel: u32,
    /// Permille of acquisitions without automatic renewal.
    pub unrenewed: u32,
    /// Permille of acquisitions with `max_hold`, and its maximum.
    pub limited: (u32, TrueTime),
    /// Permille of holds that last until their lease ends.
    pub overstay: u32,
    /// Permille of waits that end as a lease does.
    pub brink: u32,
    /// Permille of detached holds that are resumed just as their lease ends.
    pub last_moment: u32,
    /// Maximum clock step.
    pub step: TrueTime,
    /// When faults end.
    pub heals_at: TrueTime,
    /// From when on everything must happen promptly.
    pub strict_from: TrueTime,
    /// Maximum time until a waiter notices the end of a lease without a message. On a server, the waiter
    /// knows when it ends.
    pub looks: TrueTime,
    /// Maximum interval at which waiters poll, where the server sends no messages.
    pub polls: TrueTime,
    /// Whether all wall clocks agree within what a quorum member tolerates.
    pub is_near: bool,
    /// Permille of acquisitions that are preceded by a forced release.
    pub forced: u32,
    /// Maximum time by which a store keeps a session-bound hold beyond its lease.
    pub session: TrueTime,
    /// Maximum number of round trips per call.
    pub trips: u32,
    /// Whether the server removes a waiter whose client cannot be notified.
    pub passes: bool,
}

/// Maximum duration of what the code under test does on its own after the last fault: a running attempt, the
/// pause after it, and the next one.
pub const RECOVERY: TrueTime = 3 * SECOND;

/// Upper bound of a round trip without faults.
pub const ROUND_TRIP: Duration = Duration::from_millis(30);

/// Minimum lease, and minimum `max_hold`.
pub const SHORTEST: TrueTime = 50 * MS;

/// Maximum sleep of a waiter that receives no messages.
const SLEEP: Duration = Duration::from_secs(30);

fn ttl(sim: &Sim, low: TrueTime, high: TrueTime) -> Duration {
    Duration::from_nanos(sim.between(low, high) / MS * MS)
}

impl Plan {
    /// The lease in true time, on the slowest clock.
    pub fn lease(&self) -> TrueTime {
        let lease = self.ttl.as_nanos() as TrueTime;
        lease + self.drift() + self.session
    }

    /// Whether the permits of this lock are changed during the schedule: only if the server never loses
    /// state.
    pub fn resizes(&self, index: usize) -> bool {
        let NodeFaults { forget, delete, rewind, evict, step, .. } = self.node_faults;
        self.kinds[index] == LockKind::Semaphore(3) && forget + delete + rewind + evict + step == 0
    }

    /// Maximum difference of two clocks after a lease.
    pub fn drift(&self) -> TrueTime {
        self.ttl.as_nanos() as TrueTime / 1_000 * 2 * TrueTime::from(self.ppm) / 1_000
    }

    /// Draws how long a client holds or waits, or how far a server goes back: at most `most`, unless the
    /// schedule is brief.
    pub fn span(&self, sim: &Sim, most: TrueTime) -> TrueTime {
        match self.brief {
            // Squared, to favour short times, which cross more messages in flight.
            Some(brief) => brief * TrueTime::from(sim.choose(1_000)).pow(2) / 1_000_000,
            None => sim.between(0, most),
        }
    }

    /// Upper bound of a call without faults.
    pub fn trip(&self) -> Duration {
        self.trips
            * match self.brief {
                Some(_) => Duration::from_nanos(3 * self.faults.latency.1),
                None => ROUND_TRIP,
            }
    }

    /// How long a place in a queue is kept, in true time.
    pub fn wait(&self) -> TrueTime {
        lease::wait(self.ttl).min(self.place_max).as_nanos() as TrueTime + self.drift() + self.session
    }

    /// How long a place is kept that is refreshed after a third of that, in true time; 0 if no longer than
    /// [`wait`](Self::wait).
    pub fn kept_by_listening(&self) -> TrueTime {
        if self.passes && self.ttl >= lease::WAIT_MAX { self.kept } else { 0 }
    }

    /// Draws the plan of a schedule in one regime.
    pub fn draw(sim: &Sim, regime: Regime) -> Self {
        let mut plan = Self {
            regime,
            faults: Faults::NONE,
            node_faults: NodeFaults::of(regime),
            ttl: ttl(sim, 2 * SECOND, 20 * SECOND),
            place_max: lease::WAIT_MAX,
            kept: 0,
            has_plain_clients: false,
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
            polls: 0,
            is_near: false,
            forced: 0,
            session: 0,
            trips: 1,
            passes: true,
        };
        if sim.chance(200) {
            (plan.names, plan.both) = (2, 300 * sim.choose(2));
        }
        for kind in plan.kinds.iter_mut().take(plan.names as usize) {
            *kind = LockKind::draw(sim);
        }
        let near = sim.between(MS / 50, 5 * MS);
        let impatient = if regime.is_calm() { 0 } else { 500 };
        plan.faults = Faults { latency: (near, 2 * near), impatient, ..Faults::NONE }.of(regime);
        plan.draw_conditions(sim);
        if plan.limited.1 == 0 {
            plan.limited.1 = 2 * (plan.ttl.as_nanos() as TrueTime).max(SHORTEST);
        }
        if !regime.is_calm() {
            plan.draw_healing(sim);
        }
        plan
    }

    /// Draws the conditions under which the regime's faults matter.
    fn draw_conditions(&mut self, sim: &Sim) {
        match self.regime {
            Regime::Slow => (self.ttl, self.unrenewed) = (ttl(sim, 100 * MS, 3 * SECOND), 300),
            Regime::Pausing => (self.ttl, self.overstay) = (ttl(sim, 300 * MS, 10 * SECOND), 200),
            Regime::Killing => self.processes = 3,
            Regime::Drifting => {
                (self.ttl, self.ppm) = (ttl(sim, 5 * SECOND, 30 * SECOND), 5_000);
                self.processes = 2 + sim.choose(2) as usize;
                (self.unrenewed, self.overstay) = (500, 600);
            }
            Regime::Tiny => (self.ttl, self.overstay) = (ttl(sim, 50 * MS, 150 * MS), 200),
            Regime::Storm => {
                (self.ttl, self.ppm) = (ttl(sim, 100 * MS, 15 * SECOND), 5_000);
                (self.unrenewed, self.overstay) = (250, 250);
            }
            Regime::Forgetting => self.forced = 30,
            Regime::Parted => {
                self.ttl = ttl(sim, 300 * MS, 10 * SECOND);
                self.processes = 2 + sim.choose(2) as usize;
                self.overstay = 200;
            }
            Regime::Stepping => {
                self.ttl = ttl(sim, 300 * MS, 20 * SECOND);
                self.step = sim.between(10 * MS, 600 * SECOND);
            }
            Regime::Brink => {
                self.ttl = ttl(sim, 300 * MS, 5 * SECOND);
                self.processes = 2 + sim.choose(2) as usize;
                (self.unrenewed, self.overstay, self.brink) = (300, 400, 500);
            }
            Regime::Rush | Regime::Relapsing | Regime::Fleeting | Regime::Flapping => self.draw_brief(sim),
            Regime::Outage => {
                self.ttl = ttl(sim, SECOND, 10 * SECOND);
                self.patience = ttl(sim, MS, 3 * SECOND);
            }
            Regime::OnTheDot => {
                self.ttl = ttl(sim, 300 * MS, 5 * SECOND);
                (self.unrenewed, self.overstay, self.brink) = (300, 400, 500);
            }
            Regime::Hiccup => (self.ttl, self.overstay) = (ttl(sim, SECOND, 5 * SECOND), 500),
            Regime::LateMessages => self.draw_late_messages(sim),
            _ => {}
        }
    }

    /// Clients hold and wait no longer than a few messages take.
    fn draw_brief(&mut self, sim: &Sim) {
        (self.processes, self.tasks, self.rounds) = (1 + sim.choose(2) as usize, 7, 5);
        let near = MS + TrueTime::from(sim.choose(4_000)) * MS / 1_000;
        // There must be enough activity between two connections.
        let near = if self.regime == Regime::Flapping { near / 20 } else { near };
        self.faults.latency = (near / 8, 2 * near);
        self.brief = Some(8 * near);
        self.overstay = 0;
        if self.regime == Regime::Relapsing && sim.chance(500) {
            self.kinds = [LockKind::Reentrant; 2];
        }
        if self.regime == Regime::Fleeting {
            self.kinds = [LockKind::Fair, LockKind::Semaphore(2)];
            self.limited = (600, SHORTEST + near);
            (self.overstay, self.last_moment) = (400, 500);
        }
    }

    /// Many clients wait for messages.
    fn draw_late_messages(&mut self, sim: &Sim) {
        (self.processes, self.tasks, self.names, self.both) = (2, 5, 1, 0);
        let is_told = sim.chance(500);
        if !is_told {
            (self.faults.lose_wake, self.faults.lose_subscription) = (400, 200);
        }
        if is_told || sim.chance(500) {
            // A kind without places, which would be polled periodically, and without a next round, which
            // would reveal more.
            self.kinds[0] = if sim.chance(700) { LockKind::Mutex } else { LockKind::Reentrant };
            (self.ttl, self.rounds) = (ttl(sim, 60 * SECOND, 120 * SECOND), 1);
        }
    }

    /// Draws when faults end, and from when on everything must happen promptly.
    fn draw_healing(&mut self, sim: &Sim) {
        self.heals_at = match (self.regime, self.brief) {
            (_, Some(brief)) => brief * TrueTime::from(2 + sim.choose(60)),
            (Regime::Outage, _) => 3 * self.lease() + SECOND,
            _ => sim.between(200 * MS, 3 * self.lease() + SECOND),
        };
        // A lease set before its clock was stepped back ends that much later.
        self.strict_from = self.heals_at + self.step + self.lease() + RECOVERY;
        if self.regime == Regime::LateMessages {
            // A client that missed a message was notified, or will have resubscribed; otherwise it polls after
            // its maximum sleep.
            let known = if self.faults.lose_wake == 0 { lease::WAIT_MAX } else { SLEEP.min(self.ttl) };
            self.strict_from = self.heals_at + known.as_nanos() as TrueTime + RECOVERY;
        }
    }
}
