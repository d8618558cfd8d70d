//! Problems of a server's set-up: one line with the problem and its fix.

use std::time::Duration;

use tenure::{Error, Locks, Options};

use super::{SERVER, said, schema};

/// The error of an acquisition there, and its full text.
pub(crate) fn refusal(url: &str) -> (Error, String) {
    let locks = Locks::open(url).expect("a URL");
    let locks = locks.with(|_| Options::new().op_timeout(Duration::from_secs(5))).expect("options");
    let error = tenure::block_on(locks.mutex("x").expect("a name").try_lock()).expect_err("no lock");
    let text = said(&error);
    assert!(!text.contains('\n'), "{text}");
    (error, text)
}

pub(crate) fn says(url: &str, what: &str) {
    let (_, text) = refusal(url);
    assert!(text.contains(what), "{url}: {text}");
}

#[test]
fn what_is_wrong_with_a_server_is_said_in_one_line() {
    let url = SERVER.url(&schema());
    says(&url.replace("/postgres?", "/nothing?"), "database \"nothing\" does not exist");
    says(&url.replace("postgres@", "stranger@"), "role \"stranger\" does not exist");
    says("postgres://postgres@%2Fnowhere/postgres", "No such file");
    says("postgres://postgres@127.0.0.1:1/postgres", "refused");
    SERVER.run("CREATE DATABASE latin ENCODING 'SQL_ASCII' TEMPLATE template0");
    says(&url.replace("/postgres?", "/latin?"), "UTF8");
}

#[test]
fn a_user_who_may_not_make_the_table_is_told_its_sql_and_needs_four_rights() {
    let schema = schema();
    SERVER.run(&format!("CREATE ROLE {schema}_user LOGIN; CREATE SCHEMA {schema}"));
    let url = SERVER.url_as(&format!("{schema}_user"), &schema);
    let (error, text) = refusal(&url);
    assert!(error.is_refused() && text.contains("CREATE TABLE IF NOT EXISTS"), "{text}");
    // The SQL in the message, run by a user who may.
    SERVER.run(&tenure::postgres::tables_sql(Some(&schema)));
    SERVER.run(&format!("GRANT USAGE ON SCHEMA {schema} TO {schema}_user"));
    let (error, text) = refusal(&url);
    assert!(error.is_refused() && text.contains("SELECT, INSERT, UPDATE and DELETE"), "{text}");
    SERVER.run(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.tenure_lock TO {schema}_user"));
    let locks = Locks::open(&url).expect("a URL");
    tenure::block_on(async {
        let guard = locks.fair_mutex("x").expect("a name").lock().await.expect("a guard");
        guard.release().await.expect("a release");
    });
}

#[test]
fn a_quorum_of_postgresql_is_refused_with_the_reason() {
    let member = Locks::open(&SERVER.url(&schema())).expect("a URL");
    let members = [member.clone(), member.clone(), member];
    let error = Locks::quorum(members).expect_err("no quorum");
    assert!(said(&error).contains("its table keeps no ballots"), "{error}");
}
