//! A hundred readers of a value that takes half a second to compute, and lasts for two.
//!
//! ```text
//! cargo run -p tenure --example stampede -- redis://127.0.0.1    # in several terminals
//! ```
//! Without a URL: `memory:`.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program has its own time and tasks"
)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure::Locks;

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let report = Locks::connect(&url).await?.cache("example:report")?.stale(Duration::from_secs(1));
    let (reads, computed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let until = Instant::now() + Duration::from_secs(10);
    let readers: Vec<_> = (0..100)
        .map(|_| {
            let (report, reads, computed) = (report.clone(), Arc::clone(&reads), Arc::clone(&computed));
            tokio::spawn(async move {
                while Instant::now() < until {
                    let slow_query = async || {
                        computed.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_millis(500)).await;
                        Ok::<_, io::Error>("42 orders".to_owned())
                    };
                    match report.get_or_compute(Duration::from_secs(2), slow_query).await {
                        Ok(Ok(_)) => reads.fetch_add(1, Ordering::Relaxed),
                        Ok(Err(error)) => return eprintln!("the query failed: {error}"),
                        Err(error) => return eprintln!("{error}"),
                    };
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            })
        })
        .collect();
    for reader in readers {
        reader.await.expect("no reader panics");
    }
    println!("{} reads, {} slow queries", reads.load(Ordering::Relaxed), computed.load(Ordering::Relaxed));
    Ok(())
}
