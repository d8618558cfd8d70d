//! The cost of an uncontended lock on MariaDB, compared with bare statements and `GET_LOCK` through sqlx in
//! the same run.
//!
//! `cargo bench -p tenure --features mysql,sqlx --bench mysql` starts a server without fsync. Rounds of all
//! sides alternate, so that a slow phase of the machine affects all; a row is the median of its rounds.

mod measured;

use std::cell::RefCell;

use sqlx::mysql::MySqlConnectOptions;
use sqlx::{ConnectOptions, Executor};
use tenure::{Locks, block_on};
use tenure_testkit::servers::MariaDb;
use tokio::runtime::Builder;

use measured::{header, rates, row};

fn main() {
    let server = MariaDb::start();
    server.run("CREATE TABLE app.bare (name varbinary(255) PRIMARY KEY, owner varbinary(255), ends bigint)");
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let options = MySqlConnectOptions::new().host("127.0.0.1").port(server.address().port());
    let options = options.username("root").database("app");
    let client = RefCell::new(runtime.block_on(options.connect()).expect("a connection"));
    let run = |sql: &str| {
        runtime.block_on(client.borrow_mut().execute(sql)).expect("an answer");
    };
    let owner = "user/label@host:1234/0123456789abcdef0123456789abcdef";
    let insert = format!(
        "INSERT INTO bare VALUES ('pair', '{owner}', UNIX_TIMESTAMP() + 15) ON DUPLICATE KEY UPDATE
         owner = IF(ends < UNIX_TIMESTAMP(), VALUES(owner), owner), ends = IF(owner = VALUES(owner), VALUES(ends), ends)"
    );
    let delete = format!("DELETE FROM bare WHERE name = 'pair' AND owner = '{owner}'");
    let locks = Locks::open(&server.url_as("root", "app")).expect("a store");
    let mutex = locks.mutex("pair").expect("a name");
    let [ours, bare, named] = rates([
        &|| block_on(async { mutex.lock().await.expect("a guard").release().await.expect("a release") }),
        &|| [&insert, &delete].into_iter().for_each(|sql| run(sql)),
        &|| ["SELECT GET_LOCK('pair', 1)", "SELECT RELEASE_LOCK('pair')"].into_iter().for_each(run),
    ]);
    header();
    row("uncontended pairs/s, one task, beside INSERT and DELETE", ours, bare, ">= 0.8");
    row("the same beside GET_LOCK and RELEASE_LOCK", ours, named, "-");
}
