//! The cost of an uncontended lock on MariaDB, compared with bare statements and `GET_LOCK` through sqlx in
//! the same run.
//!
//! `cargo bench -p tenure --features mysql,sqlx --bench mysql` starts a server without fsync. Rounds of all
//! sides alternate, so that a slow phase of the machine affects all; a row is the median of its rounds.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "a benchmark reads the clock")]

use std::time::{Duration, Instant};

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{ConnectOptions, Executor};
use tenure::{Locks, block_on};
use tenure_testkit::servers::MariaDb;
use tokio::runtime::{Builder, Runtime};

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(700);

fn main() {
    let server = MariaDb::start();
    server.run("CREATE TABLE app.bare (name varbinary(255) PRIMARY KEY, owner varbinary(255), ends bigint)");
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let options = MySqlConnectOptions::new().host("127.0.0.1").port(server.address().port());
    let mut client =
        runtime.block_on(options.username("root").database("app").connect()).expect("a connection");
    let owner = "user/label@host:1234/0123456789abcdef0123456789abcdef";
    let insert = format!(
        "INSERT INTO bare VALUES ('pair', '{owner}', UNIX_TIMESTAMP() + 15) ON DUPLICATE KEY UPDATE
         owner = IF(ends < UNIX_TIMESTAMP(), VALUES(owner), owner), ends = IF(owner = VALUES(owner), VALUES(ends), ends)"
    );
    let delete = format!("DELETE FROM bare WHERE name = 'pair' AND owner = '{owner}'");
    let locks = Locks::open(&server.url_as("root", "app")).expect("a store");
    let mutex = locks.mutex("pair").expect("a name");
    let mut rates = [const { Vec::new() }; 3];
    for round in 0..=ROUNDS {
        let measured = [
            rate(|| {
                block_on(async { mutex.lock().await.expect("a guard").release().await.expect("a release") })
            }),
            rate(|| [&insert, &delete].into_iter().for_each(|sql| run(&runtime, &mut client, sql))),
            rate(|| {
                for sql in ["SELECT GET_LOCK('pair', 1)", "SELECT RELEASE_LOCK('pair')"] {
                    run(&runtime, &mut client, sql);
                }
            }),
        ];
        if round > 0 {
            rates.iter_mut().zip(measured).for_each(|(rates, measured)| rates.push(measured));
        }
    }
    let [ours, bare, named] = rates.map(median);
    println!("{:<66} {:>10} {:>10} {:>8} {:>9}", "", "ours", "bare", "ratio", "reach");
    for (what, bare, reach) in [
        ("uncontended pairs/s, one task, beside INSERT and DELETE", bare, ">= 0.8"),
        ("the same beside GET_LOCK and RELEASE_LOCK", named, "-"),
    ] {
        println!("{what:<66} {ours:>10.1} {bare:>10.1} {:>8.2} {reach:>9}", ours / bare);
    }
}

fn run(runtime: &Runtime, client: &mut MySqlConnection, sql: &str) {
    runtime.block_on(client.execute(sql)).expect("an answer");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Operations per second.
fn rate(mut pair: impl FnMut()) -> f64 {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < ROUND {
        pair();
        count += 1;
    }
    f64::from(count) / start.elapsed().as_secs_f64()
}
