//! Queue order across clients.

use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tenure::Renewal;

use super::Fixture;

/// One after the other, from several clients.
pub async fn callers_of_several_clients_are_served_in_the_order_in_which_they_came(fixture: &Fixture) {
    const CALLERS: usize = 9;
    let patient = || fixture.client_with(fixture.options().ttl(Duration::from_secs(20)));
    let clients: Vec<_> = (0..3).map(|_| patient()).collect();
    let guard = clients[0].fair_mutex("x").expect("a name").lock().await.expect("a free lock");
    let served = Mutex::new(Vec::new());
    let callers = (0..CALLERS).map(async |number| {
        fixture.until_queued(&clients[0], number).await;
        let fair = clients[number % 3].fair_mutex("x").expect("a name");
        let guard = fair.lock().await.expect("a grant");
        served.lock().expect("no panic").push(number);
        guard.release().await.expect("a release");
    });
    let release = async {
        fixture.until_queued(&clients[0], CALLERS).await;
        guard.release().await.expect("a release");
    };
    fixture.within(10 * fixture.ttl, join(join_all(callers), release)).await;
    assert!(served.into_inner().expect("no panic").into_iter().eq(0..CALLERS));
}

/// Not even while the lock is briefly free.
pub async fn a_try_overtakes_nobody(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let reader = ours.rwlock("x").expect("a name").read().await.expect("a free lock");
    let lock = theirs.rwlock("x").expect("a name");
    let mut writer = pin!(lock.write());
    fixture.until_waiting(&ours, 1, &mut writer).await;
    assert!(ours.rwlock("x").expect("a name").try_read().await.expect("an answer").is_none());
    reader.release().await.expect("a release");
    drop(fixture.within(fixture.ttl, writer).await.expect("a grant"));
}

/// A client that vanished does not cost a whole lease: the next one only waits until the head's place of 5 s
/// lapses.
pub async fn a_head_that_died_costs_its_short_lease(fixture: &Fixture) {
    let long = fixture.options().ttl(Duration::from_secs(60));
    let (ours, next) = (fixture.client_with(long.clone()), fixture.client_with(long.clone()));
    let guard = ours.fair_mutex("x").expect("a name").lock().await.expect("a free lock");
    let dead = fixture.client_with(long);
    let dying = dead.fair_mutex("x").expect("a name");
    let mut head = Box::pin(dying.lock());
    fixture.until_waiting(&ours, 1, &mut head).await;
    let fair = next.fair_mutex("x").expect("a name");
    let mut second = pin!(fair.lock());
    fixture.until_waiting(&ours, 2, &mut second).await;
    guard.release().await.expect("a release");
    // The head is granted in the background, but never polled again and so not renewed.
    drop(fixture.within(Duration::from_secs(6), second).await.expect("a grant"));
    drop(head);
}

/// The time for which a granted place is kept is no longer than the grace, so what remains of it is not
/// enough to return a guard.
pub async fn a_long_grace_keeps_nobody_out(fixture: &Fixture) {
    let options = fixture.options().ttl(Duration::from_secs(15)).grace(Duration::from_secs(5));
    let (ours, theirs) = (fixture.client_with(options.clone()), fixture.client_with(options));
    let guard = ours.fair_mutex("x").expect("a name").lock().await.expect("a free lock");
    let fair = theirs.fair_mutex("x").expect("a name");
    let mut waits = pin!(fair.lock());
    fixture.until_waiting(&ours, 1, &mut waits).await;
    guard.release().await.expect("a release");
    let next = fixture.within(Duration::from_secs(1), waits).await.expect("a grant");
    assert!(next.is_held());
    next.release().await.expect("a release");
}

/// The next one holds at once, and the former holder is notified.
pub async fn a_forced_release_lets_the_next_in(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let guard = ours.fair_mutex("x").expect("a name").lock().await.expect("a free lock");
    let fair = theirs.fair_mutex("x").expect("a name");
    let mut next = pin!(fair.lock());
    fixture.until_waiting(&ours, 1, &mut next).await;
    let status = ours.inspect("x").await.expect("an answer").expect("a holder");
    assert_eq!((status.holders.len(), status.waiters.len()), (1, 1));
    let forced = ours.force_release("x").await.expect("an answer").expect("a holder");
    assert_eq!(forced.holders[0].owner.as_ref(), Some(guard.owner()));
    let next = fixture.within(fixture.ttl, next).await.expect("a grant");
    assert!(fixture.within(fixture.ttl, guard.lost()).await.is_lost());
    next.verify().await.expect("still held");
}

/// A waiter that is granted from the queue first has a short lease; it gets the full one even if nothing is
/// renewed afterwards.
pub async fn whoever_is_called_gets_a_whole_lease(fixture: &Fixture) {
    let once = fixture.options().ttl(Duration::from_secs(20)).renewal(Renewal::Off);
    let (ours, theirs) = (fixture.client(), fixture.client_with(once));
    let guard = ours.fair_mutex("x").expect("a name").lock().await.expect("a free lock");
    let fair = theirs.fair_mutex("x").expect("a name");
    let mut next = pin!(fair.lock());
    fixture.until_waiting(&ours, 1, &mut next).await;
    guard.release().await.expect("a release");
    let next = fixture.within(fixture.ttl, next).await.expect("a grant");
    let whole = async {
        while next.remaining() < Duration::from_secs(15) {
            fixture.sleep(Duration::from_millis(5)).await;
        }
    };
    fixture.within(2 * fixture.ttl, whole).await;
    fixture.sleep(Duration::from_secs(6)).await;
    next.verify().await.expect("still held");
    assert!(ours.fair_mutex("x").expect("a name").try_lock().await.expect("an answer").is_none());
}
