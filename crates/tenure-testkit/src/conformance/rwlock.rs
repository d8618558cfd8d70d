//! Many readers or one writer.

use std::pin::pin;
use std::time::Duration;

use tenure::internals::write_guard;
use tenure::{Guard, Renewal, Share};

use super::Fixture;

/// The basic guarantee.
pub async fn readers_hold_together_and_a_writer_alone(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let (a, b) = (ours.rwlock("x").expect("a name"), theirs.rwlock("x").expect("a name"));
    let readers = [a.read().await.expect("a free lock"), b.read().await.expect("another reader")];
    assert!(a.try_write().await.expect("an answer").is_none());
    assert!(b.try_write_for(fixture.ttl / 4).await.expect("an answer").is_none());
    for reader in readers {
        reader.release().await.expect("a release");
    }
    let writer = fixture.within(fixture.ttl, a.write()).await.expect("a grant");
    assert!(b.try_read().await.expect("an answer").is_none());
    assert!(b.try_write().await.expect("an answer").is_none());
    assert!(b.try_read_for(fixture.ttl / 4).await.expect("an answer").is_none());
    writer.release().await.expect("a release");
    assert!(b.try_read().await.expect("an answer").is_some());
}

/// So that writers do not starve. When the writer gives up, the readers behind it are admitted at once.
pub async fn a_waiting_writer_stops_new_readers(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let (a, b) = (ours.rwlock("x").expect("a name"), theirs.rwlock("x").expect("a name"));
    let reader = a.read().await.expect("a free lock");
    let mut writer = Box::pin(b.write());
    fixture.until_waiting(&ours, 1, &mut writer).await;
    let mut late = pin!(a.read());
    fixture.until_waiting(&ours, 2, &mut late).await;
    drop(writer);
    let late = fixture.within(fixture.ttl, late).await.expect("a grant");
    late.release().await.expect("a release");
    reader.release().await.expect("a release");
}

/// Neither by a release, nor by a drop, nor by a late release.
pub async fn a_release_of_one_reader_touches_no_other(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client_with(fixture.options().renewal(Renewal::Off)));
    let (a, b) = (ours.rwlock("x").expect("a name"), theirs.rwlock("x").expect("a name"));
    let stays = a.read().await.expect("a free lock");
    b.read().await.expect("another reader").release().await.expect("a release");
    drop(b.read().await.expect("another reader"));
    let late = b.read().await.expect("another reader");
    fixture.sleep(fixture.ttl + Duration::from_millis(50)).await;
    assert!(late.release().await.expect_err("it has lapsed").is_lost());
    stays.verify().await.expect("still held");
    assert!(b.try_write().await.expect("an answer").is_none());
}

/// Even if other readers renewed in the meantime.
pub async fn a_lapsed_reader_blocks_a_writer_no_longer_than_its_own_lease(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client_with(fixture.options().renewal(Renewal::Off)));
    let (a, b) = (ours.rwlock("x").expect("a name"), theirs.rwlock("x").expect("a name"));
    let stays = a.read().await.expect("a free lock");
    let lapses = b.read().await.expect("another reader");
    let mut writer = pin!(a.write());
    assert!(fixture.unless_late(fixture.ttl / 2, &mut writer).await.is_none(), "granted beside two readers");
    stays.release().await.expect("a release");
    drop(fixture.within(fixture.ttl + fixture.ttl / 2, writer).await.expect("a grant"));
    assert!(!lapses.is_held());
}

/// Without a gap in which another writer could be admitted.
pub async fn a_downgrade_lets_readers_in_at_once(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let (a, b) = (ours.rwlock("x").expect("a name"), theirs.rwlock("x").expect("a name"));
    let guard = a.write().await.expect("a free lock");
    let fence = guard.fence();
    let mut reader = pin!(b.read());
    fixture.until_waiting(&ours, 1, &mut reader).await;
    let guard = guard.downgrade().await.expect("a downgrade");
    let reader = fixture.within(fixture.ttl, reader).await.expect("a grant");
    assert_eq!(guard.fence(), fence);
    guard.verify().await.expect("still held");
    assert!(b.try_write().await.expect("an answer").is_none());
    let guard = write_guard(guard.into()).downgrade().await.expect("a reader stays one");
    guard.release().await.expect("a release");
    reader.release().await.expect("a release");
}

/// One at a time, beside readers; a writer waits for it.
pub async fn one_of_the_readers_may_become_the_writer(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let (a, b) = (ours.rwlock("x").expect("a name"), theirs.rwlock("x").expect("a name"));
    let upgradeable = a.upgradeable_read().await.expect("a free lock");
    let reader = b.read().await.expect("a reader beside it");
    assert!(b.try_upgradeable_read().await.expect("an answer").is_none());
    assert!(b.try_upgradeable_read_for(fixture.ttl / 8).await.expect("an answer").is_none());
    assert!(b.try_write().await.expect("an answer").is_none());
    let status = theirs.inspect("x").await.expect("an answer").expect("two holders");
    let shares: Vec<_> = status.holders.iter().map(|holder| holder.share).collect();
    assert_eq!(shares, [Share::Upgradeable, Share::Reader]);
    let fence = upgradeable.fence();
    let mut upgrade = pin!(upgradeable.upgrade());
    assert!(fixture.unless_late(fixture.ttl / 4, &mut upgrade).await.is_none(), "a writer beside a reader");
    assert!(b.try_read().await.expect("an answer").is_none(), "a reader has overtaken the upgrade");
    let mut late = pin!(b.read());
    assert!(fixture.unless_late(fixture.ttl / 8, &mut late).await.is_none());
    reader.release().await.expect("a release");
    let writer = fixture.within(fixture.ttl, upgrade).await.expect("a writer");
    assert_eq!(writer.fence(), fence);
    writer.verify().await.expect("still held");
    assert!(fixture.unless_late(fixture.ttl / 4, &mut late).await.is_none());
    let reader = writer.downgrade().await.expect("a reader");
    let late = fixture.within(fixture.ttl, late).await.expect("a grant");
    late.release().await.expect("a release");
    reader.release().await.expect("a release");
    drop(b.try_write().await.expect("an answer").expect("a free lock"));
}

/// It keeps reading, and others are admitted again.
pub async fn an_upgrade_that_is_given_up_lets_readers_in(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let (a, b) = (ours.rwlock("x").expect("a name"), theirs.rwlock("x").expect("a name"));
    let reader = b.read().await.expect("a free lock");
    let upgradeable = a.upgradeable_read().await.expect("a reader beside it");
    let upgradeable = upgradeable.try_upgrade().await.expect("an answer").expect_err("another reads");
    let mut upgrade = pin!(upgradeable.try_upgrade_for(fixture.ttl / 2));
    assert!(fixture.unless_late(fixture.ttl / 8, &mut upgrade).await.is_none());
    let mut late = pin!(b.read());
    assert!(fixture.unless_late(fixture.ttl / 8, &mut late).await.is_none());
    let upgradeable =
        fixture.within(fixture.ttl, upgrade).await.expect("an answer").expect_err("another reads");
    let late = fixture.within(fixture.ttl, late).await.expect("a grant");
    upgradeable.verify().await.expect("still held");
    let first = upgradeable.downgrade().await.expect("a reader");
    let second = b.try_upgradeable_read().await.expect("an answer").expect("the place is free again");
    for guard in [Guard::from(first), late.into(), reader.into()] {
        guard.release().await.expect("a release");
    }
    let writer = second.try_upgrade().await.expect("an answer").expect("it is alone");
    writer.release().await.expect("a release");
}

/// Even while the upgrade waits for readers.
pub async fn an_upgrade_that_is_dropped_leaves_nothing(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client());
    let (a, b) = (ours.rwlock("x").expect("a name"), theirs.rwlock("x").expect("a name"));
    let reader = b.read().await.expect("a free lock");
    let mut upgrade = Box::pin(a.upgradeable_read().await.expect("a reader beside it").upgrade());
    assert!(fixture.unless_late(fixture.ttl / 8, &mut upgrade).await.is_none());
    drop(upgrade);
    let late = fixture.within(fixture.ttl, b.read()).await.expect("a grant");
    drop(fixture.within(fixture.ttl, b.upgradeable_read()).await.expect("a grant"));
    late.release().await.expect("a release");
    reader.release().await.expect("a release");
}

/// Until the lease of the reader expires without renewal.
pub async fn an_upgrade_waits_for_a_dead_reader_no_longer_than_its_lease(fixture: &Fixture) {
    let (ours, theirs) = (fixture.client(), fixture.client_with(fixture.options().renewal(Renewal::Off)));
    let (a, b) = (ours.rwlock("x").expect("a name"), theirs.rwlock("x").expect("a name"));
    let lapses = b.read().await.expect("a free lock");
    let upgradeable = a.upgradeable_read().await.expect("a reader beside it");
    let writer =
        fixture.within(fixture.ttl + fixture.ttl / 2, upgradeable.upgrade()).await.expect("a writer");
    assert!(!lapses.is_held());
    writer.release().await.expect("a release");
}

/// Locks with other names, or with the same name under another prefix.
pub async fn a_downgrade_touches_no_other_lock(fixture: &Fixture) {
    let (locks, theirs) = (fixture.client(), fixture.client());
    let other_prefix = locks.with(|options| options.prefix("p:")).expect("options");
    let writer = locks.rwlock("x").expect("a name").write().await.expect("a free lock");
    let other = locks.rwlock("y").expect("a name").write().await.expect("a free lock");
    let prefixed = other_prefix.rwlock("x").expect("a name").write().await.expect("a free lock");
    let reader = writer.downgrade().await.expect("a downgrade");
    assert!(theirs.rwlock("x").expect("a name").try_read().await.expect("an answer").is_some());
    for lock in [locks.rwlock("y"), locks.rwlock("p:x")] {
        let lock = lock.expect("a name");
        assert!(lock.try_read().await.expect("an answer").is_none(), "{lock:?} was downgraded");
    }
    for guard in [Guard::from(reader), other.into(), prefixed.into()] {
        guard.release().await.expect("a release");
    }
}
