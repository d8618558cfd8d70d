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
