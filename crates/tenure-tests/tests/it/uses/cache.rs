//! The cache guard.

use std::fmt::Error as Failed;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{Either, join, join_all, pending, select};
use tenure::{Entry, Locks, Outage, Overdue};
use tenure_testkit::servers::{Cluster, Server};
use tenure_testkit::timed::in_time;
use tokio::sync::{Notify, Semaphore};

use super::{eventually, on, where_values_are_kept};
use crate::common::ms;

const MINUTE: Duration = Duration::from_secs(60);

/// A computation that can be observed and held up.
#[derive(Clone, Default)]
struct Work {
    begun: Arc<AtomicU64>,
    at_once: Arc<AtomicU64>,
    most_at_once: Arc<AtomicU64>,
}

impl Work {
    async fn take(&self, time: Duration) -> Result<String, Failed> {
        let begun = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let at_once = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(at_once, Ordering::SeqCst);
        tokio::time::sleep(time).await;
        self.at_once.fetch_sub(1, Ordering::SeqCst);
        Ok(format!("value {begun}"))
    }

    fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }
}

#[test]
fn a_crowd_on_a_cold_name_computes_once_and_all_get_the_result_at_once() {
    where_values_are_kept(|store| {
        async move {
            let clients: Vec<_> = (0..4).map(|_| store.client()).collect();
            let work = Work::default();
            let since = Instant::now();
            let readers = (0..200).map(|reader| {
                let (locks, work) = (clients[reader % 4].clone(), work.clone());
                tokio::spawn(async move {
                    let cache = locks.cache("crowd")?;
                    cache.get_or_compute(MINUTE, async || work.take(ms(200)).await).await
                })
            });
            for value in join_all(readers.collect::<Vec<_>>()).await {
                assert_eq!(value.expect("no panic").expect("an answer"), Ok("value 1".to_owned()));
            }
            let took = since.elapsed();
            assert_eq!(work.begun(), 1, "{}", store.name);
            in_time(took, ms(5_000));
        }
        .boxed()
    });
}

#[test]
fn at_each_expiry_one_caller_computes() {
    where_values_are_kept(|store| {
        async move {
            let clients: Vec<_> = (0..3).map(|_| store.client()).collect();
            let work = Work::default();
            let started = Instant::now();
            let until = started + ms(2_500);
            let readers = (0..60).map(|reader| {
                let (locks, work) = (clients[reader % 3].clone(), work.clone());
                tokio::spawn(async move {
                    let cache = locks.cache("expiry").expect("a name").jitter(0.0).early(0.0);
                    let mut last = String::new();
                    while Instant::now() < until {
                        let value = cache.get_or_compute(ms(500), async || work.take(ms(50)).await).await;
                        last = value.expect("an answer").expect("a value");
                        tokio::time::sleep(ms(10)).await;
                    }
                    last
                })
            });
            join_all(readers.collect::<Vec<_>>()).await;
            let begun = work.begun();
            // A ttl and a computation take 550 ms.
            let most = 1 + started.elapsed().as_millis().div_ceil(550) as u64;
            assert!((3..=most).contains(&begun), "{}: computed {begun} times", store.name);
            assert_eq!(work.most_at_once.load(Ordering::SeqCst), 1, "{}", store.name);
        }
        .boxed()
    });
}

/// The URL of a user with these rights, who may use every channel.
fn url_of_user(server: &Server, rights: &[&str]) -> String {
    let user = [&["ACL", "SETUSER", "app", "on", ">pw", "&*"][..], rights].concat();
    assert_eq!(server.command(&user), "OK");
    server.url().replace("redis://", "redis://app:pw@")
}

/// Without messages they poll, which is not an outage, in which each process computes.
#[test]
fn callers_that_may_not_subscribe_wait_for_the_one_that_computes() {
    let server = Server::start();
    let url = url_of_user(&server, &["~*", "+@all", "-subscribe"]);
    on(async {
        let clients = [(); 3].map(|()| Locks::open(&url).expect("a store"));
        let work = Work::default();
        let cached = clients.iter().map(|locks| async {
            let cache = locks.cache("polls")?;
            cache.get_or_compute(MINUTE, async || work.take(ms(700)).await).await
        });
        for value in join_all(cached).await {
            assert_eq!(value.expect("an answer"), Ok("value 1".to_owned()));
        }
        let filled = clients.iter().map(|locks| async {
            let get = || async { Ok::<_, Failed>(None::<String>) };
            let fill = locks.fill("polls")?;
            fill.run(get, async |guard| guard.map_or(Err(Failed), |_| Ok(())).and(work.take(ms(100)).await))
                .await
        });
        for value in join_all(filled).await {
            assert!(value.expect("an answer").is_ok(), "one computed without the lock");
        }
        assert_eq!(work.most_at_once.load(Ordering::SeqCst), 1);
    });
}

/// The user has no rights on one of the names.
#[test]
fn a_refusal_about_one_name_is_no_outage_for_the_others() {
    let server = Server::start();
    let url = url_of_user(&server, &["~*good*", "~tenure:fence", "+@all"]);
    on(async {
        let locks = Locks::open(&url).expect("a store");
        let value = async || Ok::<_, Failed>("alone".to_owned());
        let refused = locks.cache("bad").expect("a name").get_or_compute(MINUTE, value).await;
        assert_eq!(refused.expect("an outage"), Ok("alone".to_owned()));
        let kept = async || Ok::<_, Failed>("kept".to_owned());
        let good = locks.cache("good").expect("a name");
        assert_eq!(good.get_or_compute(MINUTE, kept).await.expect("an answer"), Ok("kept".to_owned()));
        assert_eq!(good.get().await.expect("an answer"), Some("kept".to_owned()));
    });
}

#[test]
fn a_stale_value_is_returned_at_once_while_one_caller_computes() {
    where_values_are_kept(|store| {
        async move {
            let (one, other) = (store.client(), store.client());
            let cache = |locks: &Locks| locks.cache("stale").expect("a name").stale(MINUTE).jitter(0.0);
            let refresher = cache(&one);
            let first = refresher.get_or_compute(ms(1), async || Ok::<_, Failed>("old".to_owned()));
            assert_eq!(first.await.expect("an answer"), Ok("old".to_owned()));
            // By the client's estimate of the server's clock, too.
            tokio::time::sleep(ms(50)).await;
            let (go, begun) = (Semaphore::new(0), Notify::new());
            let refreshes = refresher.get_or_compute(MINUTE, async || {
                begun.notify_one();
                let _permit = go.acquire().await.expect("it is open");
                Ok::<_, Failed>("new".to_owned())
            });
            let others = async {
                begun.notified().await;
                for locks in [&one, &other, &one, &other] {
                    let none = async || -> Result<String, Failed> { panic!("one computes already") };
                    let value = cache(locks).get_or_compute(MINUTE, none).await;
                    assert_eq!(value.expect("an answer"), Ok("old".to_owned()));
                }
                go.add_permits(1);
            };
            let (refreshed, ()) = join(refreshes, others).await;
            assert_eq!(refreshed.expect("an answer"), Ok("new".to_owned()));
            assert_eq!(cache(&other).get().await.expect("an answer"), Some("new".to_owned()));
        }
        .boxed()
    });
}

#[test]
fn a_value_that_was_computed_before_an_invalidation_is_not_kept() {
    where_values_are_kept(|store| {
        async move {
            let (one, other) = (store.client(), store.client());
            let (go, begun) = (Semaphore::new(0), Notify::new());
            let slow = one.cache("late").expect("a name");
            let computes = slow.get_or_compute(MINUTE, async || {
                begun.notify_one();
                let _permit = go.acquire().await.expect("it is open");
                Ok::<_, Failed>("before".to_owned())
            });
            let invalidates = async {
                begun.notified().await;
                let cache = other.cache("late").expect("a name");
                cache.invalidate().await.expect("an answer");
                let value = cache.get_or_compute(MINUTE, async || Ok::<_, Failed>("after".to_owned()));
                assert_eq!(value.await.expect("an answer"), Ok("after".to_owned()), "{}", store.name);
                go.add_permits(1);
            };
            let (computed, ()) = join(computes, invalidates).await;
            // Its own caller gets it, and no other.
            assert_eq!(computed.expect("an answer"), Ok("before".to_owned()));
            assert_eq!(slow.get().await.expect("an answer"), Some("after".to_owned()), "{}", store.name);
        }
        .boxed()
    });
}

#[test]
fn who_is_dropped_or_fails_while_computing_leaves_the_turn_to_the_next_at_once() {
    where_values_are_kept(|store| {
        async move {
            let locks = store.client();
            let cache = locks.cache("dropped").expect("a name");
            let begun = Notify::new();
            let stuck = cache.get_or_compute(MINUTE, async || {
                begun.notify_one();
                pending::<Result<String, Failed>>().await
            });
            let stuck = Box::pin(stuck);
            let stuck = match select(stuck, Box::pin(begun.notified())).await {
                Either::Left(_) => panic!("it waits for ever"),
                Either::Right((_, stuck)) => stuck,
            };
            let since = Instant::now();
            drop(stuck);
            let fails = cache.get_or_compute(MINUTE, async || Err::<String, _>(Failed)).await;
            assert_eq!(fails.expect("an answer"), Err(Failed));
            let value = cache.get_or_compute(MINUTE, async || Ok::<_, Failed>("there".to_owned())).await;
            assert_eq!(value.expect("an answer"), Ok("there".to_owned()));
            in_time(since.elapsed(), ms(5_000));
        }
        .boxed()
    });
}

#[test]
fn who_waits_longer_than_stated_computes_or_fails() {
    where_values_are_kept(|store| {
        async move {
            let (one, other) = (store.client(), store.client());
            let begun = Notify::new();
            let slow = one.cache("slow").expect("a name");
            let stuck = slow.get_or_compute(MINUTE, async || {
                begun.notify_one();
                pending::<Result<String, Failed>>().await
            });
            let waits = async {
                begun.notified().await;
                for locks in [&one, &other] {
                    let cache = locks.cache("slow").expect("a name").wait(ms(100));
                    let since = Instant::now();
                    let value = cache.get_or_compute(MINUTE, async || Ok::<_, Failed>("own".to_owned()));
                    assert_eq!(value.await.expect("an answer"), Ok("own".to_owned()));
                    let fails = cache.overdue(Overdue::Fail);
                    let none = async || -> Result<String, Failed> { panic!("it fails instead") };
                    let error = fails.get_or_compute(MINUTE, none).await.expect_err("it is late");
                    assert!(error.is_overdue(), "{error:?}");
                    in_time(since.elapsed(), ms(5_000));
                }
            };
            select(Box::pin(stuck), Box::pin(waits)).await;
        }
        .boxed()
    });
}

#[test]
fn absent_and_too_large_values_are_told_from_missing_ones() {
    where_values_are_kept(|store| {
        async move {
            let (one, other) = (store.client(), store.client());
            let absent = async || Ok::<_, Failed>(Entry::<String>::absent(MINUTE));
            assert_eq!(
                one.cache("none").expect("a name").get_or_fill(absent).await.expect("an answer"),
                Ok(None)
            );
            let never = async || -> Result<Entry<String>, Failed> { panic!("it is known to be absent") };
            assert_eq!(
                other.cache("none").expect("a name").get_or_fill(never).await.expect("an answer"),
                Ok(None)
            );

            let large = |locks: &Locks| locks.cache("large").expect("a name").max_bytes(3);
            for locks in [&one, &other] {
                let cache = large(locks);
                let value = cache.get_or_compute(MINUTE, async || Ok::<_, Failed>("four".to_owned()));
                assert_eq!(value.await.expect("an answer"), Ok("four".to_owned()));
                assert_eq!(cache.get::<String>().await.expect("an answer"), None);
            }
            // With another type.
            assert_eq!(one.cache("none").expect("a name").get::<Vec<u8>>().await.expect("an answer"), None);
        }
        .boxed()
    });
}

#[test]
fn a_refresh_does_not_take_what_was_begun_before_it() {
    where_values_are_kept(|store| {
        async move {
            let locks = store.client();
            let cache = locks.cache("refresh").expect("a name");
            let (go, begun) = (Semaphore::new(0), Notify::new());
            let computes = cache.get_or_compute(MINUTE, async || {
                begun.notify_one();
                let _permit = go.acquire().await.expect("it is open");
                Ok::<_, Failed>("before".to_owned())
            });
            let refreshes = async {
                begun.notified().await;
                let refreshed = cache.refresh(MINUTE, async || Ok::<_, Failed>("after".to_owned()));
                let lets_go = async { go.add_permits(1) };
                join(refreshed, lets_go).await.0
            };
            let (before, after) = join(computes, refreshes).await;
            assert_eq!(before.expect("an answer"), Ok("before".to_owned()));
            assert_eq!(after.expect("an answer"), Ok("after".to_owned()));
            assert_eq!(cache.get().await.expect("an answer"), Some("after".to_owned()));
        }
        .boxed()
    });
}

#[test]
fn a_task_refreshes_what_is_stale() {
    where_values_are_kept(|store| {
        async move {
            let locks = store.client();
            let cache = locks.cache("spawned").expect("a name").stale(MINUTE).jitter(0.0);
            let old = || async { Ok::<_, Failed>("old".to_owned()) };
            assert_eq!(cache.get_or_spawn(ms(1), old).await.expect("an answer"), Ok("old".to_owned()));
            tokio::time::sleep(ms(50)).await;
            let new = || async { Ok::<_, Failed>("new".to_owned()) };
            assert_eq!(cache.get_or_spawn(MINUTE, new).await.expect("an answer"), Ok("old".to_owned()));
            let is_new =
                || async { cache.get::<String>().await.expect("an answer").as_deref() == Some("new") };
            eventually("the new value", is_new).await;
        }
        .boxed()
    });
}

#[test]
fn without_its_store_a_cache_computes_or_fails_and_returns_without_a_stampede() {
    let server = Server::start();
    on(async {
        let locks = Locks::open(&server.url()).expect("a URL");
        let cache = locks.cache("outage").expect("a name").jitter(0.0).early(0.0);
        let value = cache.get_or_compute(MINUTE, async || Ok::<_, Failed>("kept".to_owned())).await;
        assert_eq!(value.expect("an answer"), Ok("kept".to_owned()));
        server.kill();
        let work = Work::default();
        let since = Instant::now();
        let readers = (0..100).map(|_| {
            let (cache, work) = (cache.clone(), work.clone());
            tokio::spawn(async move { cache.get_or_compute(MINUTE, async || work.take(ms(50)).await).await })
        });
        for value in join_all(readers.collect::<Vec<_>>()).await {
            value.expect("no panic").expect("it computes").expect("a value");
        }
        // The first waits for the store, the others for the first; then they compute in turn.
        assert_eq!(work.most_at_once.load(Ordering::SeqCst), 1);
        in_time(since.elapsed(), ms(20_000));
        let fails = cache.clone().outage(Outage::Fail);
        let none = async || -> Result<String, Failed> { panic!("it fails instead") };
        let since = Instant::now();
        assert!(fails.get_or_compute(MINUTE, none).await.expect_err("an outage").is_unreachable());
        in_time(since.elapsed(), ms(5_000));

        server.restart();
        let back = || async { locks.ping().await.is_ok() && cache.get::<String>().await.is_ok() };
        eventually("the store", back).await;
        let work = Work::default();
        let readers = (0..100).map(|_| {
            let (cache, work) = (cache.clone(), work.clone());
            tokio::spawn(async move { cache.get_or_compute(MINUTE, async || work.take(ms(50)).await).await })
        });
        for value in join_all(readers.collect::<Vec<_>>()).await {
            assert_eq!(value.expect("no panic").expect("an answer"), Ok("value 1".to_owned()));
        }
        assert_eq!(work.begun(), 1);
    });
}

#[test]
fn processes_whose_readers_never_rest_notice_that_their_store_is_back() {
    let server = Server::start();
    on(async {
        let (work, is_over) = (Work::default(), Arc::new(AtomicU64::new(0)));
        let readers = (0..4).flat_map(|_| {
            let locks = Locks::open(&server.url()).expect("a URL");
            let (work, is_over) = (work.clone(), Arc::clone(&is_over));
            (0..50).map(move |_| {
                let cache = locks.cache("back").expect("a name").jitter(0.0).early(0.0);
                let (work, is_over) = (work.clone(), Arc::clone(&is_over));
                tokio::spawn(async move {
                    // A fifth of the time for which a silent store is skipped.
                    while is_over.load(Ordering::SeqCst) == 0 {
                        let value = cache.get_or_compute(ms(1_000), async || work.take(ms(200)).await).await;
                        assert!(!value.is_err_and(|error| !error.is_overdue()), "an outage is no error");
                        tokio::time::sleep(ms(150)).await;
                    }
                })
            })
        });
        let readers = readers.collect::<Vec<_>>();
        eventually("a value", || async { work.begun() > 0 }).await;
        server.stop();
        tokio::time::sleep(ms(5_000)).await;
        server.cont();
        // Two seconds yield two values with the store, and ten per client without it.
        let settles = || async {
            let before = work.begun();
            tokio::time::sleep(ms(2_000)).await;
            work.begun() - before <= 4
        };
        eventually("one computation at each expiry", settles).await;
        is_over.store(1, Ordering::SeqCst);
        for reader in join_all(readers).await {
            reader.expect("no panic");
        }
    });
}

#[test]
fn one_silent_node_of_a_cluster_says_nothing_of_the_others() {
    let cluster = Cluster::start().calm();
    on(async {
        let locks = Locks::open(&cluster.url()).expect("a URL");
        let caches = [0, 1].map(|node| locks.cache(cluster.key_at(node, "v")).expect("a name"));
        for cache in &caches {
            let filled = cache.get_or_compute(MINUTE, async || Ok::<_, Failed>("kept".to_owned())).await;
            assert_eq!(filled.expect("an answer").expect("a value"), "kept");
        }
        cluster.nodes()[0].stop();
        let silent = caches[0].get::<String>().await.expect_err("no answer");
        assert!(silent.is_unreachable() || silent.is_unknown(), "{silent}");
        let lately = caches[0].get::<String>().await.expect_err("no answer a moment ago");
        assert!(lately.to_string().contains("a moment ago"), "{lately}");
        assert_eq!(caches[1].get::<String>().await.expect("an answer").as_deref(), Some("kept"));
        cluster.nodes()[0].cont();
    });
}

#[test]
fn what_cannot_keep_records_refuses_caches_with_the_reason() {
    on(async {
        let quorum = Locks::quorum([Locks::memory(), Locks::memory(), Locks::memory()]).expect("members");
        let error = quorum.cache("x").expect_err("a quorum");
        assert!(error.is_unsupported() && error.to_string().contains("quorum"), "{error}");

        let server = Server::start();
        server.command(&["ACL", "SETUSER", "noscript", "on", ">secret", "~*", "&*", "+@all", "-@scripting"]);
        let url = server.url().replace("redis://", "redis://noscript:secret@");
        let locks = Locks::open(&url).and_then(|locks| locks.with(|options| options.unfenced(true)));
        let cache = locks.expect("a store").cache("x").expect("a name");
        let computed = cache.get_or_compute(MINUTE, async || Ok::<_, Failed>("x".to_owned())).await;
        let error = computed.expect_err("no scripts");
        assert!(error.is_unsupported() && error.to_string().contains("script"), "{error}");
    });
}

#[test]
fn options_that_cannot_be_right_are_refused() {
    on(async {
        let cache = Locks::memory().cache("x").expect("a name");
        for wrong in [
            cache.clone().jitter(1.5),
            cache.clone().early(-1.0),
            cache.clone().early(f64::NAN),
            cache.clone().max_bytes(usize::MAX),
            cache.clone().wait(Duration::MAX),
            cache.clone().stale(Duration::MAX),
        ] {
            let error = wrong.get::<String>().await.expect_err("options");
            assert!(error.is_invalid() && error.to_string().contains("got"), "{error}");
        }
        let none = cache.get_or_compute(Duration::ZERO, async || Ok::<_, Failed>("x".to_owned())).await;
        assert!(none.expect_err("a ttl").is_invalid());
    });
}

#[test]
fn etcd_and_zookeeper_refuse_caches_and_name_the_alternative() {
    for url in ["etcd://127.0.0.1:1", "zookeeper://127.0.0.1:1"] {
        let error = Locks::open(url).and_then(|locks| locks.cache("x")).expect_err("no cache");
        assert!(error.is_unsupported() && error.to_string().contains("use `fill`"), "{error}");
    }
}
