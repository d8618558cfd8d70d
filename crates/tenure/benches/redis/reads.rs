//! Reads of a cached value without a computation, compared with a bare `GET` of the same bytes.

use std::convert::Infallible;
use std::future::pending;
use std::thread;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tenure::{Cache, Locks, block_on};
use tenure_testkit::servers::Server;
use tokio::runtime::Builder;

use crate::pairs::{bare, compare, count};

const VALUE: &str =
    "a value of some hundred bytes, which is what a small object of an application has in JSON, as here";
const HOUR: Duration = Duration::from_secs(3_600);

/// Reads per second.
pub(crate) fn reads(what: &str, server: &Server, tasks: usize, is_stale: bool) {
    let url = server.url();
    let (by_runtime, by_thread) = (cache(&url), cache(&url));
    let lasts = if is_stale { Duration::from_millis(1) } else { HOUR };
    let value = async || Ok::<_, Infallible>(VALUE.to_owned());
    let Ok(_) = block_on(by_thread.get_or_compute(lasts, value)).expect("an answer");
    if is_stale {
        // Another process computes during the whole measurement.
        let other = cache(&url);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(5));
            let never = async || pending::<Result<String, Infallible>>().await;
            block_on(other.get_or_compute(HOUR, never)).map(drop)
        });
        thread::sleep(Duration::from_millis(200));
    }
    let runtime = || Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (ours, theirs) = (runtime(), runtime());
    let mut connection = theirs.block_on(async {
        let client = redis::Client::open(&*url).expect("a URL");
        let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");
        redis::cmd("SET").arg("bare").arg(VALUE).exec_async(&mut connection).await.expect("an answer");
        connection
    });
    compare(
        what,
        || ours.block_on(count(tasks, |_, until| our_reads(&by_runtime, until))),
        || theirs.block_on(count(tasks, |_, until| bare_reads(connection.clone(), until))),
        1.0,
    );
    // A program without a runtime, whose requests cross to our thread.
    connection = bare(&url);
    compare(
        "    the same by block_on; both clients have a thread of their own",
        || block_on(count(tasks, |_, until| our_reads(&by_thread, until))),
        || block_on(count(tasks, |_, until| bare_reads(connection.clone(), until))),
        0.0,
    );
}

fn cache(url: &str) -> Cache {
    let locks = Locks::open(url).expect("a store");
    locks.cache("read").expect("a name").stale(HOUR).early(0.0).jitter(0.0)
}

async fn our_reads(cache: &Cache, until: Instant) -> u32 {
    let mut reads = 0;
    while Instant::now() < until {
        let none = async || -> Result<String, Infallible> { panic!("it is there") };
        let Ok(read) = cache.get_or_compute(HOUR, none).await.expect("an answer");
        assert_eq!(read.len(), VALUE.len());
        reads += 1;
    }
    reads
}

async fn bare_reads(mut connection: MultiplexedConnection, until: Instant) -> u32 {
    let mut reads = 0;
    while Instant::now() < until {
        let get = redis::cmd("GET").arg("bare").query_async(&mut connection).await;
        let read: String = get.expect("an answer");
        assert_eq!(read.len(), VALUE.len());
        reads += 1;
    }
    reads
}
