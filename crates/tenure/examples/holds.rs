//! Whether many leases live while one process renews all of them.
//!
//! `cargo run --release -p tenure --example holds -- redis://HOST 100000 2s 30s`
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures real time")]

use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tenure::{Guard, Locks};

/// So many acquisitions are under way at once.
const AT_ONCE: usize = 256;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, holds, ttl, time] = &args[..] else { return Err("usage: URL HOLDS TTL TIME".into()) };
    let (holds, ttl, time) = (holds.parse::<usize>()?, seconds(ttl)?, seconds(time)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let locks = Locks::connect(url).await?.with(|options| options.ttl(ttl))?;
        let started = Instant::now();
        let acquire = |number: usize| {
            let mutex = locks.mutex(format!("holds:{number}"));
            async move { mutex?.lock().await }
        };
        let guards: Vec<Guard> =
            stream::iter(0..holds).map(acquire).buffer_unordered(AT_ONCE).try_collect().await?;
        let acquired = started.elapsed();
        let mut least = ttl;
        for _ in 0..time.as_secs() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            least = guards.iter().map(Guard::remaining).min().unwrap_or_default().min(least);
        }
        let lost = guards.iter().filter(|guard| !guard.is_held()).count();
        println!(
            "{holds} holds with a lease of {ttl:?} for {time:?}, acquired in {acquired:.1?}: {lost} lost; \
             at the looks each had {least:.1?} or more left"
        );
        // To release them all takes longer than to let them lapse.
        std::process::exit(0);
    })
}

fn seconds(text: &str) -> Result<Duration, Box<dyn std::error::Error>> {
    let text = text.strip_suffix('s').ok_or("a time reads `2s`")?;
    Ok(Duration::try_from_secs_f64(text.parse()?)?)
}
