//! Ten winners of a lottery are drawn at a set time by one of the processes that run this.
//!
//! ```text
//! cargo run -p tenure --example lottery -- redis://127.0.0.1 "host=db1 user=app" 12:00
//! cargo run -p tenure --example lottery               # alone, with a PostgreSQL of its own, now
//! ```
//! Start it several times, on as many hosts as you like, and kill any: ten winners are drawn.
//! The time is UTC.
#![expect(clippy::disallowed_methods, reason = "a program has its own time and tasks")]

use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure::{Frees, Locks, Period, Turn, fence};
use tenure_testkit::servers::Postgres;
use tokio_postgres::{Client, NoTls};

const NAME: &str = "example:lottery";
const DAY: u64 = 86_400;
const TABLE: &str = "CREATE TABLE IF NOT EXISTS winners (day bigint, place int, ticket int,
    PRIMARY KEY (day, place), UNIQUE (day, ticket))";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let store = arguments.next().unwrap_or_else(|| "memory:".to_owned());
    let own = (arguments.len() == 0).then(Postgres::start);
    let database = own.as_ref().map(Postgres::config).or_else(|| arguments.next()).expect("a database");
    let (client, connection) = tokio_postgres::connect(&database, NoTls).await?;
    tokio::spawn(connection);
    migrate(&client).await?;

    let at = arguments.next().map_or_else(|| Ok(now() % DAY), |time| seconds(&time))?;
    let daily = Period::daily(Duration::from_secs(at)).open_for(Duration::from_secs(3_600));
    // A drawing whose process died may be repeated, because it is one transaction.
    let drawing = Locks::connect(&store).await?.once_per(NAME, daily)?.frees(Frees::FailureOrLoss);
    loop {
        match drawing.run(async |turn| draw(&client, turn).await).await {
            Ok(Some(Ok(()))) => println!("drawn"),
            Ok(Some(Err(error))) => eprintln!("it failed, and another process may try: {error}"),
            Ok(None) => {} // not yet, or another process draws or has drawn
            Err(error) => eprintln!("{error}"),
        }
        if own.is_some() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Draws in one transaction, which fails if a process with a newer token has drawn.
async fn draw(client: &Client, turn: &Turn) -> Result<(), tokio_postgres::Error> {
    let day = (turn.window().start.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / DAY) as i64;
    println!("drawing for day {day} with token {}", turn.fence());
    client.batch_execute("BEGIN").await?;
    let drawn = draw_within(client, day, turn.fence() as i64).await;
    client.batch_execute(if drawn.is_ok() { "COMMIT" } else { "ROLLBACK" }).await?;
    drawn
}

async fn draw_within(client: &Client, day: i64, token: i64) -> Result<(), tokio_postgres::Error> {
    client.execute("SELECT tenure_pass($1, $2)", &[&NAME, &token]).await?;
    let there = client.query_one("SELECT count(*) FROM winners WHERE day = $1", &[&day]).await?;
    if there.get::<_, i64>(0) > 0 {
        return Ok(()); // drawn by a process that died before it could report it
    }
    for place in 1..=10 {
        let pick = "INSERT INTO winners SELECT $1, $2, ticket FROM generate_series(1, 1000) ticket
            WHERE ticket NOT IN (SELECT ticket FROM winners WHERE day = $1) ORDER BY random() LIMIT 1";
        client.execute(pick, &[&day, &place]).await?;
        println!("place {place} is drawn");
        tokio::time::sleep(Duration::from_millis(100)).await; // a drum roll
    }
    Ok(())
}

/// Usually a migration.
async fn migrate(client: &Client) -> Result<(), tokio_postgres::Error> {
    client.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(1)").await?;
    client.batch_execute(TABLE).await?;
    let there = client.query_one("SELECT to_regclass('tenure_fence') IS NOT NULL", &[]).await?;
    if !there.get::<_, bool>(0) {
        client.batch_execute(fence::POSTGRES).await?;
    }
    client.batch_execute("COMMIT").await
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Seconds since midnight of a time like 12:00 or 12:00:30.
fn seconds(time: &str) -> Result<u64, Box<dyn Error>> {
    let parts: Vec<u64> = time.split(':').map(str::parse).collect::<Result<_, _>>()?;
    match parts[..] {
        [hours, minutes] => Ok(hours * 3_600 + minutes * 60),
        [hours, minutes, seconds] => Ok(hours * 3_600 + minutes * 60 + seconds),
        _ => Err("want a time like 12:00 or 12:00:30".into()),
    }
}
