//! The cost of many held locks that one process renews: memory here and on the server, commands, bytes and
//! CPU time.
//!
//! `cargo run --release -p tenure --example holds -- redis://HOST:PORT 100000 60s 60s`; add `fair` for fair
//! mutexes.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures real time")]

#[path = "costs/mod.rs"]
mod costs;

use std::error::Error;
use std::time::{Duration, Instant};

use costs::{Costs, seconds};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use tenure::{Guard, Locks};

/// Concurrent acquisitions.
const AT_ONCE: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (args, is_fair) = match &args[..] {
        [args @ .., last] if last == "fair" => (args, true),
        args => (args, false),
    };
    let [url, holds, ttl, time] = args else { return Err("usage: URL HOLDS TTL TIME [fair]".into()) };
    let (holds, ttl, time) = (holds.parse::<usize>()?, seconds(ttl)?, seconds(time)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let locks = Locks::connect(url).await?.with(|options| options.ttl(ttl))?;
        drop(locks.mutex("holds")?.lock().await?);
        let (before, started) = (Costs::now(url)?, Instant::now());
        let acquire = |number: usize| {
            let (locks, name) = (locks.clone(), format!("holds:{number}"));
            async move {
                match is_fair {
                    true => locks.fair_mutex(name)?.lock().await,
                    false => locks.mutex(name)?.lock().await,
                }
            }
        };
        let guards: Vec<Guard> =
            stream::iter(0..holds).map(acquire).buffer_unordered(AT_ONCE).try_collect().await?;
        let (acquired, held) = (started.elapsed(), Costs::now(url)?);
        println!("{holds} holds with a lease of {ttl:?}, acquired in {acquired:.1?}");
        let each = |after: f64, before: f64| (after - before) / holds as f64;
        println!(
            "memory per lock: {:.0} bytes here, {:.0} on the server",
            each(held.memory_here, before.memory_here),
            each(held.memory_there, before.memory_there),
        );
        // Once all have been renewed, their renewals are spread over time.
        let mut least = ttl;
        let mut look = async |time: Duration| {
            for _ in 0..time.as_secs() {
                tokio::time::sleep(Duration::from_secs(1)).await;
                least = guards.iter().map(Guard::remaining).min().unwrap_or_default().min(least);
            }
        };
        look(ttl / 3).await;
        let (start, renewed, since) = (Costs::now(url)?, locks.metrics().total().renewals, Instant::now());
        look(time).await;
        let (end, seconds) = (Costs::now(url)?, since.elapsed().as_secs_f64());
        let renewals = (locks.metrics().total().renewals - renewed) as f64;
        let lost = guards.iter().filter(|guard| !guard.is_held()).count();
        println!(
            "in {seconds:.0} s: {lost} lost, each had {least:.1?} or more left at each look; {:.0} renewals/s",
            renewals / seconds
        );
        println!(
            "a renewal: {:.3} requests, {:.0} bytes to the server and {:.1} back, {:.2} µs of its processor \
             and {:.2} µs of ours",
            (end.scripts - start.scripts) / renewals,
            (end.bytes_in - start.bytes_in) / renewals,
            (end.bytes_out - start.bytes_out) / renewals,
            (end.cpu_there - start.cpu_there) / renewals * 1e6,
            (end.cpu_here - start.cpu_here) / renewals * 1e6,
        );
        println!(
            "processor: {:.1} ms/s of the server, {:.1} ms/s of this process",
            (end.cpu_there - start.cpu_there) / seconds * 1e3,
            (end.cpu_here - start.cpu_here) / seconds * 1e3,
        );
        // Releasing all of them takes longer than letting them expire.
        std::process::exit(0);
    })
}
