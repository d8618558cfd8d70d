//! The store of the feature `testing`: leases on tokio's clock, faults, and the record of requests. The
//! conformance suite runs over it too, and book/use/testing.md has examples of each kind.
#![expect(clippy::disallowed_methods, reason = "users' tests sleep and spawn as these do")]

use std::convert::Infallible;
use std::time::{Duration, UNIX_EPOCH};

use tenure::testing::store;
use tenure::{Change, Guard, Leader, Period, Result};
use tokio::time::Instant;

const S: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn waits_and_leases_take_no_real_time_on_a_paused_clock() -> Result<()> {
    let real = std::time::SystemTime::now();
    let (locks, control) = store();
    let other = control.hold_elsewhere("x");
    let begun = Instant::now();
    assert!(locks.mutex("x")?.try_lock_for(3_600 * S).await?.is_none());
    let waited = begun.elapsed();
    assert!(waited >= 3_600 * S && waited < 3_601 * S, "{waited:?}");
    // The other's lease expires on the same clock.
    std::mem::forget(other);
    let mine = locks.mutex("x")?;
    assert!(tokio::time::timeout(60 * S, mine.lock()).await.is_err());
    assert!(real.elapsed().expect("a clock") < 60 * S);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_renewed_for_days_and_suspended_it_is_lost() -> Result<()> {
    let (locks, control) = store();
    let guard = locks.mutex("x")?.lock().await?;
    tokio::time::advance(10 * S).await;
    control.advance(48 * 3_600 * S).await;
    assert!(guard.is_held());
    guard.verify().await?;
    assert!(locks.metrics().total().renewals > 30_000);
    control.suspend(16 * S);
    assert!(!guard.is_held());
    assert!(locks.mutex("x")?.try_lock().await?.is_some());
    Ok(())
}

#[tokio::test]
async fn without_a_paused_clock_only_this_store_moves() -> Result<()> {
    let (locks, control) = store();
    let begun = Instant::now();
    let (kept, unkept) = (locks.mutex("kept")?, locks.with(|options| options.max_hold(30 * S))?);
    let (kept, unkept) = (kept.lock().await?, unkept.mutex("unkept")?.lock().await?);
    control.advance(60 * S).await;
    assert!(kept.is_held() && !unkept.is_held());
    assert!(begun.elapsed() < 30 * S);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_serves_tasks_of_several_threads() -> Result<()> {
    let (locks, control) = store();
    let tasks = (0..8).map(|_| {
        let locks = locks.clone();
        tokio::spawn(async move {
            for _ in 0..20 {
                locks.mutex("x")?.lock().await?.release().await?;
            }
            Ok::<_, tenure::Error>(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic")?;
    }
    let held = control.requests().iter().filter(|asked| asked.answer == "held").count();
    assert_eq!((held, locks.metrics().total().acquired), (160, 160));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_heard_at_once_by_each_holder_of_the_name() -> Result<()> {
    let (locks, control) = store();
    let (one, two) = (locks.rwlock("x")?.read().await?, locks.rwlock("x")?.read().await?);
    let other = locks.mutex("y")?.lock().await?;
    assert!(!control.lose("nothing"));
    assert!(control.lose("x"));
    let begun = Instant::now();
    assert!(one.lost().await.is_lost() && two.lost().await.is_lost());
    assert_eq!(begun.elapsed(), Duration::ZERO);
    other.verify().await?;
    assert_eq!(locks.metrics().total().losses[3], ("gone", 2));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn in_an_outage_nothing_is_carried_out_and_no_message_comes() -> Result<()> {
    let (locks, control) = store();
    for wait in ["mutex", "fair"] {
        let holder = match wait {
            "mutex" => control.elsewhere().mutex("x")?.lock().await?,
            _ => control.elsewhere().fair_mutex("x")?.lock().await?,
        };
        let waiting = {
            let locks = locks.clone();
            tokio::spawn(async move {
                match wait {
                    "mutex" => locks.mutex("x")?.lock().await,
                    _ => locks.fair_mutex("x")?.lock().await,
                }
            })
        };
        tokio::time::sleep(S).await;
        let outages = (control.outage(), control.outage());
        holder.release().await?;
        tokio::time::sleep(5 * S).await;
        drop(outages.0);
        tokio::time::sleep(5 * S).await;
        assert!(!waiting.is_finished(), "{wait}");
        drop(outages.1);
        let ended = Instant::now();
        waiting.await.expect("no panic")?.release().await?;
        // Immediately where places are verified after a reconnect, else after a pause.
        assert!(ended.elapsed() <= 6 * S, "{wait}: {:?}", ended.elapsed());
    }
    Ok(())
}

/// By the wall clock of the test, which goes on with its other clock.
#[tokio::test(start_paused = true)]
async fn a_nightly_job_runs_at_the_hour_that_the_test_chose() -> Result<()> {
    let (day, hour) = (Duration::from_secs(86_400), Duration::from_secs(3_600));
    let midnight = UNIX_EPOCH + 20_000 * day;
    let at_two = || Period::daily(2 * hour).open_for(hour);
    for (begins, runs) in [(1, false), (2, true), (3, false)] {
        let (locks, _control) = tenure::testing::store_at(midnight + begins * hour + hour / 2);
        let nightly = locks.once_per("nightly", at_two())?;
        let ran = nightly.run(async |turn| Ok::<_, Infallible>(turn.window().start)).await?;
        assert_eq!(ran, runs.then_some(Ok(midnight + 2 * hour)), "half past {begins}");
    }
    let (locks, control) = tenure::testing::store_at(midnight);
    let nightly = locks.once_per("nightly", at_two())?;
    let mut runs = Vec::new();
    for half_hours in 0..100 {
        if nightly.run(async |_| Ok::<_, Infallible>(())).await?.is_some() {
            runs.push(half_hours);
        }
        control.advance(hour / 2).await;
    }
    assert_eq!(runs, [4, 52]);
    Ok(())
}

/// Also on a busy lock of each kind, and with one that is free.
#[tokio::test(start_paused = true)]
async fn a_limit_shorter_than_a_round_trip_gets_an_answer() -> Result<()> {
    let (locks, control) = tenure::testing::store();
    let limit = Duration::from_millis(1);
    let _mutex = control.hold_elsewhere("mutex");
    let _fair = control.elsewhere().fair_mutex("fair")?.lock().await?;
    let _reader = control.elsewhere().rwlock("rw")?.read().await?;
    control.slow(Duration::from_millis(40));
    assert!(locks.mutex("mutex")?.try_lock_for(limit).await?.is_none());
    assert!(locks.fair_mutex("fair")?.try_lock_for(limit).await?.is_none());
    assert!(locks.multi(["free", "mutex"])?.try_lock_for(limit).await?.is_none());
    let reader = locks.rwlock("rw")?.try_upgradeable_read_for(limit).await?.expect("a free lock");
    assert!(reader.try_upgrade_for(limit).await.expect("an answer").is_err());
    assert!(locks.mutex("free")?.try_lock_for(limit).await?.is_some());

    let _outage = control.outage();
    for error in [
        locks.mutex("mutex")?.try_lock_for(limit).await.expect_err("an outage"),
        locks.fair_mutex("fair")?.try_lock_for(limit).await.expect_err("an outage"),
    ] {
        assert!(error.is_unreachable(), "{error}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_answers_late_or_leaves_the_outcome_unknown() -> Result<()> {
    let (locks, control) = store();
    control.slow(S / 2);
    let begun = Instant::now();
    let guard = locks.mutex("x")?.lock().await?;
    guard.release().await?;
    assert_eq!(begun.elapsed(), S);
    control.slow(2 * S);
    let error = locks.mutex("y")?.try_lock().await.expect_err("no answer in time");
    assert!(error.is_unreachable() || error.is_unknown(), "{error}");
    assert_eq!(control.requests()[2].answer, "unknown");
    control.slow(Duration::ZERO);
    tokio::time::sleep(5 * S).await;
    assert!(control.elsewhere().inspect("y").await?.is_none(), "what was granted is given back");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn listings_and_readiness_fail_in_an_outage_too() -> Result<()> {
    let (locks, control) = store();
    let _guard = locks.mutex("x")?.lock().await?;
    let outage = control.outage();
    assert!(locks.list("")?.next().await.is_err() && locks.ping().await.is_err());
    assert!(locks.jobs("")?.next().await.is_err());
    drop(outage);
    control.slow(S / 2);
    let begun = Instant::now();
    assert!(locks.list("")?.next().await?.is_some());
    assert!(begun.elapsed() >= S / 2);
    control.slow(60 * S);
    assert!(locks.ping().await.is_err());
    Ok(())
}

/// Background releases never cease here.
#[tokio::test(start_paused = true)]
async fn a_reentrant_hold_is_resumed_beside_releases_of_other_locks() -> Result<()> {
    let (locks, control) = store();
    let owner = tenure::Owner::new("")?;
    let owner = locks.reentrant_mutex("x", &owner)?.lock().await?.detach().await?;
    control.slow(S / 4);
    let drops = (0..8).map(async |task| {
        for _ in 0..40 {
            drop(locks.mutex(format!("other{task}"))?.lock().await?);
        }
        Ok::<(), tenure::Error>(())
    });
    let resumed = async {
        tokio::time::sleep(S).await;
        locks.resume("x", &owner).await
    };
    let (dropped, resumed) =
        futures_util::future::join(futures_util::future::try_join_all(drops), resumed).await;
    dropped?;
    assert!(resumed?.is_some_and(|guard| guard.is_held()));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_function_that_panics_at_a_renewal_costs_no_hold() -> Result<()> {
    let (locks, control) = store();
    let (one, other) = (locks.mutex("x")?.lock().await?, locks.mutex("y")?.lock().await?);
    let told = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counted = std::sync::Arc::clone(&told);
    one.on_renewal(move |_| {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        panic!("a fault of the program");
    });
    control.advance(120 * S).await;
    assert!(one.is_held() && other.is_held());
    assert_eq!(told.load(std::sync::atomic::Ordering::Relaxed), 1, "it is not called again");
    Ok(())
}

/// The downgrade is carried out, and its answer is lost.
#[tokio::test(start_paused = true)]
async fn a_reader_that_may_be_an_ordinary_one_does_not_become_the_writer_beside_others() -> Result<()> {
    let (locks, control) = store();
    let lock = locks.rwlock("x")?;
    let guard = lock.upgradeable_read().await?;
    control.slow(5 * S);
    let failed = guard.downgrade().await.expect_err("no answer in time");
    assert!(failed.error.is_unknown(), "{}", failed.error);
    control.slow(Duration::ZERO);
    let other = control.elsewhere().rwlock("x")?.upgradeable_read().await?;
    let failed = failed.guard.upgrade().await.expect_err("it is an ordinary reader");
    assert!(failed.error.is_unknown(), "{}", failed.error);
    let reader = failed.guard.downgrade().await.expect("a reader stays one");
    assert!(other.try_upgrade().await.expect("an answer").is_err(), "the reader is beside it");
    reader.release().await
}

#[tokio::test(start_paused = true)]
async fn requests_have_their_name_verb_answer_and_time() -> Result<()> {
    let (locks, control) = store();
    let locks = locks.with(|options| options.prefix("app:"))?;
    let _other = control.hold_elsewhere("app:x");
    control.advance(2 * S).await;
    assert!(locks.mutex("x")?.try_lock().await?.is_none());
    let outage = control.outage();
    assert!(locks.mutex("x")?.try_lock().await.is_err());
    drop(outage);
    let requests = control.requests();
    assert_eq!(requests[0].to_string(), "acquire app:x: busy");
    assert_eq!((requests[0].at, requests[1].answer), (2 * S, "not_sent"));
    control.forget_requests();
    locks.cache("user")?.get_or_compute(60 * S, async || Ok::<_, Infallible>("value".to_owned())).await?.ok();
    let verbs: Vec<_> = control.requests().iter().map(|asked| (asked.verb, asked.answer)).collect();
    assert!(verbs.contains(&("read", "read")) && verbs.contains(&("put", "stored")), "{verbs:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_loses_its_lock_is_followed_by_the_next_candidate() -> Result<()> {
    let (locks, control) = store();
    let mut observer = control.elsewhere().election("scheduler", "other")?.observe();
    let term = locks.election("scheduler", "host-1")?.campaign().await?;
    assert!(matches!(observer.next().await?, Change::Elected(leader) if leader.payload == "host-1"));
    let next = control.elsewhere().election("scheduler", "host-2")?;
    let next = tokio::spawn(async move { next.campaign().await });
    tokio::time::sleep(60 * S).await;
    assert!(term.is_current() && !next.is_finished());
    assert!(control.lose("scheduler"));
    assert!(term.lost().await.is_lost());
    assert!(next.await.expect("no panic")?.is_current());
    assert!(matches!(observer.next().await?, Change::Elected(leader) if leader.payload == "host-2"));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn jobs_caches_and_fills_lose_their_lock_by_their_own_name() -> Result<()> {
    let (locks, control) = store();
    let turn = locks.once_per("job", 60 * S)?.try_begin().await?.expect("a free window");
    assert!(control.lose("job"));
    assert!(turn.lost().await.is_lost());

    let user = locks.cache("user")?;
    let compute = async || {
        assert!(control.lose("user"));
        Ok::<_, Infallible>("old".to_owned())
    };
    assert_eq!(user.get_or_compute(60 * S, compute).await?, Ok("old".to_owned()));
    assert_eq!(user.get::<String>().await?, None, "what a lost lock computed is not kept");

    let get = || async { Ok::<_, Infallible>(None::<String>) };
    let compute = async |guard: Option<&Guard>| {
        assert!(control.lose("page"));
        let lost = guard.expect("the store answers").lost().await;
        Ok(if lost.is_lost() { "lost" } else { "released" }.to_owned())
    };
    assert_eq!(locks.fill("page")?.run(get, compute).await?, Ok("lost".to_owned()));
    Ok(())
}

#[test]
#[should_panic(expected = "needs a tokio runtime")]
fn outside_of_a_runtime_it_says_what_is_missing() {
    drop(store());
}

#[tokio::test(start_paused = true)]
async fn a_task_is_not_overtaken_while_its_first_request_is_under_way() -> Result<()> {
    let (locks, control) = store();
    let other = control.hold_elsewhere("x");
    control.slow(S / 2);
    let served = std::sync::Mutex::new(Vec::new());
    // The first is answered at 500 ms and waits; the second is answered at 600 ms, and meanwhile the third comes.
    let tasks = [0, 100, 550].map(async |at| {
        tokio::time::sleep(Duration::from_millis(at)).await;
        let guard = locks.mutex("x")?.lock().await?;
        served.lock().expect("no panic").push(at);
        guard.release().await
    });
    let release = async {
        tokio::time::sleep(3 * S).await;
        drop(other);
    };
    let all = futures_util::future::try_join_all(tasks);
    let (all, ()) = futures_util::future::join(all, release).await;
    all?;
    assert_eq!(*served.lock().expect("no panic"), [0, 100, 550]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_store_begins_at_the_same_time_whenever_a_test_runs() -> Result<()> {
    let (locks, _control) = store();
    let turn = locks.once_per("digest", 3_600 * S)?.try_begin().await?.expect("a free window");
    let begins = turn.window().start.duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    assert_eq!(begins, Duration::from_secs(946_684_800));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_value_that_takes_long_is_computed_again_before_it_expires() -> Result<()> {
    let (locks, _control) = store();
    let cache = locks.cache("rates")?.jitter(0.0).early(1_000.0);
    let compute = async |value: &str| {
        tokio::time::sleep(10 * S).await;
        Ok::<_, Infallible>(value.to_owned())
    };
    assert_eq!(cache.get_or_compute(100 * S, async || compute("first").await).await?, Ok("first".to_owned()));
    tokio::time::sleep(70 * S).await;
    assert_eq!(cache.get_or_compute(100 * S, async || compute("-").await).await?, Ok("first".to_owned()));
    tokio::time::sleep(Duration::from_millis(29_900)).await;
    assert_eq!(cache.get_or_compute(100 * S, async || compute("next").await).await?, Ok("next".to_owned()));
    assert_eq!(cache.get().await?, Some("next".to_owned()));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_refresh_discards_an_older_computation_that_takes_longer_than_the_wait() -> Result<()> {
    for is_elsewhere in [true, false] {
        let (locks, control) = store();
        let cache = locks.cache("rates")?;
        let other = if is_elsewhere { control.elsewhere().cache("rates")? } else { cache.clone() };
        let old = tokio::spawn(async move {
            let compute = async || {
                tokio::time::sleep(60 * S).await;
                Ok::<_, Infallible>("old".to_owned())
            };
            other.get_or_compute(3_600 * S, compute).await
        });
        tokio::time::sleep(S).await;
        let refreshed = cache.refresh(3_600 * S, async || Ok::<_, Infallible>("new".to_owned()));
        assert_eq!(refreshed.await?, Ok("new".to_owned()));
        assert_eq!(old.await.expect("no panic")?, Ok("old".to_owned()));
        assert_eq!(cache.get().await?, Some("new".to_owned()), "elsewhere: {is_elsewhere}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_observer_begins_with_the_leader_that_lives_and_counts_what_it_missed() -> Result<()> {
    let (locks, control) = store();
    let election = locks.election("scheduler", "host-1")?;
    let mut from_the_start = election.observe();
    assert_eq!(from_the_start.try_next().await?, None);
    let mut term = election.campaign().await?;
    for load in 0..300 {
        term.update(&format!("load {load}")).await?;
    }
    // One election and 300 updates, of which 256 changes are kept.
    assert_eq!(from_the_start.try_next().await?, Some(Change::Missed(45)));
    let leads =
        |change| matches!(change, Some(Change::Elected(Leader { payload, .. })) if payload == "load 299");
    assert!(leads(election.observe().try_next().await?));
    assert!(control.lose("scheduler"));
    assert_eq!(election.observe().try_next().await?, None, "the last leader is dead");
    Ok(())
}

/// The store has given it the writer's weight, which keeps other readers out.
#[tokio::test(start_paused = true)]
async fn an_upgrade_that_an_outage_ends_is_unknown() -> Result<()> {
    let (locks, control) = store();
    let _other = control.elsewhere().rwlock("table")?.read().await?;
    let reader = locks.rwlock("table")?.upgradeable_read().await?;
    let upgrading = tokio::spawn(async move { reader.try_upgrade_for(5 * S).await });
    tokio::time::sleep(S).await;
    let _outage = control.outage();
    let failed = upgrading.await.expect("no panic").expect_err("an outage");
    assert!(failed.error.is_unknown() && failed.guard.is_held(), "{}", failed.error);
    Ok(())
}
