//! Jobs that run once per window.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt;
use futures_util::future::{join_all, pending, ready, select};
use tenure::internals::protocol::record::{RecordVerb, Then};
use tenure::internals::store::memory::Memory;
use tenure::internals::store::{Decorator, Failure, StoreFuture, StoreReply, StoreRequest};
use tenure::internals::{Driver, Runtime, Store};
use tenure::{Frees, Locks, Options, Outcome, Period, block_on};
use tenure_testkit::proxy::{Direction, Fault, Proxy};
use tenure_testkit::servers::{Server, eventually};
use tenure_testkit::skewed;
use tokio::sync::Notify;

use super::{everywhere, on};
use crate::common::ms;

/// Its windows are so long that a test rarely meets the end of one.
const LONG: Duration = Duration::from_secs(1_000 * 3_600);
const SOON: Duration = Duration::from_secs(60);

/// Number of runs, by window.
type Runs = Arc<Mutex<BTreeMap<SystemTime, u32>>>;

/// Each client keeps trying until the job has run in this many windows.
async fn ask_all(clients: Vec<Locks>, window: Duration, windows: usize) -> BTreeMap<SystemTime, u32> {
    let (runs, until) = (Runs::default(), Instant::now() + SOON);
    let clients = clients.into_iter().enumerate().map(|(at, locks)| {
        let runs = Arc::clone(&runs);
        tokio::spawn(async move {
            let job = locks.once_per("windows", window).expect("a name");
            while runs.lock().expect("no panic").len() < windows {
                assert!(Instant::now() < until, "{:?}", runs.lock().expect("no panic"));
                let ran = job.run(async |turn| {
                    *runs.lock().expect("no panic").entry(turn.window().start).or_default() += 1;
                    tokio::time::sleep(ms(5)).await;
                    Ok::<_, fmt::Error>(())
                });
                ran.await.expect("an answer");
                tokio::time::sleep(ms(7 + at as u64)).await;
            }
        })
    });
    for client in join_all(clients.collect::<Vec<_>>()).await {
        client.expect("no panic");
    }
    std::mem::take(&mut *runs.lock().expect("no panic"))
}

#[test]
fn a_job_runs_once_in_each_window_whoever_asks() {
    everywhere(|store| {
        async move {
            let clients = (0..5).map(|_| store.client()).collect();
            let runs = ask_all(clients, ms(200), 8).await;
            assert!(runs.values().all(|count| *count == 1), "{}: {runs:?}", store.name);
        }
        .boxed()
    });
}

/// Waits until there were runs in this many windows.
async fn have_run(runs: &Runs, windows: usize) {
    while runs.lock().expect("no panic").len() < windows {
        tokio::time::sleep(ms(20)).await;
    }
}

#[test]
fn schedulers_run_each_window_once_and_one_is_dropped() {
    everywhere(|store| {
        async move {
            let runs = Runs::default();
            let schedulers = (0..3).map(|at| {
                let (locks, runs) = (store.client(), Arc::clone(&runs));
                tokio::spawn(async move {
                    let job = locks.once_per("each", ms(300)).expect("a name");
                    let run = job.run_each_until(have_run(&runs, 7), async |turn| {
                        *runs.lock().expect("no panic").entry(turn.window().start).or_default() += 1;
                        tokio::time::sleep(ms(100)).await;
                        Ok::<_, fmt::Error>(())
                    });
                    match at {
                        0 => drop(select(Box::pin(run), Box::pin(have_run(&runs, 3))).await),
                        _ => run.await.expect("an answer"),
                    }
                })
            });
            let all = join_all(schedulers.collect::<Vec<_>>());
            for scheduler in tokio::time::timeout(SOON, all).await.expect("seven windows") {
                scheduler.expect("no panic");
            }
            let runs = runs.lock().expect("no panic");
            assert!(runs.values().all(|count| *count == 1), "{}: {runs:?}", store.name);
        }
        .boxed()
    });
}

#[test]
fn clocks_that_differ_do_not_run_a_job_twice_in_a_window() {
    let server = Server::start();
    let clients = [-400, -250, 0, 130, 400].map(|by_ms| skewed::client(&server.url(), by_ms, Options::new()));
    let runs = on(ask_all(clients.to_vec(), ms(300), 8));
    assert!(runs.values().all(|count| *count == 1), "{runs:?}");
}

#[test]
fn a_failure_frees_the_window_and_what_is_done_does_not() {
    everywhere(|store| {
        async move {
            let (one, other) = (store.client(), store.client());
            let job = |locks: &Locks, name: &str| locks.once_per(name, LONG).expect("a name");
            let fails = async |_: &tenure::Turn| Err::<(), _>("no disk");
            let works = async |_: &tenure::Turn| Ok::<_, &str>(());
            assert_eq!(job(&one, "frees").last().await.expect("an answer"), None);
            assert_eq!(job(&one, "frees").run(fails).await.expect("an answer"), Some(Err("no disk")));
            let last = job(&other, "frees").last().await.expect("an answer").expect("it ran");
            assert_eq!(last.outcome, Outcome::Failed("no disk".to_owned()));
            assert_eq!(job(&other, "frees").run(works).await.expect("an answer"), Some(Ok(())));
            assert_eq!(job(&one, "frees").run(works).await.expect("an answer"), None);
            let last = job(&one, "frees").last().await.expect("an answer").expect("it ran");
            assert_eq!(last.outcome, Outcome::Done);
            assert!(last.window.contains(&last.begun) && last.fence > 0);

            let kept = job(&one, "kept").frees(Frees::Nothing);
            assert_eq!(kept.run(fails).await.expect("an answer"), Some(Err("no disk")));
            assert_eq!(job(&other, "kept").run(works).await.expect("an answer"), None);
            job(&other, "kept").reset().await.expect("an answer");
            assert_eq!(job(&other, "kept").run(works).await.expect("an answer"), Some(Ok(())));
        }
        .boxed()
    });
}

#[test]
fn a_runner_that_is_gone_is_told_of_and_its_window_opened_only_on_demand() {
    everywhere(|store| {
        async move {
            let (one, other) = (store.client(), store.client());
            let begun = Notify::new();
            let job = one.once_per("gone", LONG).expect("a name");
            let stuck = job.run(async |_| {
                begun.notify_one();
                pending::<Result<(), fmt::Error>>().await
            });
            let looks = async {
                begun.notified().await;
                let job = other.once_per("gone", LONG).expect("a name").frees(Frees::FailureOrLoss);
                let last = job.last().await.expect("an answer").expect("it runs");
                assert_eq!(last.outcome, Outcome::Running);
                let none = job.run(async |_| Ok::<_, fmt::Error>(())).await;
                assert!(none.expect("an answer").is_none(), "{}: it runs", store.name);
            };
            select(Box::pin(stuck), Box::pin(looks)).await;
            one.flush().await.expect("the release is answered");
            let plain = other.once_per("gone", LONG).expect("a name");
            let last = plain.last().await.expect("an answer").expect("it ran");
            assert_eq!(last.outcome, Outcome::Lost);
            let none = plain.run(async |_| Ok::<_, fmt::Error>(())).await.expect("an answer");
            assert!(none.is_none(), "{}: its window is closed", store.name);
            let again = plain.frees(Frees::FailureOrLoss);
            let ran = again.run(async |_| Ok::<_, fmt::Error>(())).await.expect("an answer");
            assert_eq!(ran, Some(Ok(())), "{}", store.name);
        }
        .boxed()
    });
}

#[test]
fn a_reset_takes_the_lock_from_the_job_that_runs() {
    everywhere(|store| {
        async move {
            let (one, other) = (store.client(), store.client());
            let job = one.once_per("reset", LONG).expect("a name");
            let turn = job.try_begin().await.expect("an answer").expect("the first");
            other.once_per("reset", LONG).expect("a name").reset().await.expect("an answer");
            let again = other.once_per("reset", LONG).expect("a name").try_begin().await;
            let again = again.expect("an answer").expect("it was reset");
            assert!(again.fence() > turn.fence());
            assert!(turn.succeed().await.expect_err("another has begun").is_lost(), "{}", store.name);
            again.succeed().await.expect("it has the lock");
        }
        .boxed()
    });
}

#[test]
fn a_run_by_hand_leaves_the_window_closed() {
    everywhere(|store| {
        async move {
            let name = &store.name;
            let (one, other) = (store.client(), store.client());
            let plain = one.once_per("by hand", LONG).expect("a name");
            let retries = plain.clone().frees(Frees::FailureOrLoss);
            let by_hand = other.once_per("by hand", LONG).expect("a name").again(true);
            let works = async |_: &tenure::Turn| Ok::<_, &str>(());
            let outcome = async || plain.last().await.expect("an answer").expect("it ran").outcome;
            assert_eq!(plain.run(works).await.expect("an answer"), Some(Ok(())));
            let done = plain.last().await.expect("an answer").expect("it ran");
            let turn = by_hand.try_begin().await.expect("an answer").expect("it runs again");
            assert_eq!(turn.frees(), Frees::Nothing, "{name}");
            assert!(by_hand.try_begin().await.expect("an answer").is_none(), "{name}: it runs");
            turn.fail("no disk").await.expect("it has the lock");
            assert_eq!(plain.run(works).await.expect("an answer"), None, "{name}");
            let last = plain.last().await.expect("an answer").expect("it ran");
            assert_eq!(last.outcome, Outcome::Failed("no disk".to_owned()));
            assert_eq!((last.window, last.succeeded), (done.window.clone(), done.succeeded), "{name}");
            // A run that is lost does not reopen it either.
            drop(by_hand.try_begin().await.expect("an answer").expect("it runs again"));
            other.flush().await.expect("the release is answered");
            assert_eq!(outcome().await, Outcome::Lost);
            assert_eq!(retries.run(works).await.expect("an answer"), None, "{name}");
            // A shorter period does not reopen the rest of the longer window.
            let short = other.once_per("by hand", Duration::from_secs(1)).expect("a name").again(true);
            assert_eq!(short.run(works).await.expect("an answer"), Some(Ok(())), "{name}");
            let last = plain.last().await.expect("an answer").expect("it ran");
            assert_eq!((last.window, last.outcome), (done.window, Outcome::Done));
            assert!(last.succeeded > done.succeeded, "{name}");
            let job = one.job("by hand").await.expect("an answer").expect("it ran");
            assert_eq!(job.schedule.as_deref(), Period::every(LONG).text().as_deref(), "{name}");

            // An open window stays open if it fails.
            let by_hand = other.once_per("open", LONG).expect("a name").again(true);
            let ran = by_hand.run(async |_| Err::<(), _>("no disk")).await.expect("an answer");
            assert_eq!(ran, Some(Err("no disk")), "{name}");
            let plain = one.once_per("open", LONG).expect("a name");
            assert_eq!(plain.run(works).await.expect("an answer"), Some(Ok(())), "{name}");
        }
        .boxed()
    });
}

#[test]
fn a_job_begins_only_where_its_window_is_open() {
    everywhere(|store| {
        async move {
            let locks = store.client();
            // Windows that began an hour ago.
            let window = |now: SystemTime| now - LONG..now + LONG;
            let job =
                |open_for| locks.once_per("open", Period::new(window).open_for(open_for)).expect("a name");
            let ran = job(LONG / 2).run(async |_| Ok::<_, fmt::Error>(())).await.expect("an answer");
            assert!(ran.is_none(), "{}", store.name);
            let ran = job(2 * LONG).run(async |_| Ok::<_, fmt::Error>(())).await.expect("an answer");
            assert!(ran.is_some(), "{}", store.name);
            let wrong = locks.once_per("wrong", ms(1)).expect("a name");
            let error = wrong.run(async |_| Ok::<_, fmt::Error>(())).await.expect_err("too short");
            assert!(error.is_invalid() && error.to_string().contains("10ms"), "{error}");
        }
        .boxed()
    });
}

/// By the store's clock, a scheduler may ask a moment before the window.
#[test]
fn a_job_that_asks_just_before_its_window_waits_for_it_whatever_became_of_the_last() {
    everywhere(|store| {
        async move {
            const LENGTH: Duration = Duration::from_secs(40);
            let asks = ["none", "failed", "missed", "open"].map(async |last| {
                let locks = store.client();
                let now =
                    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time after 1970");
                let begins = SystemTime::UNIX_EPOCH + ms(now.as_millis() as u64 + 1_500);
                let window = move |now: SystemTime| match now < begins {
                    true => begins - LENGTH..begins,
                    false => begins..begins + LENGTH,
                };
                let period = |open_for| Period::new(window).open_for(open_for);
                let job =
                    |open_for| locks.once_per(format!("early {last}"), period(open_for)).expect("a name");
                if last == "failed" {
                    let by_hand = job(LENGTH).again(true);
                    let ran = by_hand.run(async |_| Err::<(), _>("no disk")).await.expect("an answer");
                    assert_eq!(ran, Some(Err("no disk")), "{}", store.name);
                }
                let open_for = if last == "open" { LENGTH } else { LENGTH / 2 };
                let turn = job(open_for).try_begin().await.expect("an answer");
                let turn = turn.unwrap_or_else(|| panic!("{}: {last}", store.name));
                assert_eq!(turn.window().start, begins, "{}: {last}", store.name);
                turn.succeed().await.expect("it has the lock");
            });
            join_all(asks).await;
        }
        .boxed()
    });
}

#[test]
fn a_lost_run_is_not_retried_where_its_window_is_not_open() {
    everywhere(|store| {
        async move {
            let (one, other) = (store.client(), store.client());
            let window = |now: SystemTime| now - LONG..now + LONG;
            let begun = SystemTime::now();
            let fixed = move |_: SystemTime| begun - LONG..begun + LONG;
            let job = one.once_per("lost", Period::new(window)).expect("a name");
            drop(job.try_begin().await.expect("an answer").expect("it begins"));
            one.flush().await.expect("the release is answered");
            let late = other.once_per("lost", Period::new(fixed).open_for(LONG / 2)).expect("a name");
            let late = late.frees(Frees::FailureOrLoss);
            assert!(late.try_begin().await.expect("an answer").is_none(), "{}", store.name);
            let acquired: u64 = other.metrics().locks.iter().map(|lock| lock.acquired).sum();
            assert_eq!(acquired, 0, "{}: it took the lock in vain", store.name);
        }
        .boxed()
    });
}

#[test]
fn a_server_whose_clock_steps_back_runs_nothing_twice_and_says_what_to_do() {
    let server = Server::with_clock();
    let now_us = 1_800_000_000_000_000;
    server.clock().freeze_us(now_us);
    on(async {
        let run = async || {
            // The clock is read when a connection is opened.
            let locks = Locks::open(&server.url()).expect("a URL");
            let job = locks.once_per("clock", Duration::from_secs(60)).expect("a name");
            job.run(async |_| Ok::<_, fmt::Error>(())).await
        };
        assert_eq!(run().await.expect("an answer"), Some(Ok(())));
        server.clock().freeze_us(now_us - 50_000_000);
        assert_eq!(run().await.expect("an answer"), None);
        server.clock().freeze_us(now_us - 3_600_000_000);
        let error = run().await.expect_err("far ahead");
        assert!(error.is_refused() && error.to_string().contains("--again"), "{error}");
        server.clock().freeze_us(now_us + 60_000_000);
        assert_eq!(run().await.expect("an answer"), Some(Ok(())));
        // A run by hand replaces a record that lies far ahead, or cannot be read.
        let key = "tenure:rec:once:{clock}";
        server.clock().freeze_us(now_us - 3_600_000_000);
        for unreadable in [false, true] {
            if unreadable {
                server.command(&["SET", key, "1 another version"]);
            }
            assert!(run().await.expect_err("no record to go by").is_refused());
            let locks = Locks::open(&server.url()).expect("a URL");
            let job = locks.once_per("clock", Duration::from_secs(60)).expect("a name");
            let ran = job.again(true).run(async |_| Ok::<_, fmt::Error>(())).await;
            assert_eq!(ran.expect("an answer"), Some(Ok(())));
            assert_eq!(run().await.expect("an answer"), None);
        }
    });
}

/// A store that answers the end of a run in its own way.
#[derive(Debug)]
struct AtEnd {
    memory: Memory,
    /// Ends to leave unanswered before one is carried out.
    silent: Mutex<u32>,
}

impl Decorator for AtEnd {
    fn inner(&self) -> &dyn Store {
        &self.memory
    }

    fn call(&self, request: StoreRequest, within: Duration) -> StoreFuture<StoreReply> {
        let is_end = matches!(&request, StoreRequest::Record(op)
            if matches!(&op.verb, RecordVerb::Put(put) if put.then == Then::Release));
        if !is_end {
            return self.memory.call(request, within);
        }
        let mut silent = self.silent.lock().expect("no panic");
        if *silent > 0 {
            *silent -= 1;
            return ready(Err(Failure::NotSent(Failure::cause("no connection")))).boxed();
        }
        let ended = self.memory.call(request, within);
        // Makes the holder verify its lock before it gets the answer.
        let signals = self.memory.signals().clone();
        async move {
            let ended = ended.await;
            signals.interrupt();
            tokio::time::sleep(ms(200)).await;
            ended
        }
        .boxed()
    }
}

fn ending(silent: u32, ttl: Duration) -> Locks {
    let runtime = Driver::start().expect("a thread") as Arc<dyn Runtime>;
    let memory = Memory::new(Arc::clone(&runtime), "memory:end");
    let store = AtEnd { memory, silent: Mutex::new(silent) };
    tenure::internals::locks(Arc::new(store), runtime, Options::new().ttl(ttl)).expect("options")
}

#[test]
fn a_hold_that_is_being_ended_reports_no_loss() {
    on(async {
        let job = ending(0, LONG).once_per("end", LONG).expect("a name");
        let turn = job.try_begin().await.expect("an answer").expect("the first");
        let lost = turn.lost();
        turn.succeed().await.expect("it has the lock");
        assert!(!lost.await.is_lost());
    });
}

#[test]
fn a_result_is_stored_when_the_store_answers_again() {
    on(async {
        let job = ending(3, LONG).once_per("end", LONG).expect("a name");
        let turn = job.try_begin().await.expect("an answer").expect("the first");
        turn.succeed().await.expect("the fourth attempt is answered");
        assert_eq!(job.last().await.expect("an answer").expect("it ran").outcome, Outcome::Done);
    });
}

#[test]
fn a_result_that_stays_unstored_is_an_error_of_the_turn_and_not_of_the_run() {
    on(async {
        let locks = ending(u32::MAX, ms(300));
        let job = locks.once_per("end", LONG).expect("a name").frees(Frees::FailureOrLoss);
        let turn = job.try_begin().await.expect("an answer").expect("the first");
        let error = turn.succeed().await.expect_err("never stored");
        assert!(error.is_unreachable(), "{error}");
        locks.flush().await.expect("the release is answered");
        let ran = job.run(async |_| Ok::<_, fmt::Error>(7)).await.expect("the caller gets the result");
        assert_eq!(ran, Some(Ok(7)));
    });
}

/// Its record says that the run began, which would close the window in which nothing has run.
#[test]
fn a_beginning_without_an_answer_does_not_close_its_window() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let [through, direct] = [proxy.url(), server.url()].map(|url| {
        let locks = Locks::open(&url).expect("a store").with(|options| options.op_timeout(ms(800)));
        let [before, job] = ["before", "nightly"]
            .map(|name| locks.as_ref().expect("options").once_per(name, LONG).expect("a name"));
        // Connected, and with its scripts.
        let _ = block_on(before.run(async |_| Ok::<_, fmt::Error>(()))).expect("an answer");
        job
    });
    proxy.set(Fault::Delay(ms(50)));
    let begins = std::thread::spawn(move || block_on(through.try_begin()));
    eventually("its beginning is stored", SOON, || block_on(direct.last()).is_ok_and(|last| last.is_some()));
    proxy.set(Fault::Hold(Direction::ToClient));
    // Longer than the request, and the read that looks whether it was stored.
    std::thread::sleep(ms(2_500));
    proxy.set(Fault::None);
    assert!(begins.join().expect("no panic").expect_err("no answer").is_unknown());
    let turn = block_on(direct.try_begin()).expect("an answer");
    assert!(turn.is_some(), "{:?}", block_on(direct.last()));
}
