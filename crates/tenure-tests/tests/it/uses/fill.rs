//! Caches of the user's own.

use std::fmt::Error as Failed;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tenure::Locks;

use super::{everywhere, on};

/// Many readers on these clients fill one table.
async fn fills_once(clients: &[Locks]) {
    let (table, computed) = (Arc::new(Mutex::new(None::<u64>)), Arc::new(AtomicU64::new(0)));
    let readers = (0..60).map(|reader| {
        let locks = clients[reader % clients.len()].clone();
        let (table, computed) = (Arc::clone(&table), Arc::clone(&computed));
        tokio::spawn(async move {
            let get = || async { Ok::<_, Failed>(*table.lock().expect("no panic")) };
            let fill = locks.fill("table")?;
            fill.run(get, async |guard| {
                assert!(guard.is_some_and(|guard| guard.fence() > 0));
                let value = computed.fetch_add(1, Ordering::SeqCst) + 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
                *table.lock().expect("no panic") = Some(value);
                Ok(value)
            })
            .await
        })
    });
    for value in join_all(readers.collect::<Vec<_>>()).await {
        assert_eq!(value.expect("no panic").expect("an answer"), Ok(1));
    }
}

#[test]
fn a_crowd_fills_a_cache_of_its_own_once() {
    everywhere(|store| {
        async move { fills_once(&[store.client(), store.client(), store.client()]).await }.boxed()
    });
}

#[test]
fn a_quorum_is_enough_for_a_cache_of_ones_own() {
    on(async {
        let members = [Locks::memory(), Locks::memory(), Locks::memory()];
        let client = || Locks::quorum(members.clone()).expect("members");
        fills_once(&[client(), client()]).await;
    });
}

/// A client that found nothing, and gets the lock only after another has filled the cache.
#[test]
fn one_that_looked_before_the_cache_was_filled_does_not_fill_it_again() {
    on(async {
        let locks = Locks::memory();
        let (table, looks) = (Arc::new(Mutex::new(None::<u64>)), Arc::new(AtomicU64::new(0)));
        let get = || {
            let found = *table.lock().expect("no panic");
            // Another fills it between the look beside the lock and the grant.
            if looks.fetch_add(1, Ordering::SeqCst) == 1 {
                *table.lock().expect("no panic") = Some(1);
            }
            async move { Ok::<_, Failed>(found) }
        };
        let value = locks.fill("table").expect("a name").run(get, async |_| Ok(2)).await;
        assert_eq!(value.expect("an answer"), Ok(1));
    });
}
