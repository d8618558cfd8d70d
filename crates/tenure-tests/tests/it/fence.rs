//! The scripts of `tenure::fence` in the databases that run them: a write with an old token is refused.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use tenure::{Locks, block_on, fence};
use tenure_testkit::servers::{MariaDb, Postgres, Server, Value, eventually};

const LIMIT: Duration = Duration::from_secs(20);
/// Names with quotes, and names that a database could confuse by folding case or blanks.
const NAMES: [&str; 8] = ["o'clock", "a\"b", "a\\", "a;--", "Draw", "draw", "draw ", "naïve ✓"];

/// How often a write followed one with a newer token.
const FELL: &str = "SELECT count(*) FROM
    (SELECT token < lag(token) OVER (ORDER BY n) AS fell FROM draw) writes WHERE fell;";

/// An SQL string literal.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A command-line client that runs one statement after the other.
struct Session {
    process: Child,
    statements: ChildStdin,
    answers: BufReader<ChildStdout>,
    mark: &'static str,
}

impl Session {
    /// `mark` is the client's command that prints `done`.
    fn start(client: Command, mark: &'static str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" 2>&1", "sh"]).arg(client.get_program()).args(client.get_args());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a shell");
        let statements = process.stdin.take().expect("a pipe");
        let answers = BufReader::new(process.stdout.take().expect("a pipe"));
        Self { process, statements, answers, mark }
    }

    fn send(&mut self, statement: &str) {
        writeln!(self.statements, "{statement}\n{}", self.mark).expect("it reads statements");
    }

    /// The output of the last statement.
    fn answer(&mut self) -> String {
        let mut said = String::new();
        loop {
            let mut line = String::new();
            self.answers.read_line(&mut line).expect("it answers");
            assert!(line.ends_with('\n'), "the client ended: {said}{line}");
            if line == "done\n" {
                return said.trim_end().to_owned();
            }
            said.push_str(&line);
        }
    }

    fn run(&mut self, statement: &str) -> String {
        self.send(statement);
        self.answer()
    }

    /// Runs a statement that must print neither a value nor an error.
    #[track_caller]
    fn passes(&mut self, statement: &str) {
        assert_eq!(self.run(statement), "", "{statement}");
    }

    #[track_caller]
    fn fails(&mut self, statement: &str, error: &str) {
        let said = self.run(statement);
        assert!(said.contains(error), "{statement}: {said:?}, and not {error}");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn psql(server: &Postgres) -> Session {
    Session::start(server.psql(), "\\echo done")
}

/// A server with the script installed and a table to write to.
fn postgres() -> Postgres {
    let server = Postgres::start();
    let mut session = psql(&server);
    session.passes(fence::POSTGRES);
    session.passes("CREATE TABLE draw (n bigserial, token bigint);");
    server
}

fn pass(name: &str, token: &str) -> String {
    format!("SELECT tenure_pass({}, {token});", quoted(name))
}

#[test]
fn postgres_refuses_an_old_token_and_accepts_an_equal_and_a_newer_one() {
    let server = postgres();
    let mut session = psql(&server);
    for name in NAMES {
        for token in ["5", "5", "7", "9223372036854775807"] {
            session.passes(&pass(name, token));
        }
        for token in ["6", "1"] {
            session.fails(&pass(name, token), "TN001");
        }
    }
    for wrong in ["0", "-1"] {
        session.fails(&pass("new", wrong), "23514");
        session.fails(&pass("draw", wrong), "23514");
    }
    session.fails(&pass("draw", "NULL"), "23502");
    session.fails("SELECT tenure_pass(NULL, 5);", "23502");
    session.fails(&pass("draw", "9223372036854775808"), "42883");
    assert_eq!(session.run("SELECT count(*) FROM tenure_fence;"), NAMES.len().to_string());
}

#[test]
fn postgres_tells_the_lock_and_the_token_of_a_refusal() {
    let server = postgres();
    let mut session = psql(&server);
    session.passes(&pass("draw", "7"));
    session.passes("\\set VERBOSITY default");
    session.fails(&pass("draw", "6"), "tenure: old token 6 of lock \"draw\"");
}

#[test]
fn a_paused_holders_late_update_is_refused_and_lands_without_the_token() {
    let server = postgres();
    let locks = Locks::open("memory:").expect("a store");
    let mutex = locks.mutex("draw").expect("a name");
    let first = block_on(mutex.lock()).expect("a grant");
    let old = first.fence();
    block_on(first.release()).expect("it was held");
    let new = block_on(mutex.lock()).expect("a grant").fence();

    let write = |token: u64| format!("INSERT INTO draw (token) VALUES ({token});");
    let (mut new_holder, mut old_holder) = (psql(&server), psql(&server));
    new_holder.passes(&format!("BEGIN; {} {} COMMIT;", pass("draw", &new.to_string()), write(new)));
    old_holder.passes("BEGIN;");
    old_holder.fails(&pass("draw", &old.to_string()), "TN001");
    old_holder.fails(&write(old), "25P02"); // the transaction is aborted
    old_holder.passes("ROLLBACK;");
    assert_eq!(new_holder.run("SELECT token FROM draw;"), new.to_string());
    old_holder.passes(&write(old));
    assert_eq!(new_holder.run("SELECT count(*) FROM draw;"), "2", "nothing refuses what does not pass");
}

/// Two transactions pass concurrently: the second waits until the first ends.
#[track_caller]
fn race(server: &Postgres, isolation: &str, first: &str, end: &str, second: &str) -> String {
    let (mut one, mut other) = (psql(server), psql(server));
    let begin = format!("BEGIN ISOLATION LEVEL {isolation};");
    one.passes(&begin);
    one.passes(&pass("draw", first));
    other.passes(&begin);
    let pid = other.run("SELECT pg_backend_pid();");
    other.send(&pass("draw", second));
    let waits = format!("SELECT wait_event_type FROM pg_stat_activity WHERE pid = {pid};");
    let mut observer = psql(server);
    eventually("the second waits for the first", LIMIT, || observer.run(&waits) == "Lock");
    one.passes(end);
    other.answer()
}

#[test]
fn postgres_judges_a_token_after_the_transaction_before_it_has_ended() {
    let server = postgres();
    psql(&server).passes(&pass("draw", "1"));
    assert_eq!(race(&server, "READ COMMITTED", "5", "COMMIT;", "6"), "");
    let refused = race(&server, "READ COMMITTED", "8", "COMMIT;", "7");
    assert!(refused.contains("TN001"), "{refused}");
    assert_eq!(race(&server, "READ COMMITTED", "10", "ROLLBACK;", "9"), "", "10 has written nothing");
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        let again = race(&server, isolation, "12", "COMMIT;", "13");
        assert!(again.contains("40001"), "{isolation}: {again}");
    }
}

#[test]
fn postgres_judges_the_first_tokens_of_a_name_that_race() {
    let server = postgres();
    let refused = race(&server, "READ COMMITTED", "8", "COMMIT;", "7");
    assert!(refused.contains("TN001"), "{refused}");
}

#[test]
fn postgres_passes_whatever_the_callers_search_path() {
    let server = postgres();
    let mut session = psql(&server);
    session.passes("CREATE SCHEMA other; CREATE TABLE other.tenure_fence (name text, token bigint);");
    session.passes(&pass("draw", "7"));
    session.passes("SET search_path = other;");
    session.fails("SELECT public.tenure_pass('draw', 6);", "TN001");
}

#[test]
fn in_postgres_tokens_of_racing_writers_are_written_in_order() {
    let server = postgres();
    let mut writers: Vec<_> = (0..8).map(|_| psql(&server)).collect();
    for round in 0..10 {
        for (at, writer) in writers.iter_mut().enumerate() {
            let token = (round * 8 + (at * 5 + round * 3) % 8 + 1).to_string();
            let write = format!("INSERT INTO draw (token) VALUES ({token});");
            writer.send(&format!("BEGIN; {} {write} COMMIT;", pass("race", &token)));
        }
        for writer in &mut writers {
            let said = writer.answer();
            assert!(said.is_empty() || said.contains("TN001"), "{said}");
        }
    }
    let mut observer = psql(&server);
    assert_eq!(observer.run(FELL), "0");
    assert_eq!(observer.run("SELECT max(token) FROM draw;"), "80", "the newest is never refused");
}

/// A server with the script installed and a table to write to.
fn mariadb() -> MariaDb {
    let server = MariaDb::start();
    let mut session = mariadb_session(&server);
    session.passes(fence::MYSQL);
    session.passes("CREATE TABLE draw (n BIGINT PRIMARY KEY AUTO_INCREMENT, token BIGINT) ENGINE = InnoDB;");
    server
}

fn mariadb_session(server: &MariaDb) -> Session {
    let mut client = server.client();
    client.arg("--force");
    Session::start(client, "SELECT 'done';")
}

/// MariaDB treats a backslash in a string as an escape.
fn call(name: &str, token: &str) -> String {
    format!("CALL tenure_pass({}, {token});", quoted(&name.replace('\\', "\\\\")))
}

#[test]
fn mariadb_refuses_an_old_token_and_accepts_an_equal_and_a_newer_one() {
    let server = mariadb();
    let mut session = mariadb_session(&server);
    for name in NAMES {
        for token in ["5", "5", "7", "9223372036854775807"] {
            session.passes(&call(name, token));
        }
        for token in ["6", "1"] {
            session.fails(&call(name, token), "(45000)");
            session.fails(&call(name, token), "tenure: old token");
        }
    }
    for wrong in ["0", "-1", "NULL"] {
        session.fails(&call("new", wrong), "want a name and a token above 0");
        session.fails(&call("draw", wrong), "want a name and a token above 0");
    }
    session.fails("CALL tenure_pass(NULL, 5);", "want a name");
    session.fails(&call("draw", "9223372036854775808"), "(22003)");
    let longest = "x".repeat(1_024);
    session.passes(&call(&longest, "5"));
    session.fails(&call(&format!("{longest}x"), "5"), "(22001)");
    assert_eq!(session.run("SELECT count(*) FROM tenure_fence;"), (NAMES.len() + 1).to_string());
}

#[test]
fn mariadb_keeps_a_refused_transaction_open_for_its_rollback() {
    let server = mariadb();
    let mut session = mariadb_session(&server);
    session.passes(&call("draw", "7"));
    session.passes("START TRANSACTION;");
    session.fails(&call("draw", "6"), "tenure: old token");
    session.passes("INSERT INTO draw (token) VALUES (6);");
    session.passes("ROLLBACK;");
    assert_eq!(session.run("SELECT count(*) FROM draw;"), "0");
}

#[test]
fn mariadb_judges_a_token_after_the_transaction_before_it_has_ended() {
    let server = mariadb();
    let race = |isolation: &str, name: &str, first: &str, end: &str, second: &str| {
        let (mut one, mut other) = (mariadb_session(&server), mariadb_session(&server));
        for session in [&mut one, &mut other] {
            session.passes(&format!("SET SESSION TRANSACTION ISOLATION LEVEL {isolation};"));
            session.passes("START TRANSACTION;");
        }
        one.passes(&call(name, first));
        other.send(&call(name, second));
        let mut observer = mariadb_session(&server);
        // InnoDB caches this table for 100 ms after it was last read.
        let waits = "DO SLEEP(0.15);
            SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT';";
        eventually("the second waits for the first", LIMIT, || observer.run(waits) == "1");
        one.passes(end);
        other.answer()
    };
    for isolation in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let name = quoted(isolation);
        let refused = race(isolation, &name, "8", "COMMIT;", "7");
        assert!(refused.contains("old token"), "{isolation}: {refused}, the name's first tokens");
        assert_eq!(race(isolation, &name, "9", "COMMIT;", "10"), "", "{isolation}");
        let refused = race(isolation, &name, "12", "COMMIT;", "11");
        assert!(refused.contains("old token"), "{isolation}: {refused}");
        assert_eq!(race(isolation, &name, "14", "ROLLBACK;", "13"), "", "{isolation}: 14 wrote nothing");
    }
}

#[test]
fn in_mariadb_tokens_of_racing_writers_are_written_in_order() {
    let server = mariadb();
    for round in 0..10 {
        let start = |at: u64| {
            let token = (round * 4 + (at * 3 + round) % 4 + 1).to_string();
            let write = format!("INSERT INTO draw (token) VALUES ({token});");
            let mut client = server.client();
            // The client exits at a refusal, which rolls back.
            client.args(["-e", &format!("START TRANSACTION; {} {write} COMMIT;", call("race", &token))]);
            client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the client mariadb")
        };
        let writers: Vec<_> = (0..4).map(start).collect();
        for writer in writers {
            let ended = writer.wait_with_output().expect("its output");
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(ended.status.success() || said.contains("old token"), "{said}");
        }
    }
    let mut observer = mariadb_session(&server);
    assert_eq!(observer.run(FELL), "0");
    assert_eq!(observer.run("SELECT max(token) FROM draw;"), "40", "the newest is never refused");
}

/// An SQLite file with the script installed and a table to write to.
struct Sqlite {
    _dir: tempfile::TempDir,
    file: PathBuf,
}

impl Sqlite {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("db");
        let new = Self { _dir: dir, file };
        let mut session = new.session();
        session.passes(fence::SQLITE);
        session.passes("CREATE TABLE draw (n INTEGER PRIMARY KEY, token INTEGER);");
        new
    }

    fn session(&self) -> Session {
        Session::start(self.client(), ".print done")
    }

    fn client(&self) -> Command {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).any(|dir| dir.join("sqlite3").exists());
        assert!(found, "no sqlite3 on the path; the tests need it: apt-get install sqlite3");
        let mut client = Command::new("sqlite3");
        client.args(["-batch", "-init", "/dev/null", "-cmd", ".timeout 20000"]).arg(&self.file);
        client
    }
}

fn insert(name: &str, token: &str) -> String {
    format!("INSERT INTO tenure_pass VALUES ({}, {token});", quoted(name))
}

#[test]
fn sqlite_refuses_an_old_token_and_accepts_an_equal_and_a_newer_one() {
    let database = Sqlite::new();
    let mut session = database.session();
    for name in NAMES {
        for token in ["5", "5", "7", "9223372036854775807"] {
            session.passes(&insert(name, token));
        }
        for token in ["6", "1"] {
            session.fails(&insert(name, token), "tenure: old token");
        }
    }
    for wrong in ["0", "-1", "NULL", "'text'", "7.5", "x'07'", "9223372036854775808"] {
        session.fails(&insert("new", wrong), "want a name and a token above 0");
        session.fails(&insert("draw", wrong), "want a name and a token above 0");
    }
    session.fails("INSERT INTO tenure_pass VALUES (NULL, 5);", "want a name");
    session.fails("INSERT INTO tenure_pass VALUES (x'00', 5);", "want a name");
    assert_eq!(session.run("SELECT count(*) FROM tenure_fence;"), NAMES.len().to_string());
}

#[test]
fn sqlite_keeps_a_refused_transaction_open_for_its_rollback() {
    let database = Sqlite::new();
    let mut session = database.session();
    session.passes(&insert("draw", "7"));
    session.passes("BEGIN IMMEDIATE;");
    session.fails(&insert("draw", "6"), "tenure: old token");
    session.passes("INSERT INTO draw (token) VALUES (6);");
    session.passes("ROLLBACK;");
    assert_eq!(session.run("SELECT count(*) FROM draw;"), "0");
}

#[test]
fn in_sqlite_tokens_of_racing_writers_are_written_in_order() {
    let database = Sqlite::new();
    for round in 0..10 {
        let start = |at: u64| {
            let token = (round * 4 + (at * 3 + round) % 4 + 1).to_string();
            let write = format!("INSERT INTO draw (token) VALUES ({token});");
            let mut client = database.client();
            // The client exits at a refusal, which rolls back.
            client.args(["-bail", &format!("BEGIN IMMEDIATE; {} {write} COMMIT;", insert("race", &token))]);
            client
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("sqlite3")
        };
        let writers: Vec<_> = (0..4).map(start).collect();
        for writer in writers {
            let ended = writer.wait_with_output().expect("its output");
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(ended.status.success() || said.contains("old token"), "{said}");
        }
    }
    let mut observer = database.session();
    assert_eq!(observer.run(FELL), "0");
    assert_eq!(observer.run("SELECT max(token) FROM draw;"), "40", "the newest is never refused");
}

fn write_hash(server: &Server, key: &str, arguments: &[&str]) -> Value {
    server
        .client()
        .expect("a connection")
        .command(&[&["EVAL", fence::REDIS, "1", key], arguments].concat())
        .expect("a reply")
}

#[track_caller]
fn is_refused(reply: &Value, error: &str) {
    assert!(matches!(reply, Value::Error(said) if said.contains(error)), "{reply:?}, and not {error}");
}

#[test]
fn redis_writes_a_hash_unless_the_token_is_old() {
    let server = Server::start();
    for key in NAMES {
        for token in ["5", "5", "7", "18446744073709551614", "18446744073709551615"] {
            assert!(write_hash(&server, key, &[token, "winner", token]) == "OK");
        }
        // The difference is below the precision of a Lua number.
        is_refused(&write_hash(&server, key, &["18446744073709551614", "winner", "late"]), "OLDTOKEN");
        is_refused(&write_hash(&server, key, &["9", "winner", "late"]), "OLDTOKEN");
        for wrong in ["0", "-1", "", "07", "0x10", "1e3", "7.5", "nil"] {
            is_refused(&write_hash(&server, key, &[wrong, "winner", "late"]), "BADTOKEN");
        }
        is_refused(&write_hash(&server, key, &[]), "BADTOKEN");
        is_refused(&write_hash(&server, key, &["18446744073709551615", "odd"]), "ERR");
        assert!(server.command(&["HGET", key, "winner"]) == "18446744073709551615");
        assert!(server.command(&["HLEN", key]).int() == 2);
    }
}

#[test]
fn redis_keeps_the_token_from_the_callers_fields_and_other_keys_as_they_are() {
    let server = Server::start();
    assert!(write_hash(&server, "h", &["7", "#token", "1", "a", "b"]) == "OK");
    is_refused(&write_hash(&server, "h", &["6"]), "OLDTOKEN");
    assert!(write_hash(&server, "h", &["7"]) == "OK", "a pass alone writes the token only");
    server.command(&["SET", "string", "x"]);
    is_refused(&write_hash(&server, "string", &["7", "a", "b"]), "WRONGTYPE");
    let many: Vec<String> = (0..6_000).map(|n| n.to_string()).collect();
    let many: Vec<&str> = ["7"].into_iter().chain(many.iter().map(String::as_str)).collect();
    assert!(write_hash(&server, "many", &many) == "OK");
    assert!(server.command(&["HLEN", "many"]).int() == 3_001);
}
