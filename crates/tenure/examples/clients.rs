//! The cost for a server of many client processes that each hold one lock.
//!
//! `cargo run --release -p tenure --example clients -- redis://HOST:PORT 1000 20s`
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures real time")]

#[path = "costs/mod.rs"]
mod costs;

use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Instant;

use costs::{Costs, resident_bytes, seconds};
use tenure::{Locks, block_on};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [hold, url, number] if hold == "hold" => held(url, number),
        [url, clients, time] => {
            let time = seconds(time)?;
            let (before, started) = (Costs::now(url)?, Instant::now());
            let mut children = (0..clients.parse::<u32>()?)
                .map(|number| start(url, number))
                .collect::<Result<Vec<_>, _>>()?;
            for child in &mut children {
                let mut said = String::new();
                BufReader::new(child.stdout.as_mut().expect("it is read")).read_line(&mut said)?;
                if said.trim() != "held" {
                    return Err("a client does not hold its lock".into());
                }
            }
            let (began, held) = (started.elapsed(), Costs::now(url)?);
            let (since, count) = (Instant::now(), children.len() as f64);
            sleep(time);
            let (end, seconds) = (Costs::now(url)?, since.elapsed().as_secs_f64());
            let memory: Result<Vec<f64>, _> =
                children.iter().map(|child| resident_bytes(&child.id().to_string())).collect();
            println!("{count} client processes hold a lock each, after {began:.1?}");
            println!(
                "a client: {:.2} connections, {:.0} bytes on the server, {:.0} KiB in its process; {:.2} commands/s",
                (end.connections - before.connections) / count,
                (held.memory_there - before.memory_there) / count,
                memory?.iter().sum::<f64>() / count / 1024.0,
                (end.commands - held.commands) / seconds / count,
            );
            println!("processor of the server: {:.1} ms/s", (end.cpu_there - held.cpu_there) / seconds * 1e3);
            // They end when their standard input is closed.
            for mut child in children {
                drop(child.stdin.take());
                child.wait()?;
            }
            Ok(())
        }
        _ => Err("usage: URL CLIENTS TIME".into()),
    }
}

fn start(url: &str, number: u32) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["hold", url, &number.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn()
}

/// Holds a lock until standard input is closed.
fn held(url: &str, number: &str) -> Result<(), Box<dyn Error>> {
    let locks = Locks::open(url)?;
    let guard = block_on(locks.mutex(format!("clients:{number}"))?.lock())?;
    println!("held");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    block_on(guard.release())?;
    Ok(())
}
