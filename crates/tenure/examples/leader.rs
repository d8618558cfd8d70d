//! Each of the processes that run this leads for three seconds, one after the other.
//!
//! ```text
//! cargo run -p tenure --example leader -- redis://127.0.0.1    # in several terminals
//! ```
//! Without a URL: `memory:`.
#![expect(clippy::disallowed_methods, reason = "a program has its own time and tasks")]

use std::time::Duration;

use tenure::{Change, Locks};

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let me = format!("process {}", std::process::id());
    let election = Locks::connect(&url).await?.election("example:leader", me)?;
    let mut observer = election.observe();
    tokio::spawn(async move {
        loop {
            match observer.next().await {
                Ok(Change::Elected(leader)) => println!("{} leads, term {}", leader.payload, leader.fence),
                Ok(Change::Resigned(leader)) => println!("{} has resigned", leader.payload),
                Ok(_) => {}
                Err(error) => {
                    eprintln!("{error}");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    });
    for _ in 0..3 {
        // The work is dropped at its next await when this process no longer leads.
        let led = election.lead(async |_term| tokio::time::sleep(Duration::from_secs(3)).await).await;
        if let Err(error) = led {
            eprintln!("{error}");
        }
    }
    Ok(())
}
