//! Counted holds.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tenure::{HoldEnd, Locks, Owner, Renewal};

use super::Fixture;

/// Three holds of one owner from two clients.
pub async fn an_owner_holds_as_often_as_it_likes_and_others_wait_for_the_last_release(fixture: &Fixture) {
    let (ours, more, theirs) = (fixture.client(), fixture.client(), fixture.client());
    let (me, other) = (Owner::new("me").expect("an owner"), Owner::new("other").expect("an owner"));
    let lock = ours.reentrant_mutex("x", &me).expect("a name");
    let mut guards = vec![lock.lock().await.expect("a free lock")];
    guards.push(
        more.reentrant_mutex("x", &me)
            .expect("a name")
            .try_lock()
            .await
            .expect("an answer")
            .expect("our own"),
    );
    guards.push(lock.lock().await.expect("our own"));
    assert_eq!(lock.hold_count().await.expect("an answer"), 3);
    let stranger = theirs.reentrant_mutex("x", &other).expect("a name");
    assert_eq!(stranger.hold_count().await.expect("an answer"), 0);
    let mut waiting = pin!(stranger.lock());
    for left in (0..3).rev() {
        assert!(
            fixture.unless_late(fixture.ttl / 8, &mut waiting).await.is_none(),
            "granted with {} holds left",
            left + 1
        );
        guards.pop().expect("a guard").release().await.expect("a release");
        assert_eq!(lock.hold_count().await.expect("an answer"), left);
    }
    let guard = fixture.within(fixture.ttl, waiting).await.expect("a grant");
    assert!(lock.try_lock().await.expect("an answer").is_none());
    guard.release().await.expect("a release");
}

/// An inner hold with a short lease does not shorten the outer one, even if neither is renewed.
pub async fn a_reentry_keeps_the_token_and_shortens_nothing(fixture: &Fixture) {
    let outer = fixture.client_with(fixture.options().ttl(6 * fixture.ttl).renewal(Renewal::Off));
    let inner = fixture.client_with(fixture.options().ttl(fixture.ttl / 2).renewal(Renewal::Off));
    let me = Owner::new("me").expect("an owner");
    let first = outer.reentrant_mutex("x", &me).expect("a name").lock().await.expect("a free lock");
    let second = inner.reentrant_mutex("x", &me).expect("a name").lock().await.expect("our own");
    assert_eq!(first.fence(), second.fence());
    second.release().await.expect("a release");
    fixture.sleep(fixture.ttl).await;
    first.verify().await.expect("still held");
    assert!(first.is_held());
    let fence = first.fence();
    first.release().await.expect("a release");
    let again = outer.reentrant_mutex("x", &me).expect("a name").lock().await.expect("a free lock");
    assert!(again.fence() > fence);
}

/// Dropping one hold leaves the other; a forced release ends all that are left.
pub async fn holds_of_one_owner_end_one_by_one(fixture: &Fixture) {
    let locks = fixture.client();
    let me = Owner::new("me").expect("an owner");
    let lock = locks.reentrant_mutex("x", &me).expect("a name");
    let (first, second) = (lock.lock().await.expect("a free lock"), lock.lock().await.expect("our own"));
    let lost = first.lost();
    drop(first);
    assert!(matches!(fixture.within(fixture.ttl, lost).await, HoldEnd::Released));
    let freed = async {
        while lock.hold_count().await.expect("an answer") != 1 {
            fixture.sleep(Duration::from_millis(2)).await;
        }
    };
    fixture.within(fixture.ttl, freed).await;
    second.verify().await.expect("still held");
    locks.force_release("x").await.expect("an answer").expect("a holder");
    assert!(fixture.within(fixture.ttl, second.lost()).await.is_lost());
    assert_eq!(lock.hold_count().await.expect("an answer"), 0);
}

/// One owner with holds in two processes, one of which has died.
pub async fn release_hold_leaves_the_holds_of_another_process(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let me = Owner::new("me").expect("an owner");
    let lock = |locks: &Locks| locks.reentrant_mutex("x", &me).expect("a name");
    let outer = lock(&ours).lock().await.expect("a free lock");
    let inner = lock(&theirs).lock().await.expect("our own");
    ours.release_hold(&inner.hold_id()).await.expect("a release");
    ours.release_hold(&inner.hold_id()).await.expect("nothing to release");
    assert_eq!(lock(&ours).hold_count().await.expect("an answer"), 1);
    outer.verify().await.expect("still held");
    outer.release().await.expect("a release");
}

/// Dropped after one poll, two, and so on: the next call can still resume.
pub async fn a_resume_that_is_dropped_anywhere_takes_nothing(fixture: &Fixture) {
    let locks = fixture.client_with(fixture.options().ttl(Duration::from_secs(20)));
    let me = Owner::new("me").expect("an owner");
    let lock = locks.reentrant_mutex("x", &me).expect("a name");
    for polls in 0..8 {
        let kept = lock.lock().await.expect("a free lock");
        drop(lock.lock().await.expect("our own").detach().await.expect("a detached hold"));
        {
            let mut resuming = Box::pin(locks.resume("x", &me));
            for _ in 0..polls {
                match poll_fn(|context| Poll::Ready(resuming.as_mut().poll(context))).await {
                    // Resumed: detach it again.
                    Poll::Ready(resumed) => {
                        let resumed = resumed.expect("an answer").expect("it is not over");
                        drop(resumed.detach().await.expect("a detached hold"));
                        break;
                    }
                    Poll::Pending => fixture.sleep(Duration::from_micros(200)).await,
                }
            }
        }
        let resumed = locks.resume("x", &me).await.expect("an answer").expect("it is not over");
        assert_eq!(lock.hold_count().await.expect("an answer"), 2);
        resumed.release().await.expect("a release");
        kept.release().await.expect("a release");
    }
}

/// The count stays correct.
pub async fn a_detached_hold_of_two_is_resumed_as_one_of_two(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let me = Owner::new("me").expect("an owner");
    let lock = ours.reentrant_mutex("x", &me).expect("a name");
    let (first, second) = (lock.lock().await.expect("a free lock"), lock.lock().await.expect("our own"));
    assert_eq!(first.detach().await.expect("a detached hold"), me);
    assert_eq!(lock.hold_count().await.expect("an answer"), 2);
    let resumed = theirs.resume("x", &me).await.expect("an answer").expect("it is not over");
    assert!(theirs.resume("x", &me).await.expect("an answer").is_none(), "there was one to resume");
    second.release().await.expect("a release");
    assert_eq!(lock.hold_count().await.expect("an answer"), 1);
    resumed.release().await.expect("a release");
    assert_eq!(lock.hold_count().await.expect("an answer"), 0);
}
