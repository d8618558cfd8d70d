//! Reads of a cached value without a computation, compared with a bare `GET` of the same bytes.

use std::convert::Infallible;
use std::future::pending;
use std::thread;
use std::time::{Duration, Instant};

use tenure::{Locks, block_on};
use tenure_testkit::servers::Server;

use crate::pairs::{bare, compare, count};

const VALUE: &str =
    "a value of some hundred bytes, which is what a small object of an application has in JSON, as here";
const HOUR: Duration = Duration::from_secs(3_600);

/// Reads per second. The target, at most 1.2 times the time of a bare read, is at least 0.83 of its rate.
pub(crate) fn reads(what: &str, server: &Server, tasks: usize, is_stale: bool) {
    let url = server.url();
    let locks = Locks::open(&url).expect("a store");
    let cache = locks.cache("read").expect("a name").stale(HOUR).early(0.0).jitter(0.0);
    let lasts = if is_stale { Duration::from_millis(1) } else { HOUR };
    let value = async || Ok::<_, Infallible>(VALUE.to_owned());
    let Ok(_) = block_on(cache.get_or_compute(lasts, value)).expect("an answer");
    if is_stale {
        // Another process computes during the whole measurement.
        let other = Locks::open(&url).expect("a store").cache("read").expect("a name").stale(HOUR);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(5));
            let never = async || pending::<Result<String, Infallible>>().await;
            block_on(other.get_or_compute(HOUR, never)).map(drop)
        });
        thread::sleep(Duration::from_millis(200));
    }
    let ours = || {
        block_on(count(tasks, |_, until| {
            let cache = &cache;
            async move {
                let mut reads = 0;
                while Instant::now() < until {
                    let none = async || -> Result<String, Infallible> { panic!("it is there") };
                    let Ok(read) = cache.get_or_compute(HOUR, none).await.expect("an answer");
                    assert_eq!(read.len(), VALUE.len());
                    reads += 1;
                }
                reads
            }
        }))
    };
    let connection = bare(&url);
    let mut set = connection.clone();
    block_on(redis::cmd("SET").arg("bare").arg(VALUE).exec_async(&mut set)).expect("an answer");
    let theirs = || {
        block_on(count(tasks, |_, until| {
            let mut connection = connection.clone();
            async move {
                let mut reads = 0;
                while Instant::now() < until {
                    let get = redis::cmd("GET").arg("bare").query_async(&mut connection).await;
                    let read: String = get.expect("an answer");
                    assert_eq!(read.len(), VALUE.len());
                    reads += 1;
                }
                reads
            }
        }))
    };
    compare(what, ours, theirs, 0.83);
}
