//! Connections that are cut at any byte, and a server that is killed, stopped, or holds a request back.

use std::process::Stdio;
use std::time::Duration;

use tenure_testkit::servers::{MariaDb, eventually};
use tenure_testkit::setting;

use super::{SERVER, database, locks};
use crate::crowd::Crowd;
use crate::postgres::faults::{Relay, crowds, cut_a_crowd, cut_everywhere};
use crate::postgres::on;

#[test]
fn a_connection_that_is_cut_at_any_byte_leaves_no_lock_behind() {
    let (name, url) = database();
    let relay = Relay::start(SERVER.socket(), "socket");
    cut_everywhere(&relay, &format!("mysql://root@{}%2Fsocket/{name}", relay.place()), &url);
}

#[test]
fn cuts_under_a_crowd_cost_no_overlap_no_token_and_no_waiter() {
    let (name, _) = database();
    let relay = Relay::start(SERVER.socket(), "socket");
    cut_a_crowd(&relay, &format!("mysql://root@{}%2Fsocket/{name}", relay.place()));
}

/// With `TENURE_KILLS=100` this is the run that book/trust/evidence.md records.
#[test]
fn a_server_that_is_killed_under_a_crowd_costs_no_overlap_no_token_and_no_waiter() {
    let mut server = MariaDb::start();
    let crowds = crowds(&server.url_as("root", "app"), Duration::from_secs(2));
    for _ in 0..setting("TENURE_KILLS").unwrap_or(2) {
        crowds.iter().for_each(Crowd::goes_on);
        server.crash();
        server.restart();
    }
    crowds.iter().for_each(Crowd::goes_on);
    // Its connections stay open, and nothing answers.
    server.stop();
    std::thread::sleep(Duration::from_secs(3));
    server.cont();
    crowds.iter().for_each(Crowd::goes_on);
    crowds.into_iter().for_each(Crowd::end);
}

/// A connection that stands still with a statement is ended before the next one is used.
#[test]
fn a_request_that_hangs_in_the_server_takes_no_effect_after_a_later_one() {
    on(async {
        let (name, url) = database();
        let locks = locks(&url, Duration::from_secs(60));
        let locks = locks.with(|options| options.op_timeout(Duration::from_millis(600))).expect("options");
        let mutex = locks.mutex("x").expect("a name");
        mutex.lock().await.expect("a guard").release().await.expect("a release");
        // The acquire waits in the server for the table, and hears nothing.
        let mut client = SERVER.client();
        client.args(["-e", &format!("LOCK TABLES {name}.tenure_lock WRITE; SELECT SLEEP(60)")]);
        let mut blocker = client.stdout(Stdio::null()).spawn().expect("the client mariadb");
        eventually("the table is locked", Duration::from_secs(20), || {
            SERVER.run("SELECT count(*) FROM information_schema.processlist WHERE info = 'SELECT SLEEP(60)'")
                != "0"
        });
        let error = mutex.try_lock().await.expect_err("no answer");
        assert!(error.is_unknown() || error.is_unreachable(), "{error}");
        let id = SERVER.run("SELECT id FROM information_schema.processlist WHERE info = 'SELECT SLEEP(60)'");
        SERVER.run(&format!("KILL {id}"));
        let _ = blocker.wait();
        // The hanging statement has ended without effect: the lock is free long before its lease would be over.
        let free = tokio::time::timeout(Duration::from_secs(20), async {
            loop {
                match mutex.try_lock().await {
                    Ok(Some(guard)) => break guard,
                    _ => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
        free.await.expect("it is free").release().await.expect("a release");
    });
}
