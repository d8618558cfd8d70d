//! Four processes of 25 tasks take 25,000 turns, and now and then one of the processes is killed, whatever it holds or waits for.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::thread;
use std::time::Duration;

use tenure_testkit::servers::Server;

use crate::log::{self, What, now};
use crate::member::{Member, TASKS, TTL, capacity};

const PROCESSES: usize = 4;
const TURNS: usize = 25_000;
const KILLS: usize = 6;
/// Nobody holds for so long only if there is a reason. A wake-up that is lost costs more: the rest of a lease, or, where places are
/// refreshed, a third of one.
const PAUSE: Duration = Duration::from_millis(350);
/// A machine that lets a process sleep for so much longer than it asked for is one.
const STALL: Duration = Duration::from_millis(100);

/// Runs a crowd at one kind of lock.
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
    let begun = now();
    let mut reasons = Vec::new();
    for kill in 1..=KILLS + 1 {
        while turns(&members) < TURNS * kill / (KILLS + 1) {
            let asleep = now();
            thread::sleep(Duration::from_millis(5));
            if since(asleep) > STALL {
                reasons.push((asleep, now()));
            }
            assert!(since(begun) < Duration::from_secs(120), "{kind}: only {} turns", turns(&members));
        }
        if kill <= KILLS {
            let alive: Vec<usize> = (0..members.len()).filter(|at| members[*at].killed.is_none()).collect();
            members[alive[random(alive.len())]].kill();
            // A holder leaves its lease behind, and those who wait their places, which others meet one after the other.
            reasons.push((now(), now() + 2 * TTL.as_nanos() as u64));
            start(&mut members);
        }
    }
    File::create(&stop).expect("a file");
    for member in members.iter_mut().filter(|member| member.killed.is_none()) {
        member.ends_within(Duration::from_secs(20));
    }
    let took = since(begun);
    judge(kind, &members, &reasons);
    left_behind(kind, &server);
    println!("{kind}: {} turns in {:.1} s", turns(&members), took.as_secs_f64());
}

fn since(time: u64) -> Duration {
    Duration::from_nanos(now() - time)
}

fn random(below: usize) -> usize {
    (RandomState::new().hash_one(0) % below as u64) as usize
}

/// Two lines each.
fn turns(members: &[Member]) -> usize {
    members.iter().map(|member| log::count(&member.log)).sum::<usize>() / 2
}

/// The beginning or the end of a turn; ends sort before beginnings of the same moment.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    time: u64,
    begins: bool,
    weight: u32,
    fence: u64,
}

/// Nobody overlaps, tokens grow, and nobody waits without a reason.
fn judge(kind: &str, members: &[Member], reasons: &[(u64, u64)]) {
    let mut events: Vec<Event> = members.iter().flat_map(|member| events_of(kind, member)).collect();
    events.sort();
    let capacity = capacity(kind);
    let (mut used, mut last, mut free_since, mut longest) = (0, 0, None, 0);
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
        if let Some(since) = free_since.take() {
            let pause = time - since;
            longest = longest.max(pause);
            let has_reason = reasons.iter().any(|(from, to)| since <= *to && *from <= time);
            assert!(
                has_reason || pause < PAUSE.as_nanos() as u64,
                "{kind}: nobody from {since} to {time}, and no reason: {reasons:?}"
            );
        }
    }
    let longest = Duration::from_nanos(longest);
    println!("{kind}: longest pause {longest:?}");
    // A killed holder costs its lease, a dead head of the queue its place; and as much again for a busy machine.
    assert!(longest < 2 * TTL + Duration::from_secs(1), "{kind}: nobody for {longest:?}");
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
            // It ended at some time since the line before, if there was one.
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
    assert!(is_young || turns.iter().all(|turns| *turns > 0), "{kind}: somebody starved: {turns:?}");
    events
}

/// Only counters are left when the longest lease is over, and they end by themselves.
fn left_behind(kind: &str, server: &Server) {
    let until = now() + (TTL + Duration::from_secs(1)).as_nanos() as u64;
    loop {
        let keys = server.command(&["KEYS", "*"]);
        let keys: Vec<&str> = keys.items().iter().map(|key| key.text()).collect();
        let lock = keys.iter().find(|key| !key.starts_with("tenure:fence:"));
        match lock {
            None => {
                assert!(!keys.is_empty(), "{kind}: no counter: this showed nothing");
                for key in keys {
                    assert!(server.command(&["PTTL", key]).int() > 0, "{kind}: {key} has no end");
                }
                return;
            }
            Some(lock) => assert!(now() < until, "{kind}: {lock} is left behind"),
        }
        thread::sleep(Duration::from_millis(50));
    }
}
