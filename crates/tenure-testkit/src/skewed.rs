//! Clients with a wrong wall clock.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tenure::internals::store::redis::Redis;
use tenure::internals::{Driver, Moment, Runtime, locks};
use tenure::{Locks, Options};

#[derive(Debug)]
struct Skewed {
    driver: Arc<Driver>,
    by_us: i64,
}

impl Runtime for Skewed {
    fn now(&self) -> Moment {
        self.driver.now()
    }

    fn unix_micros(&self) -> u64 {
        self.driver.unix_micros().saturating_add_signed(self.by_us)
    }

    fn random(&self) -> u64 {
        self.driver.random()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        self.driver.sleep_until(at)
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.driver.spawn(task);
    }
}

/// A client whose wall clock is `by_ms` milliseconds ahead, or behind if negative.
///
/// # Panics
/// If the URL is invalid or no thread can be started.
pub fn client(url: &str, by_ms: i64, options: Options) -> Locks {
    let runtime = Arc::new(Skewed { driver: Driver::start().expect("a thread"), by_us: by_ms * 1_000 });
    let store = Redis::open(url, Arc::clone(&runtime) as _).expect("a store");
    locks(Arc::new(store), runtime, options).expect("options")
}
