//! Four processes of 25 tasks take turns, and now and then one of them is killed: alternately one that holds
//! and one that waits.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::thread;
use std::time::Duration;

use tenure::{Holder, Locks, Status, block_on};
use tenure_testkit::servers::Server;
use tenure_testkit::setting;

use crate::log::{self, What, now};
use crate::member::{Member, TASKS, TTL, capacity};

const PROCESSES: usize = 4;
/// `TENURE_TURNS` overrides it.
const TURNS: usize = 15_000;
const KILLS: usize = 6;
/// The longest time without a holder that needs no reason. A lost wake-up costs more: the rest of a lease, or
/// a third of one where places are refreshed.
const PAUSE: Duration = Duration::from_millis(350);
/// A sleep that takes this much longer is a stall of the machine, which is such a reason.
const STALL: Duration = Duration::from_millis(100);

/// Pauses that one kill may cause: for the lease of a killed holder, and for places that are found later.
const STALLS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    /// A process with a task that holds.
    Holder,
    /// A process whose tasks wait, and none holds.
    Waiter,
}

/// A reason for a pause.
#[derive(Debug)]
struct Reason {
    from: u64,
    to: u64,
    /// `None` for a stall of the machine.
    killed: Option<Victim>,
}

pub(crate) fn crowd(kind: &str) {
    let server = Server::start();
    let dir = tempfile::tempdir().expect("a directory");
    let stop = dir.path().join("stop");
    let mut members: Vec<Member> = Vec::new();
    let start = |members: &mut Vec<Member>| {
        let log = dir.path().join(format!("log-{}", members.len()));
        let stop = stop.to_str().expect("a path that is text");
        members.push(Member::start(log, &["turns", kind, &server.url(), stop]));
    };
    (0..PROCESSES).for_each(|_| start(&mut members));
    let locks = Locks::open(&server.url()).expect("a store");
    let begun = now();
    let mut reasons = Vec::new();
    let all = setting("TENURE_TURNS").map_or(TURNS, |number| number as usize);
    for kill in 1..=KILLS + 1 {
        while turns(&members) < all * kill / (KILLS + 1) {
            let asleep = now();
            thread::sleep(Duration::from_millis(5));
            if since(asleep) > STALL {
                reasons.push(Reason { from: asleep, to: now(), killed: None });
            }
            assert!(since(begun) < Duration::from_secs(300), "{kind}: only {} turns", turns(&members));
        }
        if kill <= KILLS {
            let victim = [Victim::Waiter, Victim::Holder][kill % 2];
            let from = now();
            strike(kind, victim, &locks, &mut members);
            if since(from) > STALL {
                reasons.push(Reason { from, to: now(), killed: None }); // stopped for the strike
            }
            // It leaves its lease or its places behind, which others find one after the other.
            let to = now() + 2 * TTL.as_nanos() as u64;
            reasons.push(Reason { from: now(), to, killed: Some(victim) });
            start(&mut members);
        }
    }
    File::create(&stop).expect("a file");
    for member in members.iter_mut().filter(|member| member.killed.is_none()) {
        member.ends_within(Duration::from_secs(20));
    }
    let took = since(begun);
    reasons.sort_by_key(|reason| reason.killed.is_none());
    judge(kind, &members, &reasons);
    left_behind(kind, &server);
    println!("{kind}: {} turns in {:.1} s", turns(&members), took.as_secs_f64());
}

/// Stops processes until the store shows one in the intended state, and kills it.
fn strike(kind: &str, victim: Victim, locks: &Locks, members: &mut [Member]) {
    let until = now() + Duration::from_secs(30).as_nanos() as u64;
    loop {
        assert!(now() < until, "{kind}: no client is found who is a {victim:?}");
        let status = block_on(locks.inspect("crowd")).expect("an answer");
        // A new process may not wait yet.
        let is_meant = |member: &Member| {
            member.killed.is_none()
                && log::count(&member.log) > 0
                && is(victim, kind, member, status.as_ref())
        };
        let meant: Vec<usize> = (0..members.len()).filter(|at| is_meant(&members[*at])).collect();
        if meant.is_empty() {
            continue;
        }
        let member = &mut members[meant[random(meant.len())]];
        member.stop();
        // By the second answer, everything it had sent has been executed.
        let still = [(); 2].map(|()| block_on(locks.inspect("crowd")).expect("an answer"));
        if still.iter().all(|status| is(victim, kind, member, status.as_ref())) {
            return member.kill();
        }
        member.cont();
    }
}

/// Whether a process is in the intended state. One that does not hold waits, which the queue shows where
/// there is one.
fn is(victim: Victim, kind: &str, member: &Member, status: Option<&Status>) -> bool {
    let is_its = |holder: &Holder| holder.owner.as_ref().is_some_and(|owner| owner.pid() == member.pid());
    let holds = status.is_some_and(|status| status.holders.iter().any(is_its));
    let has_place = status.is_some_and(|status| status.waiters.iter().any(is_its));
    match victim {
        Victim::Holder => holds,
        Victim::Waiter => !holds && (has_place || ["mutex", "reentrant"].contains(&kind)),
    }
}

fn since(time: u64) -> Duration {
    Duration::from_nanos(now() - time)
}

fn random(below: usize) -> usize {
    (RandomState::new().hash_one(0) % below as u64) as usize
}

/// Two lines per turn.
fn turns(members: &[Member]) -> usize {
    members.iter().map(|member| log::count(&member.log)).sum::<usize>() / 2
}

/// The beginning or end of a turn; at the same time, ends sort first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    time: u64,
    begins: bool,
    weight: u32,
    fence: u64,
}

/// Checks that no turns overlap, tokens increase, and pauses have reasons.
fn judge(kind: &str, members: &[Member], reasons: &[Reason]) {
    let mut events: Vec<Event> = members.iter().flat_map(|member| events_of(kind, member)).collect();
    events.sort();
    let capacity = capacity(kind);
    let (mut used, mut last, mut free_since, mut pauses) = (0, 0, None, Vec::new());
    for Event { time, begins, weight, fence } in events {
        if !begins {
            used -= weight;
            free_since = (used == 0).then_some(time);
            continue;
        }
        used += weight;
        assert!(used <= capacity, "{kind}: {used} of {capacity} at {time}");
        if weight == capacity {
            assert!(fence > last, "{kind}: token {fence} after {last}");
            last = fence;
        }
        pauses.extend(free_since.take().map(|since| (since, time)));
    }
    judge_pauses(kind, &pauses, reasons);
}

/// Each long pause must have its own reason, and a reason only a few pauses.
fn judge_pauses(kind: &str, pauses: &[(u64, u64)], reasons: &[Reason]) {
    let mut excused = vec![0; reasons.len()];
    let is_long = |(since, time): &&(u64, u64)| time - since >= PAUSE.as_nanos() as u64;
    for (since, time) in pauses.iter().filter(is_long) {
        let has_room = |(at, reason): &(usize, &Reason)| {
            let touches = *since <= reason.to && reason.from <= *time;
            touches && (reason.killed.is_none() || excused[*at] < STALLS)
        };
        let reason = reasons.iter().enumerate().find(has_room).map(|(at, _)| at);
        let at = reason.unwrap_or_else(|| {
            panic!("{kind}: no client from {since} to {time}, and no reason: {reasons:?}")
        });
        excused[at] += 1;
    }
    let of = |killed: Option<Victim>| -> usize {
        let excused = excused.iter().zip(reasons).filter(|(_, reason)| reason.killed == killed);
        excused.map(|(count, _)| count).sum()
    };
    let [holders, waiters, machine] = [Some(Victim::Holder), Some(Victim::Waiter), None].map(of);
    let longest =
        pauses.iter().map(|(since, time)| time - since).max().expect("a client was between two turns");
    let longest = Duration::from_nanos(longest);
    println!(
        "{kind}: {} pauses, the longest {longest:?}; long ones after killed holders {holders}, after killed waiters {waiters}, by the machine {machine}",
        pauses.len()
    );
    // A killed holder costs its lease, a dead head of the queue its place; the rest is tolerance for a busy
    // machine.
    assert!(longest < 2 * TTL + Duration::from_secs(1), "{kind}: no client for {longest:?}");
    // No other client can hold what the killed process holds, so it was the holder.
    assert!(
        capacity(kind) > 1 || longest > TTL / 2,
        "{kind}: no holder was killed, the longest pause is {longest:?}"
    );
    assert!(
        100 * excused.iter().sum::<usize>() < pauses.len(),
        "{kind}: more is excused than judged: {excused:?}"
    );
}

fn events_of(kind: &str, member: &Member) -> Vec<Event> {
    let lines = log::read(&member.log);
    let mut events = Vec::with_capacity(lines.len());
    let mut inside = [None; TASKS];
    let mut turns = [0; TASKS];
    for line in &lines {
        let (weight, fence) = (line.weight, line.fence);
        match line.what {
            What::Held => {
                events.push(Event { time: line.time, begins: true, weight, fence });
                inside[line.task] = Some(*line);
                turns[line.task] += 1;
            }
            What::Released => {
                events.push(Event { time: line.time, begins: false, weight, fence });
                inside[line.task] = None;
            }
            // It ended at some time since the previous line, if there is one.
            What::Lost => {
                if let Some(held) = inside[line.task].take() {
                    events.push(Event { time: held.time + 1, begins: false, weight, fence });
                }
            }
        }
    }
    for held in inside.into_iter().flatten() {
        let killed = member.killed;
        let killed = killed.unwrap_or_else(|| panic!("{kind}: a survivor did not say when its turn ended"));
        // The signal may take a while.
        let time = killed.max(held.time + 1);
        events.push(Event { time, begins: false, weight: held.weight, fence: held.fence });
    }
    let is_young = lines.len() < 2 * TASKS * TASKS;
    assert!(is_young || turns.iter().all(|turns| *turns > 0), "{kind}: a client starved: {turns:?}");
    events
}

/// After the longest lease, only the token counter is left.
fn left_behind(kind: &str, server: &Server) {
    let until = now() + (TTL + Duration::from_secs(1)).as_nanos() as u64;
    loop {
        let keys = server.command(&["KEYS", "*"]);
        let keys: Vec<&str> = keys.items().iter().map(|key| key.text()).collect();
        let lock = keys.iter().find(|key| !key.starts_with("tenure:fence"));
        match lock {
            None => return assert_eq!(keys, ["tenure:fence"], "{kind}: no counter: this showed nothing"),
            Some(lock) => assert!(now() < until, "{kind}: {lock} is left behind"),
        }
        thread::sleep(Duration::from_millis(50));
    }
}
