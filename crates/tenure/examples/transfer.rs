//! Transfers between two accounts that no common transaction covers: each is a file.
//!
//! ```text
//! cargo run -p tenure --example transfer -- file:/tmp/locks /tmp/accounts  # several
//! ```
//! Each process moves money back and forth. `Multi` holds both locks or none, and acquires them in the same
//! order everywhere, so that transfers in opposite directions cannot deadlock. Without arguments: `memory:`,
//! and a temporary directory.

use std::error::Error;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use tenure::{Locks, Multi, MultiGuard};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let locks = Locks::connect(&arguments.next().unwrap_or_else(|| "memory:".to_owned())).await?;
    let own = tempfile::tempdir()?;
    let dir = arguments.next().map_or_else(|| own.path().to_owned(), Into::into);
    fs::create_dir_all(&dir)?;
    for amount in 1..=50 {
        let (from, to) = if amount % 2 == 0 { ("alice", "bob") } else { ("bob", "alice") };
        let guards = both(&locks, from, to).await?;
        transfer(&dir, from, to, amount)?;
        guards.release().await?;
    }
    // A reader takes the locks too: a file that is being written may be empty.
    let guards = both(&locks, "alice", "bob").await?;
    println!("alice has {}, bob {}", balance(&dir, "alice")?, balance(&dir, "bob")?);
    guards.release().await?;
    Ok(())
}

async fn both(locks: &Locks, from: &str, to: &str) -> Result<MultiGuard, Box<dyn Error>> {
    let both = Multi::new([account(locks, from)?, account(locks, to)?])?;
    let guards = both.try_lock_for(Duration::from_secs(30)).await?;
    guards.ok_or_else(|| "another process has had these accounts for 30 s".into())
}

fn account(locks: &Locks, name: &str) -> tenure::Result<tenure::Mutex> {
    locks.mutex(format!("example:account:{name}"))
}

/// A crash between the two writes loses the amount, because a lock does not roll back.
fn transfer(dir: &Path, from: &str, to: &str, amount: i64) -> io::Result<()> {
    let (less, more) = (balance(dir, from)? - amount, balance(dir, to)? + amount);
    fs::write(dir.join(from), less.to_string())?;
    fs::write(dir.join(to), more.to_string())
}

/// A new account has 1,000.
fn balance(dir: &Path, name: &str) -> io::Result<i64> {
    match fs::read_to_string(dir.join(name)) {
        Ok(text) => text.trim().parse().map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(1_000),
        Err(error) => Err(error),
    }
}
