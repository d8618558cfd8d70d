//! Holds that are ended by force, and messages that claim so of holds that are not.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure::{Guard, LockName, Options, Owner};

use super::{Failed, Outcome, Scene};
use crate::sim::clock::{MS, SECOND};

/// A lease of 60 s, renewed every 20 s.
fn options() -> Options {
    Options::new().ttl(Duration::from_secs(60))
}

const KINDS: [&str; 6] = ["mutex", "fair mutex", "reentrant mutex", "read lock", "write lock", "semaphore"];

async fn hold(scene: &Scene, kind: &str) -> Result<Guard, Failed> {
    let locks = &scene.locks;
    let owner = Owner::new("forced")?;
    Ok(match kind {
        "mutex" => locks.mutex("x")?.lock().await,
        "fair mutex" => locks.fair_mutex("x")?.lock().await,
        "reentrant mutex" => locks.reentrant_mutex("x", &owner)?.lock().await,
        "read lock" => locks.rwlock("x")?.read().await.map(Into::into),
        "write lock" => locks.rwlock("x")?.write().await.map(Into::into),
        _ => locks.semaphore("x", 2)?.acquire().await,
    }?)
}

/// Plays a scenario for each kind, with a hold that is two seconds old.
fn each_kind(scenario: for<'a> fn(&'a Scene, Guard) -> BoxFuture<'a, Outcome>) -> Outcome {
    for kind in KINDS {
        let outcome = Scene::new(options()).play(move |scene| async move {
            let guard = hold(&scene, kind).await?;
            scene.sleep(2 * SECOND).await;
            scenario(&scene, guard).await
        });
        outcome.map_err(|what| format!("{kind}: {}", what.0))?;
    }
    Ok(())
}

async fn ends(scene: &Scene, guard: &Guard) -> Outcome {
    let other = scene.other(options());
    other.locks.force_release("x").await?.ok_or("it was free")?;
    scene.sleep(200 * MS).await;
    match guard.is_held() {
        true => Err("a hold that was ended by force is told of it at its renewal only".into()),
        false => Ok(()),
    }
}

pub(super) fn who_is_forced_out_is_told_at_once() -> Outcome {
    each_kind(|scene, guard| Box::pin(async move { ends(scene, &guard).await }))
}

pub(super) fn a_forged_message_ends_no_hold() -> Outcome {
    each_kind(|scene, guard| {
        Box::pin(async move {
            scene.network.forge(&LockName::new("x")?);
            scene.sleep(SECOND).await;
            match guard.is_held() {
                true => ends(scene, &guard).await,
                false => Err("a message has ended a hold that the server keeps".into()),
            }
        })
    })
}

pub(super) fn forged_messages_make_few_requests() -> Outcome {
    each_kind(|scene, guard| {
        Box::pin(async move {
            let requests = || scene.locks.metrics().total().renewals;
            let before = requests();
            for _ in 0..1_000 {
                scene.network.forge(&LockName::new("x")?);
                scene.sleep(MS).await;
            }
            match requests() - before {
                0 => return Err("no message was heard".into()),
                1..=11 => {}
                some => return Err(format!("the server was asked {some} times in a second").into()),
            }
            // The genuine message is received after them.
            ends(scene, &guard).await
        })
    })
}
