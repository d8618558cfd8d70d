//! Requests without an answer, beside waiters.

use std::pin::pin;
use std::time::Duration;

use tenure::{Options, Owner};

use super::{Outcome, Scene, begin};
use crate::sim::clock::{MS, SECOND};

/// A re-entry is not sent, a millisecond before a waiter for the same lock gives up.
pub(super) fn a_request_that_is_not_sent_is_no_silence_for_other_waiters() -> Outcome {
    let [holder, waiter] = [1, 2].map(|id| format!("draw@host:1/{id:032x}").parse::<Owner>());
    let (holder, waiter) = (holder?, waiter?);
    Scene::new(Options::new()).play(|scene| async move {
        let other = scene.other(Options::new());
        let _held = other.locks.reentrant_mutex("x", &holder)?.lock().await?;
        let mutex = scene.locks.reentrant_mutex("x", &waiter)?;
        let mut first = pin!(mutex.try_lock_for(Duration::from_secs(2)));
        for pause in [10 * MS, 2 * SECOND - 11 * MS] {
            if begin(&mut first).await.is_some() {
                return Err("a held lock was not waited for".into());
            }
            scene.sleep(pause).await;
        }
        scene.network.refuse(1_000);
        let reentry = scene.locks.reentrant_mutex("x", &holder)?;
        let mut second = pin!(reentry.try_lock_for(Duration::from_secs(2)));
        let answer = begin(&mut second).await;
        scene.network.refuse(0);
        match (answer, first.await) {
            (None, Ok(None)) => Ok(()),
            (_, Err(error)) => Err(format!("a waiter for a busy lock was told: {error}").into()),
            _ => Err("two hold it".into()),
        }
    })
}

/// A server stops before it carries out a request for a place, whose future is then not polled for longer than an
/// unused subscription stays. The lock is released as soon as the server goes on.
pub(super) fn a_place_that_is_granted_late_keeps_its_turn() -> Outcome {
    Scene::new(Options::new()).play(|scene| async move {
        let [holder, later] = [(); 2].map(|()| scene.other(Options::new()));
        let held = holder.locks.fair_mutex("x")?.lock().await?;
        let (mutex, theirs) = (scene.locks.fair_mutex("x")?, later.locks.fair_mutex("x")?);
        // Opens the subscription.
        let mut before = Box::pin(mutex.lock());
        let (mut first, mut second) = (pin!(mutex.lock()), pin!(theirs.lock()));
        for _ in 0..3 {
            if begin(&mut before.as_mut()).await.is_some() {
                return Err("two hold it".into());
            }
            scene.sleep(SECOND).await;
        }
        drop(before);
        scene.sleep(10 * MS).await;
        scene.network.stall(scene.sim.now() + 6_500 * MS);
        let asked = begin(&mut first).await;
        scene.sleep(1_100 * MS).await;
        let mut granted = asked.or(begin(&mut first).await);
        scene.sleep(5_200 * MS).await;
        let waits = begin(&mut second).await.is_none();
        held.release().await?;
        for _ in 0..3 {
            scene.sleep(10 * MS).await;
            granted = match granted {
                None => begin(&mut first).await,
                granted => granted,
            };
        }
        match (granted, begin(&mut second).await) {
            (Some(Ok(_)), None) if waits => Ok(()),
            (first, second) => Err(format!("a place was passed: {first:?}, then {second:?}").into()),
        }
    })
}
