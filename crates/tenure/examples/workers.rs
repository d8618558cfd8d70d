//! Jobs of many processes, at most three of which run at once.
//!
//! ```text
//! cargo run -p tenure --example workers -- redis://127.0.0.1    # in several terminals
//! ```
//! Without a URL: `memory:`.
#![expect(clippy::disallowed_methods, reason = "a program has its own time and tasks")]

use std::time::Duration;

use tenure::{Locks, Semaphore};

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let locks = Locks::connect(&url).await?;
    let slots = locks.semaphore("example:render", 3)?;
    let jobs: Vec<_> = (1..=5)
        .map(|job| {
            let slots = slots.clone();
            tokio::spawn(async move { render(&slots, job).await })
        })
        .collect();
    for job in jobs {
        if let Err(error) = job.await.expect("no job panics") {
            eprintln!("{error}");
        }
    }
    locks.flush().await
}

/// Waits for a slot, first come, first served, and works while it holds it.
async fn render(slots: &Semaphore, job: u32) -> tenure::Result<()> {
    let me = std::process::id();
    let permit = slots.acquire().await?;
    // `run` drops the work at its next await if the slot is lost.
    let rendered = permit.run(async |_permit| {
        println!("{me}: job {job} begins");
        tokio::time::sleep(Duration::from_millis(200)).await;
        println!("{me}: job {job} ends");
    });
    rendered.await
}
