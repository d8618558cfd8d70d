//! What the last holder wrote is seen even if the store grants at a second request, as Redis does where its plain
//! commands find a lock busy that is free by the time the script runs.

use std::fmt::Error as Failed;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use tenure::internals::protocol::{Op, Verb};
use tenure::internals::store::memory::Memory;
use tenure::internals::store::{Decorator, StoreFuture, StoreReply, StoreRequest};
use tenure::internals::{Driver, Runtime, Store, locks};
use tenure::{Locks, Options};
use tokio::sync::Notify;

use super::on;

const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// A store whose acquisitions are carried out when told to, behind the calls that follow them.
#[derive(Debug)]
struct Late {
    memory: Arc<Memory>,
    asked: Arc<Notify>,
    goes_on: Arc<Notify>,
}

impl Decorator for Late {
    fn inner(&self) -> &dyn Store {
        &*self.memory
    }

    fn call(&self, request: StoreRequest, within: Duration) -> StoreFuture<StoreReply> {
        if !matches!(&request, StoreRequest::Lock(Op { verb: Verb::Acquire { .. }, .. })) {
            return self.memory.call(request, within);
        }
        let Self { memory, asked, goes_on } = self;
        let (memory, asked, goes_on) = (Arc::clone(memory), Arc::clone(asked), Arc::clone(goes_on));
        async move {
            asked.notify_one();
            goes_on.notified().await;
            memory.call(request, within).await
        }
        .boxed()
    }
}

/// A client, another one whose acquisitions are late, and the signals of that one.
fn clients() -> (Locks, Locks, [Arc<Notify>; 2]) {
    let runtime = Driver::start().expect("a thread") as Arc<dyn Runtime>;
    let memory = Arc::new(Memory::new(Arc::clone(&runtime), "memory:late"));
    let signals = [(); 2].map(|()| Arc::new(Notify::new()));
    let [asked, goes_on] = signals.clone();
    let late = Late { memory: Arc::clone(&memory), asked, goes_on };
    let client = |store: Arc<dyn Store>| locks(store, Arc::clone(&runtime), Options::new()).expect("options");
    (client(memory), client(Arc::new(late)), signals)
}

#[test]
fn a_job_is_not_run_again() {
    on(async {
        let (first, late, [asked, goes_on]) = clients();
        let [first, late] = [first, late].map(|locks| locks.once_per("job", WEEK).expect("a name"));
        let begins = pin!(late.try_begin());
        let Either::Right((_, begins)) = select(begins, pin!(asked.notified())).await else {
            panic!("it did not ask for the lock")
        };
        first
            .run(async |_| Ok::<_, Failed>(()))
            .await
            .expect("an answer")
            .expect("it is open")
            .expect("done");
        goes_on.notify_one();
        assert!(begins.await.expect("an answer").is_none(), "the window ran twice");
    });
}

#[test]
fn a_value_is_not_computed_again() {
    on(async {
        let (first, late, [asked, goes_on]) = clients();
        let [first, late] = [first, late].map(|locks| locks.cache("value").expect("a name"));
        let gets = pin!(late.get_or_compute(WEEK, async || Ok::<_, Failed>("computed again".to_owned())));
        let Either::Right((_, gets)) = select(gets, pin!(asked.notified())).await else {
            panic!("it did not ask for the lock")
        };
        let value = first.get_or_compute(WEEK, async || Ok::<_, Failed>("computed".to_owned())).await;
        goes_on.notify_one();
        assert_eq!(gets.await.expect("an answer"), value.expect("an answer"));
    });
}
