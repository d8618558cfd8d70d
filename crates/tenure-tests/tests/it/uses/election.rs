use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{join, pending, select};
use tenure::{Change, Locks, Observer};
use tenure_testkit::servers::Server;
use tenure_testkit::timed::in_time;

use super::{eventually, everywhere, on};

const SECONDS: Duration = Duration::from_secs(10);

async fn next(observer: &mut Observer) -> Change {
    tokio::time::timeout(SECONDS, observer.next()).await.expect("a change comes").expect("an answer")
}

#[test]
fn observers_are_told_of_every_leader_in_order_and_terms_rise() {
    everywhere(|store| {
        async move {
            let (watcher, clients) = (store.client(), [store.client(), store.client(), store.client()]);
            let mut observers = [watcher.election("all", ""), clients[0].election("all", "")]
                .map(|one| one.expect("a name").observe());
            let mut terms = Vec::new();
            let first = clients[0].election("all", "a").expect("a name");
            let zeroth = first.campaign().await.expect("an answer");
            for observer in &mut observers {
                assert!(matches!(next(observer).await, Change::Elected(leader) if leader.payload == "a"));
            }
            zeroth.resign().await.expect("it leads");
            for round in 0..3 {
                for (at, locks) in clients.iter().enumerate() {
                    let election = locks.election("all", format!("{round} {at}\n")).expect("a name");
                    let mut term = election.campaign().await.expect("an answer");
                    assert!(term.is_current() && terms.last().is_none_or(|last| term.fence() > *last));
                    terms.push(term.fence());
                    let leader = first.leader().await.expect("an answer").expect("it leads");
                    assert_eq!((leader.payload, leader.fence), (format!("{round} {at}\n"), term.fence()));
                    term.update("ready").await.expect("it leads");
                    term.resign().await.expect("it leads");
                }
            }
            assert_eq!(first.leader().await.expect("an answer"), None);
            for observer in &mut observers {
                assert!(matches!(next(observer).await, Change::Resigned(leader) if leader.payload == "a"));
                let mut told = Vec::new();
                for term in &terms {
                    for word in ["elected", "updated", "resigned"] {
                        let change = next(observer).await;
                        let (is, fence) = match &change {
                            Change::Elected(leader) => ("elected", leader.fence),
                            Change::Updated(leader) => ("updated", leader.fence),
                            Change::Resigned(leader) => ("resigned", leader.fence),
                            other => panic!("{}: {other:?} after {told:?}", store.name),
                        };
                        assert_eq!((is, fence), (word, *term), "{}: {change:?} after {told:?}", store.name);
                        told.push(change);
                    }
                }
            }
        }
        .boxed()
    });
}

#[test]
fn an_observer_reads_what_is_there_without_waiting() {
    everywhere(|store| {
        async move {
            let (watcher, locks) = (store.client(), store.client());
            let mut observer = watcher.election("now", "").expect("a name").observe();
            assert_eq!(observer.try_next().await.expect("an answer"), None, "{}", store.name);
            let election = locks.election("now", "a").expect("a name");
            election.campaign().await.expect("an answer").resign().await.expect("it leads");
            let mut told = Vec::new();
            while let Some(change) = observer.try_next().await.expect("an answer") {
                told.push(change);
            }
            assert!(
                matches!(told[..], [Change::Elected(_), Change::Resigned(_)]),
                "{}: {told:?}",
                store.name
            );
        }
        .boxed()
    });
}

#[test]
fn a_leader_that_resigns_hands_over_at_once() {
    everywhere(|store| {
        async move {
            let (one, other) = (store.client(), store.client());
            let first = one.election("hand-over", "one").expect("a name");
            let second = other.election("hand-over", "two").expect("a name");
            let term = first.campaign().await.expect("an answer");
            let waits = async {
                let term = second.campaign().await.expect("an answer");
                (term, Instant::now())
            };
            let resigns = async {
                // Time for the other to queue; if it is too short, the other leads a little later.
                tokio::time::sleep(Duration::from_millis(50)).await;
                let (fence, at) = (term.fence(), Instant::now());
                term.resign().await.expect("it leads");
                (fence, at)
            };
            let ((next, elected_at), (fence, resigned_at)) = join(waits, resigns).await;
            let took = elected_at.saturating_duration_since(resigned_at);
            assert!(next.fence() > fence, "{}", store.name);
            in_time(took, Duration::from_secs(2));
        }
        .boxed()
    });
}

#[test]
fn a_dead_leader_is_followed_and_its_late_word_refused() {
    everywhere(|store| {
        async move {
            let short =
                |options: tenure::Options| options.ttl(Duration::from_secs(1)).renewal(tenure::Renewal::Off);
            let (one, other) = (store.client_with(short), store.client());
            let mut stopped =
                one.election("dead", "one").expect("a name").campaign().await.expect("an answer");
            let since = Instant::now();
            let term = other.election("dead", "two").expect("a name").campaign().await.expect("an answer");
            // By then the first has long reported that it does not lead.
            assert!(!stopped.is_current() && term.is_current() && term.fence() > stopped.fence());
            in_time(since.elapsed(), Duration::from_secs(5));
            let leads = other.election("dead", "").expect("a name").leader().await.expect("an answer");
            assert!(stopped.update("late").await.expect_err("it does not lead").is_lost());
            assert_eq!(other.election("dead", "").expect("a name").leader().await.expect("an answer"), leads);
            assert_eq!(leads.expect("the second").payload, "two");
        }
        .boxed()
    });
}

/// With the whole grace of its lease, whatever the server does.
#[test]
fn work_ends_before_another_can_lead() {
    let server = Server::start();
    let short = |options: tenure::Options| options.ttl(Duration::from_millis(900));
    on(async {
        let client = || Locks::open(&server.url()).and_then(|locks| locks.with(short)).expect("a store");
        let (one, other) = (client(), client());
        let leading = Arc::new(AtomicU64::new(0));
        let work = |leading: Arc<AtomicU64>| {
            /// Decrements the count when the work is dropped.
            struct Out(Arc<AtomicU64>);
            impl Drop for Out {
                fn drop(&mut self) {
                    self.0.fetch_sub(1, Ordering::SeqCst);
                }
            }
            async move {
                assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "two lead at once");
                let _out = Out(leading);
                pending::<()>().await;
            }
        };
        let election = one.election("ends", "one").expect("a name");
        let leads = election.lead(async |_| work(Arc::clone(&leading)).await);
        let lost = async {
            let leads_now = || async { leading.load(Ordering::SeqCst) == 1 };
            eventually("a leader", leads_now).await;
            // The server answers no renewal; the lease ends anyway.
            server.stop();
            let ends = || async { leading.load(Ordering::SeqCst) == 0 };
            eventually("the end of the work", ends).await;
            server.cont();
            let election = other.election("ends", "two").expect("a name");
            let next = election.lead(async |_| work(Arc::clone(&leading)).await);
            let seen = async {
                let leads_now = || async { leading.load(Ordering::SeqCst) == 1 };
                eventually("the next leader", leads_now).await;
            };
            select(Box::pin(next), Box::pin(seen)).await;
        };
        let (led, ()) = join(leads, lost).await;
        assert!(led.expect_err("it was lost").is_lost());
    });
}

#[test]
fn what_an_observer_cannot_be_told_is_counted() {
    on(async {
        let locks = Locks::memory();
        let mut observer = locks.election("gap", "").expect("a name").observe();
        let election = locks.election("gap", "x".repeat(4_000)).expect("a name");
        let term = election.campaign().await.expect("an answer");
        assert!(matches!(next(&mut observer).await, Change::Elected(_)));
        term.resign().await.expect("it leads");
        let mut told = 1;
        for _ in 0..20 {
            election.campaign().await.expect("an answer").resign().await.expect("it leads");
        }
        let mut missed = 0;
        while told + missed < 42 {
            match next(&mut observer).await {
                Change::Missed(count) => missed += count,
                Change::Rewritten => panic!("nothing was lost"),
                _ => told += 1,
            }
        }
        assert!(missed > 0 && told + missed == 42, "{told} told and {missed} missed");
        assert!(locks.election("x", "x".repeat(5_000)).expect_err("too long").is_invalid());
    });
}
