use super::*;

/// Weight of a writer.
const WRITER: u32 = 1 << 20;
const PERMITS: u32 = 3;
const MUTEX: Lock = Lock { sort: Sort::Mutex, number: 0, capacity: 1 };
const SEMAPHORE: Lock = Lock { sort: Sort::Semaphore, number: 0, capacity: PERMITS };
const RWLOCK: Lock = Lock { sort: Sort::Rwlock, number: 1, capacity: WRITER };
const LIMIT: u64 = 100;

/// The verdict on these lines, each as (time, process, event); all processes end after the last one.
fn judged(lines: &[(u64, u32, What)]) -> Judge {
    let mut judge = Judge::new(0, LIMIT);
    for (time, worker, what) in lines {
        let line = Line { time: *time, task: 0, what: what.clone() };
        judge.hear(*time, *worker, Event::Said(line));
    }
    let end = lines.last().map_or(0, |line| line.0);
    (0..10).for_each(|worker| judge.hear(end, worker, Event::Gone));
    judge.finish();
    judge
}

fn asks(lock: Lock) -> What {
    What::Asks(lock)
}

fn holds(token: u64, weight: u32) -> What {
    What::Holds { token, weight, deadline: 1_000 }
}

fn ends(until: u64) -> What {
    What::Ends { until, how: End::Released }
}

#[track_caller]
fn is_fine(judge: &Judge, checked: u64) {
    assert_eq!((judge.violated(), judge.checked()), (0, checked), "{:?}", judge.evidence);
}

#[track_caller]
fn is_wrong(judge: &Judge, words: &[&str]) {
    let [evidence] = &judge.evidence[..] else { panic!("{:?}", judge.evidence) };
    assert!(words.iter().all(|word| evidence.contains(word)), "{words:?}: {evidence}");
}

#[test]
fn turns_one_after_the_other_are_fine() {
    let judge = judged(&[
        (1, 1, asks(MUTEX)),
        (2, 2, asks(MUTEX)),
        (3, 1, holds(7, 1)),
        (9, 1, ends(8)),
        (9, 2, holds(8, 1)),
        (12, 2, ends(12)),
    ]);
    is_fine(&judge, 2);
    assert_eq!(judge.ends[&End::Released], 2);
}

#[test]
fn two_who_held_a_mutex_at_one_moment_are_found_and_both_are_told() {
    let judge = judged(&[
        (1, 1, asks(MUTEX)),
        (2, 2, asks(MUTEX)),
        (3, 1, holds(7, 1)),
        (5, 2, holds(8, 1)),
        (9, 1, ends(6)),
        (12, 2, ends(12)),
    ]);
    is_wrong(&judge, &["exclusion", "mutex-0", "process 1, task 0", "process 2, task 0", "token 8"]);
}

#[test]
fn who_lost_it_in_time_met_nobody() {
    // The end is reported late, but was early.
    let judge = judged(&[
        (1, 1, asks(MUTEX)),
        (2, 2, asks(MUTEX)),
        (3, 1, holds(7, 1)),
        (50, 2, holds(8, 1)),
        (60, 2, ends(60)),
        (90, 1, What::Ends { until: 40, how: End::Lost }),
    ]);
    is_fine(&judge, 2);
}

#[test]
fn who_lost_it_too_late_is_found_after_the_other_is_gone() {
    let judge = judged(&[
        (1, 1, asks(MUTEX)),
        (2, 2, asks(MUTEX)),
        (3, 1, holds(7, 1)),
        (50, 2, holds(8, 1)),
        (60, 2, ends(60)),
        (90, 1, What::Ends { until: 51, how: End::Lost }),
    ]);
    is_wrong(&judge, &["exclusion", "lost"]);
}

#[test]
fn a_killed_process_held_until_it_was_killed_or_its_lease_was_over() {
    let killed = |deadline, granted| {
        let mut judge = Judge::new(0, LIMIT);
        let said = |time, what| Event::Said(Line { time, task: 0, what });
        judge.hear(1, 1, said(1, asks(MUTEX)));
        judge.hear(2, 1, said(2, What::Holds { token: 1, weight: 1, deadline }));
        judge.hear(3, 2, said(3, asks(MUTEX)));
        judge.hear(granted, 2, said(granted, holds(2, 1)));
        judge.hear(60, 1, Event::Gone);
        judge.hear(70, 2, said(70, ends(70)));
        judge.finish();
        judge
    };
    is_fine(&killed(20, 30), 2);
    is_wrong(&killed(40, 30), &["exclusion", "killed"]);
    is_wrong(&killed(900, 59), &["exclusion", "killed"]);
}

#[test]
fn permits_are_counted() {
    let three = |last| {
        judged(&[
            (1, 1, asks(SEMAPHORE)),
            (1, 2, asks(SEMAPHORE)),
            (2, 1, holds(1, 1)),
            (3, 2, holds(2, last)),
            (9, 1, ends(9)),
            (9, 2, ends(9)),
        ])
    };
    is_fine(&three(PERMITS - 1), 2);
    is_wrong(&three(PERMITS), &["exclusion"]);
}

#[test]
fn readers_are_together_and_writers_are_alone() {
    let with = |weight| {
        judged(&[
            (1, 1, asks(RWLOCK)),
            (1, 2, asks(RWLOCK)),
            (2, 1, holds(2, 1)),
            (3, 2, holds(1, weight)),
            (9, 2, ends(9)),
            (9, 1, ends(9)),
        ])
    };
    is_fine(&with(1), 2); // readers may be reported in any order
    is_wrong(&with(WRITER), &["exclusion", "rwlock-1"]);
}

#[test]
fn a_token_that_does_not_grow_is_found() {
    let tokens = |lock, first, second| {
        judged(&[
            (1, 1, asks(lock)),
            (2, 1, first),
            (3, 1, ends(3)),
            (4, 2, asks(lock)),
            (5, 2, second),
            (6, 2, ends(6)),
        ])
    };
    is_fine(&tokens(MUTEX, holds(7, 1), holds(8, 1)), 2);
    is_wrong(&tokens(MUTEX, holds(7, 1), holds(7, 1)), &["tokens", "7 after 7"]);
    is_wrong(&tokens(RWLOCK, holds(7, WRITER), holds(6, 1)), &["tokens", "6 after 7"]);
    is_wrong(&tokens(RWLOCK, holds(7, 1), holds(6, WRITER)), &["tokens", "6 after 7"]);
}

#[test]
fn who_was_let_in_before_another_and_told_after_it_is_found() {
    let judge = judged(&[
        (1, 1, asks(MUTEX)),
        (2, 2, asks(MUTEX)),
        (3, 2, holds(8, 1)),
        (4, 2, ends(4)),
        (5, 1, holds(7, 1)),
        (6, 1, ends(6)),
    ]);
    is_wrong(&judge, &["exclusion", "told late"]);
}

#[test]
fn tokens_of_several_locks_are_not_compared() {
    let other = Lock { number: 1, ..MUTEX };
    let judge = judged(&[
        (1, 1, asks(MUTEX)),
        (2, 1, holds(7, 1)),
        (3, 1, ends(3)),
        (4, 2, asks(other)),
        (5, 2, holds(6, 1)),
        (6, 2, ends(6)),
    ]);
    is_fine(&judge, 2);
}

#[test]
fn a_lock_that_nobody_holds_and_somebody_waits_for_is_a_stall() {
    let judge = judged(&[(1, 1, asks(MUTEX)), (1 + LIMIT, 1, holds(1, 1)), (150, 1, ends(150))]);
    is_fine(&judge, 1);
    assert_eq!(judge.stall, Some(Stall { lock: MUTEX, length: LIMIT, time: 1 + LIMIT }));
    let judge = judged(&[(1, 1, asks(MUTEX)), (2 + LIMIT, 1, holds(1, 1)), (150, 1, ends(150))]);
    is_wrong(&judge, &["progress", "mutex-0"]);
}

#[test]
fn who_gives_up_and_asks_again_ends_no_stall_and_nobody_waiting_is_none() {
    let waits = |pause: u64| {
        judged(&[
            (1, 1, asks(MUTEX)),
            (61, 1, What::Leaves),
            (61 + pause, 1, asks(MUTEX)),
            (121 + pause, 1, holds(1, 1)),
            (122 + pause, 1, ends(122 + pause)),
        ])
    };
    assert_eq!(waits(1_000).stall.map(|stall| stall.length), Some(120));
    is_wrong(&waits(1_000), &["progress"]);
}

#[test]
fn a_lock_that_is_held_is_no_stall_until_the_lease_of_a_silent_holder_is_over() {
    let silent = |deadline| {
        judged(&[
            (1, 1, asks(MUTEX)),
            (2, 1, What::Holds { token: 1, weight: 1, deadline }),
            (3, 2, asks(MUTEX)),
            (500, 1, What::Ends { until: 4, how: End::Lost }),
            (500, 2, holds(2, 1)),
            (501, 2, ends(501)),
        ])
    };
    is_fine(&silent(450), 2);
    is_wrong(&silent(300), &["progress"]);
}

#[test]
fn what_a_worker_found_wrong_is_a_violation() {
    let judge = judged(&[(5, 1, What::Wrong("another token on re-entry".into()))]);
    is_wrong(&judge, &["another token", "process 1"]);
}

#[test]
fn a_history_that_makes_no_sense_is_no_verdict() {
    for what in [holds(1, 1), ends(1), What::Keeps { deadline: 3 }] {
        is_wrong(&judged(&[(1, 1, what)]), &["makes no sense"]);
    }
}

#[test]
fn failures_are_counted_and_wait_no_more() {
    let judge = judged(&[
        (1, 1, asks(MUTEX)),
        (2, 1, What::Fails("cannot ask".into())),
        (900, 2, asks(MUTEX)),
        (901, 2, holds(1, 1)),
        (902, 2, ends(902)),
    ]);
    is_fine(&judge, 1);
    assert_eq!((judge.failed, judge.failure.as_deref()), (1, Some("cannot ask")));
}
