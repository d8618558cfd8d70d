//! A holder that was paused writes late, and the database refuses the write.
//!
//! ```text
//! cargo run -p tenure --example fenced_write -- redis://127.0.0.1 "host=db1 user=app"
//! ```
//! Start it in two terminals. Stop the first with Ctrl-Z while it computes, wait until the second has
//! written, and resume the first with `fg`. With a third argument, `unfenced`, the first then writes again
//! without its token, which succeeds. Without arguments: `memory:`, and a temporary PostgreSQL server.
#![expect(clippy::disallowed_methods, reason = "a program has its own time and tasks")]

use std::error::Error;
use std::time::Duration;

use tenure::{Locks, fence};
use tenure_testkit::servers::Postgres;
use tokio_postgres::{Client, NoTls};

const NAME: &str = "example:report";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let store = arguments.next().unwrap_or_else(|| "memory:".to_owned());
    let own = (arguments.len() == 0).then(Postgres::start);
    let database = own.as_ref().map(Postgres::config).or_else(|| arguments.next()).expect("a database");
    let (client, connection) = tokio_postgres::connect(&database, NoTls).await?;
    tokio::spawn(connection);
    migrate(&client).await?;

    // A short lease, so that a pause of two seconds loses the lock.
    let locks = Locks::connect(&store).await?.with(|options| options.ttl(Duration::from_secs(2)))?;
    let guard = locks.mutex(NAME)?.lock().await?;
    let token = guard.fence() as i64;
    println!("computing, with token {token}");
    tokio::time::sleep(Duration::from_secs(1)).await;

    let me = format!("process {}", std::process::id());
    match write(&client, token, &me).await {
        Ok(()) => println!("written"),
        Err(error) => {
            let reason = error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string);
            println!("refused: {reason}");
            if arguments.next().as_deref() == Some("unfenced") {
                client.execute("UPDATE report SET author = $1", &[&me]).await?;
                println!("written without the token, over what is newer");
            }
        }
    }
    if let Err(error) = guard.release().await {
        println!("{error}");
    }
    Ok(())
}

/// Writes unless a newer token has passed, which the first statement of the transaction checks.
async fn write(client: &Client, token: i64, author: &str) -> Result<(), tokio_postgres::Error> {
    client.batch_execute("BEGIN").await?;
    let written = async {
        client.execute("SELECT tenure_pass($1, $2)", &[&NAME, &token]).await?;
        client.execute("UPDATE report SET author = $1", &[&author]).await
    };
    let written = written.await;
    client.batch_execute(if written.is_ok() { "COMMIT" } else { "ROLLBACK" }).await?;
    written.map(drop)
}

/// Usually a migration.
async fn migrate(client: &Client) -> Result<(), tokio_postgres::Error> {
    client.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(1)").await?;
    let there = client.query_one("SELECT to_regclass('tenure_fence') IS NOT NULL", &[]).await?;
    if !there.get::<_, bool>(0) {
        client.batch_execute(fence::POSTGRES).await?;
        client.batch_execute("CREATE TABLE report (author text); INSERT INTO report VALUES ('')").await?;
    }
    client.batch_execute("COMMIT").await
}
