//! Thousands of leases that one process renews on a server too slow for that.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, FutureExt, join_all, select};
use tenure::Options;
use tenure::internals::protocol::Verb;
use tenure::internals::store::memory::Memory;
use tenure::internals::store::{Decorator, Failure, StoreFuture, StoreReply, StoreRequest};
use tenure::internals::{Moment, Runtime, Store};
use tenure_testkit::sim::chooser::Chooser;
use tenure_testkit::sim::clock::{Clock, SECOND};
use tenure_testkit::sim::executor::Sim;
use tokio::sync::oneshot;

const HOLDS: usize = 3_000;
const TTL: Duration = Duration::from_secs(2);
/// All are due every third of a lease, and renewing them takes longer than that.
const SERVICE: Duration = Duration::from_micros(300);

/// A server that executes one request after the other.
#[derive(Clone)]
struct Busy(Arc<Inner>);

struct Inner {
    kept: Memory,
    runtime: Arc<dyn Runtime>,
    free_at: Mutex<Moment>,
    renewals: AtomicUsize,
    /// Renewals queued at the server, and the maximum of that.
    waiting: AtomicUsize,
    most: AtomicUsize,
}

impl Busy {
    fn new(runtime: &Arc<dyn Runtime>) -> Self {
        Self(Arc::new(Inner {
            kept: Memory::new(Arc::clone(runtime), "busy:"),
            runtime: Arc::clone(runtime),
            free_at: Mutex::new(Moment(0)),
            renewals: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        }))
    }

    /// Makes the engine verify all holds.
    fn interrupt(&self) {
        self.0.kept.signals().interrupt();
    }
}

impl Decorator for Busy {
    fn inner(&self) -> &dyn Store {
        &self.0.kept
    }

    fn call(&self, request: StoreRequest, within: Duration) -> StoreFuture<StoreReply> {
        let inner = Arc::clone(&self.0);
        async move {
            let turn = {
                let mut free_at = inner.free_at.lock().expect("no panic");
                *free_at = (*free_at).max(inner.runtime.now()) + SERVICE;
                *free_at
            };
            let renews = matches!(&request, StoreRequest::Lock(op) if matches!(op.verb, Verb::Renew { .. }));
            if renews {
                inner.renewals.fetch_add(1, Ordering::Relaxed);
                let waiting = inner.waiting.fetch_add(1, Ordering::Relaxed) + 1;
                inner.most.fetch_max(waiting, Ordering::Relaxed);
            }
            // It takes the server's time even if the caller has timed out.
            let (server, (answer, answered)) = (Arc::clone(&inner), oneshot::channel());
            inner.runtime.spawn(
                async move {
                    server.runtime.sleep_until(turn).await;
                    if renews {
                        server.waiting.fetch_sub(1, Ordering::Relaxed);
                    }
                    let _ = answer.send(server.kept.call(request, SERVICE).await);
                }
                .boxed(),
            );
            let late = inner.runtime.sleep_until(inner.runtime.now() + within);
            match select(answered, late).await {
                Either::Left((answer, _)) => answer.expect("the server answers"),
                Either::Right(_) => Err(Failure::Unknown(Failure::cause("no answer in time"))),
            }
        }
        .boxed()
    }
}

impl fmt::Debug for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Busy").finish_non_exhaustive()
    }
}

#[test]
fn thousands_of_leases_live_on_a_server_that_is_too_slow_to_renew_all_at_once() {
    let sim = Sim::new(Chooser::seeded(1));
    let runtime = sim.process(Clock::default(), 1) as Arc<dyn Runtime>;
    let store = Busy::new(&runtime);
    let options = Options::new().ttl(TTL);
    let locks =
        tenure::internals::locks(Arc::new(store.clone()), Arc::clone(&runtime), options).expect("options");
    let checked = Arc::new(AtomicUsize::new(0));
    let (seen, told) = (Arc::clone(&checked), store.clone());
    runtime.spawn(
        {
            let runtime = Arc::clone(&runtime);
            async move {
                let mut guards = Vec::new();
                for first in (0..HOLDS).step_by(50) {
                    let names = (first..first + 50).map(|number| format!("hold:{number}"));
                    let locks: Vec<_> = names.map(|name| locks.mutex(&name).expect("a name")).collect();
                    let granted = join_all(locks.iter().map(|lock| lock.lock())).await;
                    guards.extend(granted.into_iter().map(|guard| guard.expect("a free lock")));
                }
                for second in 0..20 {
                    runtime.sleep_until(runtime.now() + Duration::from_secs(1)).await;
                    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
                    assert_eq!(lost, 0, "after {second} s");
                    if second % 5 == 4 {
                        told.interrupt();
                    }
                }
                seen.store(guards.len(), Ordering::Relaxed);
                // A few at a time, because the executor limits the work of one poll.
                while !guards.is_empty() {
                    guards.truncate(guards.len() - 50);
                    runtime.sleep_until(runtime.now() + 50 * SERVICE).await;
                }
            }
        }
        .boxed(),
    );
    sim.run(40 * SECOND, 50_000_000);
    let inner = &store.0;
    let (renewals, most) = (inner.renewals.load(Ordering::Relaxed), inner.most.load(Ordering::Relaxed));
    println!("{renewals} renewals, at most {most} of them waited at the server at once");
    assert_eq!(checked.load(Ordering::Relaxed), HOLDS, "it was played to its end");
    assert!(renewals >= 9 * HOLDS, "{renewals} renewals");
    assert!(most <= HOLDS / 4, "{most} renewals waited at the server at once");
    sim.end();
}
