//! Leases: renewal, expiry, notification of the loss.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::{Options, Renewal};

use super::Fixture;

/// For three leases, with another client waiting.
pub async fn a_lease_is_renewed_for_as_long_as_its_guard_lives(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let guard = fixture.mutex(&ours, "x").await.lock().await.expect("a free lock");
    assert!(
        fixture.mutex(&theirs, "x").await.try_lock_for(3 * fixture.ttl).await.expect("an answer").is_none()
    );
    assert!(guard.is_held());
    guard.verify().await.expect("still held");
    guard.release().await.expect("a release");
}

/// Each renewal reports its new deadline to the most recent callback.
pub async fn a_renewal_is_told_with_its_deadline(fixture: &Fixture) {
    let locks = fixture.client();
    let guard = fixture.mutex(&locks, "x").await.lock().await.expect("a free lock");
    let told = Arc::new(Mutex::new(vec![guard.lost_at()]));
    guard.on_renewal(|_| unreachable!("it is replaced at once"));
    let tell = Arc::clone(&told);
    guard.on_renewal(move |at| tell.lock().expect("no panic").push(at));
    let told_twice = async {
        while told.lock().expect("no panic").len() < 3 {
            fixture.sleep(fixture.ttl / 20).await;
        }
    };
    fixture.within(4 * fixture.ttl, told_twice).await;
    guard.renew().await.expect("a renewal");
    let (at, told) = (guard.lost_at(), told.lock().expect("no panic").clone());
    assert!(told.is_sorted_by(|before, after| before < after), "{told:?}");
    assert!(at >= told[told.len() - 1], "{at:?} after {told:?}");
    guard.release().await.expect("a release");
}

/// The holder learns of the loss before the next one holds.
pub async fn a_lease_that_is_not_renewed_ends_and_is_told_before_anybody_else_can_hold(fixture: &Fixture) {
    let ours = fixture.client_with(fixture.options().renewal(Renewal::Off));
    let theirs = fixture.client();
    let guard = fixture.mutex(&ours, "x").await.lock().await.expect("a free lock");
    let told = async {
        let error = guard.lost().await;
        assert!(error.is_lost() && error.to_string().contains("expired"), "{error}");
        fixture.now()
    };
    let taken = async {
        let next = fixture.mutex(&theirs, "x").await.lock().await.expect("a grant");
        (fixture.now(), next)
    };
    let (told, (taken, next)) = futures_util::future::join(told, taken).await;
    assert!(told <= taken, "told {:?} too late", told.since(taken));
    assert!(!guard.is_held() && guard.remaining().is_zero() && next.is_held());
    assert!(fixture.is_later(next.fence(), guard.fence()));
}

/// For callers who want no background renewal.
pub async fn a_lease_that_is_renewed_by_hand_lives_on(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client_with(fixture.options().renewal(Renewal::Off)), fixture.client());
    let guard = fixture.mutex(&ours, "x").await.lock().await.expect("a free lock");
    for _ in 0..8 {
        fixture.sleep(fixture.ttl / 4).await;
        guard.renew().await.expect("a renewal");
        assert!(guard.remaining() > fixture.ttl / 2);
    }
    assert!(fixture.mutex(&theirs, "x").await.try_lock().await.expect("an answer").is_none());
}

/// Neither by `release`, nor by `drop`, nor by `renew` on a guard that does not know of the loss.
pub async fn an_expired_holders_release_never_frees_the_next(fixture: &Fixture) {
    let ours = fixture.client_with(fixture.options().renewal(Renewal::Off));
    let theirs = fixture.client();
    let stale = fixture.mutex(&ours, "x").await.lock().await.expect("a free lock");
    let dropped = fixture.mutex(&ours, "y").await.lock().await.expect("a free lock");
    let next = fixture.mutex(&theirs, "x").await.lock().await.expect("a grant");
    let next_of_dropped = fixture.mutex(&theirs, "y").await.lock().await.expect("a grant");
    assert!(stale.release().await.expect_err("not ours any more").is_lost());
    drop(dropped);
    ours.flush().await.expect("nothing pending");
    for guard in [next, next_of_dropped] {
        guard.verify().await.expect("still held");
        guard.release().await.expect("a release");
    }
}

/// Nor does the attempt create a lock.
pub async fn a_lapsed_lease_cannot_be_renewed(fixture: &Fixture) {
    let ours = fixture.client_with(fixture.options().renewal(Renewal::Off));
    let guard = fixture.mutex(&ours, "x").await.lock().await.expect("a free lock");
    fixture.sleep(fixture.ttl + Duration::from_millis(50)).await;
    assert!(guard.renew().await.expect_err("it has lapsed").is_lost());
    assert!(guard.verify().await.expect_err("it has lapsed").is_lost());
    assert!(fixture.is_free(&ours, "x").await);
}

/// A stuck holder does not hold forever.
pub async fn max_hold_ends_a_hold_however_often_it_is_renewed(fixture: &Fixture) {
    let ours = fixture.client_with(fixture.options().max_hold(2 * fixture.ttl + fixture.ttl / 2));
    let theirs = fixture.client();
    let mutex = fixture.mutex(&ours, "x").await;
    let started = fixture.now();
    let guard = mutex.lock().await.expect("a free lock");
    let granted = fixture.now();
    let lost = guard.lost().await;
    let told = fixture.now();
    assert!(lost.is_lost() && lost.to_string().contains("max_hold"), "{lost}");
    assert!(told.since(started) > 2 * fixture.ttl, "{:?}", told.since(started));
    assert!(told.since(granted) <= fixture.limit(3 * fixture.ttl), "{:?}", told.since(granted));
    let next =
        fixture.within(2 * fixture.ttl, fixture.mutex(&theirs, "x").await.lock()).await.expect("a grant");
    assert!(next.is_held());
}

/// Leaves time to stop before another client can hold.
pub async fn grace_announces_the_loss_early(fixture: &Fixture) {
    let grace = fixture.ttl / 4;
    let ours = fixture.client_with(fixture.options().renewal(Renewal::Off).grace(grace));
    let theirs = fixture.client();
    let guard = fixture.mutex(&ours, "x").await.lock().await.expect("a free lock");
    assert!(guard.remaining() <= fixture.ttl - grace);
    let told = async {
        assert!(guard.lost().await.is_lost());
        fixture.now()
    };
    let taken = async {
        let next = fixture.mutex(&theirs, "x").await.lock().await.expect("a grant");
        (fixture.now(), next)
    };
    let (told, (taken, _next)) = futures_util::future::join(told, taken).await;
    // Real timers fire a little late; the lease's safety margin adds to the grace.
    assert!(taken.since(told) >= grace / 2, "{:?}", taken.since(told));
}

/// 50 ms. A busy machine may need several tries, because a reply can take longer than that.
pub async fn the_shortest_lease_can_be_held(fixture: &Fixture) {
    const TRIES: u32 = 50;
    let locks = fixture.client_with(Options::new().ttl(Duration::from_millis(50)));
    for _ in 0..TRIES {
        let guard = fixture.mutex(&locks, "x").await.lock().await.expect("a free lock");
        assert!(guard.remaining() <= Duration::from_millis(50));
        match guard.verify().await {
            Ok(()) if guard.release().await.is_ok() => return,
            Ok(()) => {}
            Err(error) => assert!(error.is_unreachable() || error.is_lost(), "{error}"),
        }
    }
    panic!("not once in {TRIES} tries");
}
