//! `tenure fence` prints the library's scripts, which the databases' own clients can run.

use std::io::Write;
use std::process::{Command, Stdio};

use tenure_testkit::servers::{Postgres, Server};

use crate::env::TestEnv;

/// Runs a client with this input; returns its output.
#[track_caller]
fn fed(mut client: Command, text: &str) -> String {
    let mut child = client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.as_mut().unwrap_or_else(|error| panic!("{client:?}: {error}"));
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let mut said = String::new();
    for mut stream in [
        Box::new(child.stdout.take().unwrap()) as Box<dyn std::io::Read>,
        Box::new(child.stderr.take().unwrap()),
    ] {
        stream.read_to_string(&mut said).unwrap();
    }
    child.wait().unwrap();
    said
}

fn printed(args: &[&str]) -> String {
    let env = TestEnv::new();
    env.run(env.tenure([&["fence"], args].concat())).exits_with(0).says_nothing().stdout
}

#[test]
fn the_sql_for_postgres_runs_in_psql() {
    let server = Postgres::start();
    let mut psql = server.psql();
    psql.args(["-1", "-v", "ON_ERROR_STOP=1"]);
    assert_eq!(fed(psql, &printed(&["sql", "--for", "postgres"])), "");
    assert_eq!(fed(server.psql(), "SELECT tenure_pass('draw', 42);"), "\n");
    assert!(fed(server.psql(), "SELECT tenure_pass('draw', 41);").contains("TN001"));
}

#[test]
fn the_sql_for_sqlite_runs_in_sqlite3() {
    let env = TestEnv::new();
    let sqlite = || {
        let mut client = env.program("sqlite3");
        client.args(["-bail", "app.db"]);
        client
    };
    assert_eq!(fed(sqlite(), &printed(&["sql", "--for", "sqlite"])), "");
    assert_eq!(fed(sqlite(), "INSERT INTO tenure_pass VALUES ('draw', 42);"), "");
    let said = fed(sqlite(), "INSERT INTO tenure_pass VALUES ('draw', 41);");
    assert!(said.contains("tenure: old token"), "{said}");
}

#[test]
fn the_script_for_redis_runs_there() {
    let server = Server::start();
    let script = printed(&["lua"]);
    assert!(server.command(&["EVAL", &script, "1", "draw", "42", "winner", "alice"]) == "OK");
    let late = server.client().unwrap().command(&["EVAL", &script, "1", "draw", "41"]).unwrap();
    assert!(format!("{late:?}").contains("OLDTOKEN"), "{late:?}");
}

#[test]
fn a_database_has_its_usual_names_and_a_wrong_one_is_told_which_there_are() {
    assert_eq!(printed(&["sql", "--for", "mysql"]), printed(&["sql", "--for", "mariadb"]));
    let env = TestEnv::new();
    let wrong = ["sql", "--for", "oracle"];
    let said = env.run(env.tenure([&["fence"][..], &wrong].concat())).exits_with(64);
    said.says("postgres, mysql, sqlite");
    env.run(env.tenure(["fence", "sql"])).exits_with(64).says("--for <DATABASE>");
}

#[test]
fn half_of_a_text_is_a_failure() {
    let env = TestEnv::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = env.tenure(["fence", "lua"]);
    let said = command.stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(said.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&said.stderr).starts_with("tenure: cannot print: No space left"));
}
