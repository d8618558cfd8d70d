//! 250 readers of a value that takes half a second to compute and is fresh for one. They read for four
//! seconds.
//!
//! ```text
//! cargo run -p tenure --example stampede -- redis://127.0.0.1            # in several terminals
//! cargo run -p tenure --example stampede -- redis://127.0.0.1 unguarded  # the same without tenure
//! ```
//! Without a URL: `memory:`. With `unguarded`, each process caches the value, and every reader that finds it
//! stale computes it.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program has its own time and tasks"
)]

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure::{Cache, Locks};

const LASTS: Duration = Duration::from_secs(1);

/// The value and the counts of one process.
#[derive(Default)]
struct Report {
    kept: Mutex<Option<(Instant, String)>>,
    reads: AtomicU64,
    queries: AtomicU64,
}

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "memory:".to_owned());
    let is_guarded = arguments.next().as_deref() != Some("unguarded");
    let guard = Locks::connect(&url).await?.cache("example:report")?;
    let report = Arc::new(Report::default());
    let until = Instant::now() + Duration::from_secs(4);
    let readers: Vec<_> = (0..250)
        .map(|_| {
            let (guard, report) = (guard.clone(), Arc::clone(&report));
            tokio::spawn(async move {
                while Instant::now() < until {
                    let read = if is_guarded {
                        guarded(&guard, &report).await
                    } else {
                        Ok(unguarded(&report).await)
                    };
                    match read {
                        Ok(Ok(_)) => report.reads.fetch_add(1, Ordering::Relaxed),
                        Ok(Err(error)) => return eprintln!("the query failed: {error}"),
                        Err(error) => return eprintln!("{error}"),
                    };
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            })
        })
        .collect();
    for reader in readers {
        reader.await.expect("no reader panics");
    }
    let (reads, queries) = (report.reads.load(Ordering::Relaxed), report.queries.load(Ordering::Relaxed));
    println!("{reads} reads, {queries} slow queries");
    Ok(())
}

impl Report {
    async fn slow_query(&self) -> io::Result<String> {
        self.queries.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok("42 orders".to_owned())
    }
}

/// One reader of all processes computes the value.
async fn guarded(guard: &Cache, report: &Report) -> tenure::Result<io::Result<String>> {
    guard.get_or_compute(LASTS, async || report.slow_query().await).await
}

/// Every reader that finds no fresh value computes it.
async fn unguarded(report: &Report) -> io::Result<String> {
    let kept = report.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some((since, value)) = kept
        && since.elapsed() < LASTS
    {
        return Ok(value);
    }
    let value = report.slow_query().await?;
    *report.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), value.clone()));
    Ok(value)
}
