//! Permits.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;

use tenure::Share;

use super::Fixture;

/// A counter would show an excess. Callers request one to three of five permits.
pub async fn permits_never_add_up_to_more_than_there_are(fixture: &Fixture) {
    let used = AtomicU32::new(0);
    let most = AtomicU32::new(0);
    let clients: Vec<_> = (0..3).map(|_| fixture.client()).collect();
    let callers = (0..45_u32).map(|number| {
        let semaphore = clients[number as usize % 3].semaphore("x", 5).expect("a name");
        let (used, most, permits) = (&used, &most, 1 + number % 3);
        async move {
            let guard = semaphore.acquire_many(permits).await.expect("a grant");
            let now = used.fetch_add(permits, Ordering::SeqCst) + permits;
            most.fetch_max(now, Ordering::SeqCst);
            fixture.sleep(Duration::from_millis(2)).await;
            used.fetch_sub(permits, Ordering::SeqCst);
            guard.release().await.expect("a release");
        }
    });
    fixture.within(Duration::from_secs(60), join_all(callers)).await;
    let most = most.into_inner();
    assert!((3..=5).contains(&most), "{most} of 5");
}

/// By callers that request few.
pub async fn who_asks_for_many_is_not_overtaken(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let (a, b) = (ours.semaphore("x", 3).expect("a name"), theirs.semaphore("x", 3).expect("a name"));
    let two = a.acquire_many(2).await.expect("a free lock");
    let mut three = pin!(b.acquire_many(3));
    fixture.until_waiting(&ours, 1, &mut three).await;
    assert!(
        a.try_acquire().await.expect("an answer").is_none(),
        "one is left, and three were asked for before"
    );
    let mut one = pin!(a.acquire());
    fixture.until_waiting(&ours, 2, &mut one).await;
    two.release().await.expect("a release");
    let three = fixture.within(fixture.ttl, three).await.expect("a grant");
    assert!(fixture.unless_late(fixture.ttl / 4, &mut one).await.is_none());
    three.release().await.expect("a release");
    drop(fixture.within(fixture.ttl, one).await.expect("a grant"));
}

/// Until no client holds any permit.
pub async fn another_number_is_a_mismatch_that_says_which_is_in_force(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let guard = ours.semaphore("x", 5).expect("a name").acquire().await.expect("a free lock");
    let other = theirs.semaphore("x", 4).expect("a name");
    let error = other.acquire().await.expect_err("another number");
    assert!(
        error.is_mismatch() && error.to_string().contains("of 5") && error.to_string().contains("of 4"),
        "{error}"
    );
    let status = theirs.inspect("x").await.expect("an answer").expect("a holder");
    assert_eq!((status.permits, status.holders[0].share), (Some(5), Share::Permits(1)));
    guard.release().await.expect("a release");
    drop(other.acquire_many(4).await.expect("a free lock"));
}

/// By clients that were opened with another number: they adopt it, and it stays in force after the last hold
/// ends.
pub async fn a_number_that_is_set_is_in_force_for_all(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let five = ours.semaphore("x", 5).expect("a name");
    let held = five.acquire_many(4).await.expect("a free lock");
    let three = theirs.semaphore("x", 3).expect("a name");
    assert!(three.try_acquire().await.expect_err("another number").is_mismatch());
    three.set_permits(3).await.expect("an answer");
    assert!(three.try_acquire().await.expect("an answer").is_none(), "one more than there are");
    let error = five.try_acquire_many(4).await.expect_err("more than there are");
    assert!(error.is_mismatch() && error.to_string().contains("has 3 permits"), "{error}");
    let status = theirs.inspect("x").await.expect("an answer").expect("a holder");
    assert_eq!(status.permits, Some(3));
    held.verify().await.expect("still held");
    held.release().await.expect("a release");
    assert!(theirs.inspect("x").await.expect("an answer").is_none());
    let guards = [five.try_acquire_many(2).await, three.try_acquire().await];
    let guards = guards.map(|guard| guard.expect("an answer").expect("a permit"));
    assert!(five.try_acquire().await.expect("an answer").is_none());
    for guard in guards {
        guard.release().await.expect("a release");
    }
    assert!(ours.mutex("x").expect("a name").try_lock().await.expect_err("a semaphore").is_mismatch());
}

/// When the number is lowered, waiters that still fit are admitted once enough permits were released.
pub async fn a_number_that_is_raised_lets_waiters_in_at_once(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let (a, b) = (ours.semaphore("x", 2).expect("a name"), theirs.semaphore("x", 2).expect("a name"));
    let both = a.acquire_many(2).await.expect("a free lock");
    let mut waits = pin!(b.acquire_many(2));
    fixture.until_waiting(&ours, 1, &mut waits).await;
    a.set_permits(3).await.expect("an answer");
    assert!(fixture.unless_late(fixture.ttl / 4, &mut waits).await.is_none(), "one too many");
    a.set_permits(4).await.expect("an answer");
    let waited = fixture.within(fixture.ttl, waits).await.expect("a grant");
    let mut last = pin!(b.acquire_many(2));
    fixture.until_waiting(&ours, 1, &mut last).await;
    b.set_permits(1).await.expect("an answer");
    both.release().await.expect("a release");
    assert!(fixture.unless_late(fixture.ttl / 4, &mut last).await.is_none(), "let in beside another");
    waited.release().await.expect("a release");
    // It was queued before the number was lowered.
    let last = fixture.within(fixture.ttl, last).await.expect("a grant");
    assert!(b.try_acquire().await.expect("an answer").is_none());
    last.release().await.expect("a release");
    drop(b.try_acquire().await.expect("an answer").expect("the only permit"));
}

/// On other kinds it is a mismatch.
pub async fn a_number_is_set_of_a_semaphore_only(fixture: &Fixture) {
    let locks = fixture.client();
    let semaphore = locks.semaphore("x", 2).expect("a name");
    for permits in [0, u32::MAX] {
        assert!(semaphore.set_permits(permits).await.expect_err("no number").is_invalid());
    }
    let guard = locks.fair_mutex("x").expect("a name").lock().await.expect("a free lock");
    assert!(semaphore.set_permits(3).await.expect_err("a fair mutex").is_mismatch());
    guard.verify().await.expect("still held");
    guard.release().await.expect("a release");
    semaphore.set_permits(3).await.expect("an answer");
    assert!(locks.fair_mutex("x").expect("a name").try_lock().await.expect_err("a semaphore").is_mismatch());
}

/// At once, without a request to the store.
pub async fn permits_that_cannot_be_are_refused(fixture: &Fixture) {
    let locks = fixture.client();
    for permits in [0, u32::MAX] {
        assert!(locks.semaphore("x", permits).expect_err("no number").is_invalid());
    }
    let semaphore = locks.semaphore("x", 2).expect("a name");
    for permits in [0, 3] {
        assert!(semaphore.try_acquire_many(permits).await.expect_err("no number").is_invalid());
        assert!(semaphore.for_permits(permits).is_err());
    }
}

/// Even if they are many: a process notified of more grants than it can read at once polls.
pub async fn all_who_are_let_in_at_once_come_in_at_once(fixture: &Fixture) {
    const MANY: u32 = 48;
    // A waiter that receives no messages polls after a third of its place's time, which is 5 s for this
    // lease.
    let client = || fixture.client_with(fixture.options().ttl(Duration::from_secs(60)));
    let (ours, theirs) = (client(), client());
    let taken = ours.semaphore("x", MANY).expect("a name");
    let guards = join_all((0..MANY).map(|_| taken.acquire())).await;
    let semaphore = theirs.semaphore("x", MANY).expect("a name");
    let mut waiters = pin!(join_all((0..MANY).map(|_| semaphore.acquire())));
    assert!(fixture.unless_late(Duration::from_millis(200), &mut waiters).await.is_none());
    for guard in guards {
        drop(guard.expect("a permit"));
    }
    let let_in = fixture.within(Duration::from_millis(1_200), waiters).await;
    assert!(let_in.into_iter().all(|guard| guard.is_ok()));
}
