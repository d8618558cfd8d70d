//! Exclusion, waiting and cancellation, for every kind with one holder at a time.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{join_all, poll_fn};
use tenure::Locks;

use super::Fixture;

/// Time by which an abandoned place has lapsed, including a place in a queue.
pub(super) const LAPSE: Duration = Duration::from_secs(9);

/// The basic guarantee of a mutex.
pub async fn a_free_lock_is_granted_and_a_held_one_is_busy_to_everybody_else(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let guard = fixture.mutex(&ours, "x").await.try_lock().await.expect("an answer").expect("a free lock");
    assert!(guard.is_held() && fixture.is_later(guard.fence(), 0));
    for locks in [&ours, &theirs] {
        assert!(fixture.mutex(locks, "x").await.try_lock().await.expect("an answer").is_none());
    }
    assert!(fixture.mutex(&theirs, "y").await.try_lock().await.expect("an answer").is_some());
    guard.release().await.expect("a release");
    assert!(fixture.mutex(&theirs, "x").await.try_lock().await.expect("an answer").is_some());
}

/// Libraries that keep the owner in the lock object get this wrong.
pub async fn two_locks_of_one_face_exclude_each_other(fixture: &Fixture) {
    let mutex = fixture.mutex(&fixture.client(), "x").await;
    let guard = mutex.lock().await.expect("a free lock");
    assert!(mutex.clone().try_lock().await.expect("an answer").is_none());
    assert!(guard.is_held());
}

/// By a wake-up, not at the next poll: the limit is a tenth of the poll interval and of the lease.
pub async fn a_waiter_of_another_client_is_woken_by_the_release(fixture: &Fixture) {
    let patient = fixture.options().ttl(Duration::from_secs(20));
    let (ours, theirs) = (fixture.client_with(patient.clone()), fixture.client_with(patient));
    let guard = fixture.mutex(&ours, "x").await.lock().await.expect("a free lock");
    let mutex = fixture.mutex(&theirs, "x").await;
    let mut waiting = pin!(mutex.lock());
    assert!(fixture.unless_late(fixture.ttl, &mut waiting).await.is_none(), "granted while it was held");
    guard.release().await.expect("a release");
    drop(fixture.within(2 * fixture.ttl, waiting).await.expect("a grant"));
}

/// Neither at once nor much later.
pub async fn a_wait_ends_at_its_limit(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let _guard = fixture.mutex(&ours, "x").await.lock().await.expect("a free lock");
    // Connect first, because a wait that ends before the first answer is an error.
    theirs.ping().await.expect("a store");
    let started = fixture.now();
    let answer = fixture.mutex(&theirs, "x").await.try_lock_for(fixture.ttl).await.expect("an answer");
    let took = fixture.now().since(started);
    assert!(answer.is_none());
    assert!(took >= fixture.ttl && took < fixture.limit(3 * fixture.ttl), "{took:?}");
}

/// Like `try_lock`.
pub async fn a_wait_of_no_time_asks_once(fixture: &Fixture) {
    let locks = fixture.client();
    let mutex = fixture.mutex(&locks, "x").await;
    let guard = mutex.try_lock_for(Duration::ZERO).await.expect("an answer").expect("a free lock");
    assert!(mutex.try_lock_for(Duration::ZERO).await.expect("an answer").is_none());
    guard.release().await.expect("a release");
}

/// Whether the abandoned waiter was the head or behind it.
pub async fn a_wait_that_is_dropped_leaves_the_queue(fixture: &Fixture) {
    let locks = fixture.client();
    let mutex = fixture.mutex(&locks, "x").await;
    let guard = mutex.lock().await.expect("a free lock");
    let mut last = {
        let mut first = Box::pin(mutex.lock());
        let mut second = Box::pin(mutex.lock());
        let mut last = Box::pin(mutex.lock());
        for waiting in [&mut first, &mut second, &mut last] {
            assert!(fixture.unless_late(Duration::from_millis(20), waiting).await.is_none());
        }
        last
    };
    guard.release().await.expect("a release");
    drop(fixture.within(fixture.ttl, &mut last).await.expect("a grant"));
}

/// Drops a waiting future after each of the polls until it is parked, while another client holds. No place is
/// left, and the next waiter, of either client, gets the lock at once.
pub async fn a_wait_that_is_dropped_anywhere_leaves_no_place(fixture: &Fixture) {
    let clients = [(); 3].map(|()| fixture.client_with(fixture.options().ttl(Duration::from_secs(20))));
    let [ours, holder, theirs] = &clients;
    for next in [ours, theirs] {
        for polls in 1.. {
            let guard = fixture.mutex(holder, "x").await.lock().await.expect("a free lock");
            let (first, second) = (fixture.mutex(ours, "x").await, fixture.mutex(next, "x").await);
            let mut dropped = Box::pin(first.lock());
            let waits_for_good =
                fixture.unless_late(Duration::from_millis(60), polled(&mut dropped, polls)).await.is_none();
            let mut waiting = Box::pin(second.lock());
            assert!(fixture.unless_late(Duration::from_millis(20), &mut waiting).await.is_none());
            drop(dropped);
            // The withdrawal runs in the background, and the request may have been in flight.
            let at_most = async |most| {
                while waiters(theirs, "x").await > most {
                    fixture.sleep(Duration::from_millis(2)).await;
                }
            };
            fixture.within(2 * fixture.ttl, at_most(1)).await;
            guard.release().await.expect("a release");
            let guard = fixture.within(2 * fixture.ttl, waiting).await.expect("a grant");
            fixture.within(2 * fixture.ttl, at_most(0)).await;
            guard.release().await.expect("a release");
            if waits_for_good {
                assert!(polls > 1, "it was never polled a second time");
                break;
            }
        }
    }
}

/// Polls `waiting` `times` times, whenever it is woken.
async fn polled(waiting: &mut (impl Future + Unpin), times: u32) {
    let mut polls = 0;
    poll_fn(|context| {
        assert!(pin!(&mut *waiting).poll(context).is_pending(), "granted while it was held");
        polls += 1;
        if polls == times { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Number of waiters, for kinds that keep a queue.
async fn waiters(locks: &Locks, name: &str) -> usize {
    locks.inspect(name).await.expect("an answer").map_or(0, |status| status.waiters.len())
}

/// Dropped after one poll, two, and so on: the lock is free long before the lease expires.
pub async fn an_acquisition_that_is_dropped_anywhere_leaves_nothing(fixture: &Fixture) {
    let locks = fixture.client_with(fixture.options().ttl(Duration::from_secs(20)));
    for polls in 0..8 {
        let mutex = fixture.mutex(&locks, "x").await;
        {
            let mut acquiring = Box::pin(mutex.lock());
            for _ in 0..polls {
                if poll_fn(|context| Poll::Ready(acquiring.as_mut().poll(context).is_ready())).await {
                    break;
                }
                fixture.sleep(Duration::from_micros(200)).await;
            }
        }
        let next = fixture.within(2 * fixture.ttl, mutex.lock()).await.expect("a free lock");
        next.release().await.expect("a release");
    }
}

/// No "futurelock": a grant that is not in a caller's hands is not renewed.
pub async fn a_future_that_was_granted_and_is_never_polled_again_loses_its_turn(fixture: &Fixture) {
    let ours = fixture.client();
    // A stall must not cost the next holder its lease.
    let theirs = fixture.client_with(fixture.options().ttl(Duration::from_secs(20)));
    let guard = fixture.mutex(&ours, "x").await.lock().await.expect("a free lock");
    let mutex = fixture.mutex(&ours, "x").await;
    let mut forgotten = Box::pin(mutex.lock());
    assert!(fixture.unless_late(Duration::from_millis(50), &mut forgotten).await.is_none());
    guard.release().await.expect("a release");
    // `forgotten` is granted in the background and never polled.
    let next = fixture.within(LAPSE, fixture.mutex(&theirs, "x").await.lock()).await.expect("a grant");
    assert!(fixture.unless_late(2 * fixture.ttl, &mut forgotten).await.is_none(), "two hold");
    assert!(next.is_held());
    next.release().await.expect("a release");
    drop(fixture.within(LAPSE, forgotten).await.expect("a grant"));
}

/// A counter inside the lock would show an overlap.
pub async fn a_hundred_tasks_of_four_clients_never_overlap(fixture: &Fixture) {
    let inside = Arc::new(AtomicU32::new(0));
    // A stall must not cost a holder its lease.
    let client = |_| fixture.client_with(fixture.options().ttl(Duration::from_secs(20)));
    let clients: Vec<_> = (0..4).map(client).collect();
    let tasks = (0..100).map(|number| {
        let (inside, locks) = (Arc::clone(&inside), clients[number % 4].clone());
        async move {
            let guard = fixture.mutex(&locks, "x").await.lock().await.expect("a grant");
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
            fixture.sleep(Duration::from_micros(500)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            guard.release().await.expect("a release");
        }
    });
    fixture.within(Duration::from_secs(60), join_all(tasks)).await;
}
