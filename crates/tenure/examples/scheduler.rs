//! A job that runs every five seconds on one of the hosts that run this.
//!
//! ```text
//! cargo run -p tenure --example scheduler -- redis://127.0.0.1    # in several terminals
//! ```
//! Without a URL: `memory:`.
#![expect(clippy::disallowed_methods, reason = "a program has its own time and tasks")]

use std::io;
use std::time::Duration;

use tenure::Locks;

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let job = Locks::connect(&url).await?.once_per("example:digest", Duration::from_secs(5))?;
    for _ in 0..20 {
        let ran = job.run(async |turn| {
            println!("{:?}: this host runs it, with token {}", turn.window().start, turn.fence());
            Ok::<_, io::Error>(())
        });
        match ran.await {
            Ok(Some(Ok(()))) | Ok(None) => {}
            Ok(Some(Err(error))) => eprintln!("the job failed, and another host may try: {error}"),
            Err(error) => eprintln!("{error}"),
        }
        // Poll more often than the job runs, so that no host needs an exact clock.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}
