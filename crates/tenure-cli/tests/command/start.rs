//! The shell commands of book/start, with small programs in place of `sleep`, `cargo` and so on.

use std::path::Path;

use tenure_testkit::servers::Server;

use crate::cookbook::{program, shell};
use crate::env::{Outcome, Running, TestEnv};
use crate::tmux::Tmux;

const TUTORIAL: &str = include_str!("../../../../book/start/tutorial.md");
const REDIS: &str = include_str!("../../../../book/start/redis.md");

/// The blocks of a page. A new block needs a place in its test.
fn blocks<const COUNT: usize>(page: &'static str) -> [&'static str; COUNT] {
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or(rest));
    blocks.collect::<Vec<_>>().try_into().expect("as many blocks as the test runs")
}

/// The commands of a block, without their comments.
fn lines(block: &str) -> impl Iterator<Item = &str> {
    block.lines().map(|line| line.split("  #").next().unwrap_or(line).trim_end())
}

/// An environment with the programs of the pages. `sleep 10` runs until there is a file `go`.
fn prepare() -> TestEnv {
    let env = TestEnv::new();
    program(
        &env,
        "sleep",
        "[ \"$1\" = 10 ] || exec /bin/sleep \"$@\"; while [ ! -e go ]; do /bin/sleep 0.02; done",
    );
    program(&env, "cargo", "echo \"$*\" > cargo.log");
    program(&env, "report", "echo \"$0\" >> done.log");
    std::fs::rename(env.path("bin/report"), env.path("report.sh")).expect("a program");
    env
}

fn start(env: &TestEnv, script: &str) -> Running {
    env.start(shell(env, script, &[]))
}

fn run(env: &TestEnv, script: &str) -> Outcome {
    start(env, script).wait()
}

fn start_the_long_one(env: &TestEnv, script: &str) -> Running {
    let running = start(env, script);
    running.eventually("it has started", || running.stdout() == "start\n");
    running
}

#[test]
fn the_commands_of_the_tutorial_do_what_it_says() {
    let env = prepare();
    let [install, long, look, skip, lose] = blocks(TUTORIAL);
    run(&env, install).exits_with(0);
    let path = env.read("cargo.log").trim().strip_prefix("install --path ").expect("a path").to_owned();
    assert!(Path::new(env!("CARGO_MANIFEST_DIR")).ends_with(&path), "{path}");

    let first = start_the_long_one(&env, long);
    let second = start(&env, long);
    let [status, list, top] = lines(look).collect::<Vec<_>>().try_into().expect("three commands");
    let said = run(&env, status).exits_with(0).stdout;
    assert!(said.starts_with("held as a mutex\nholder: alice@"), "{said}");
    assert!(run(&env, list).exits_with(0).stdout.contains("nightly"));
    let screen = Tmux::start(&env, 100, 10, &format!("PATH={}:$PATH; {top}", env.path("bin").display()));
    screen.until("top shows it", |lines| lines.iter().any(|line| line.starts_with("nightly ")));
    screen.keys(&["q"]);

    let [busy, wait] = lines(skip).collect::<Vec<_>>().try_into().expect("two commands");
    run(&env, busy).exits_with(75);
    let wait = start(&env, wait);
    assert_eq!(second.stdout(), "");
    std::fs::write(env.path("go"), "").expect("a file");
    for one in [first, second] {
        assert_eq!(one.wait().exits_with(0).stdout, "start\ndone\n");
    }
    wait.wait().exits_with(0);
    assert_eq!(env.read("done.log"), "./report.sh\n");

    let [holder, force] = lines(lose).collect::<Vec<_>>().try_into().expect("two commands");
    let holder = start(&env, holder.strip_suffix(" &").expect("a job of the shell"));
    holder.eventually("it holds", || run(&env, status).code() == Some(0));
    run(&env, force).exits_with(0);
    holder.wait().exits_with(79);
}

#[test]
fn the_commands_of_the_page_about_redis_do_what_it_says() {
    let (env, server) = (prepare(), Server::start());
    let port = server.address().port();
    program(&env, "redis-cli", &format!("exec /usr/bin/redis-cli -p {port} \"$@\""));
    let [long, doctor, key, urls] = blocks(REDIS);
    let here = |text: &str| text.replace("redis://localhost", &server.url());
    let (export, _) = long.split_once('\n').expect("two lines");
    let with_store = |text: &str| here(&format!("{export}\n{text}"));

    let holder = start_the_long_one(&env, &here(long));
    assert!(run(&env, &with_store(key)).exits_with(0).stdout.starts_with("alice@"));
    let findings = run(&env, &with_store(doctor)).exits_with(1).stdout;
    assert!(findings.contains("appendonly is no\n  why: "), "{findings}");
    std::fs::write(env.path("go"), "").expect("a file");
    holder.wait().exits_with(0);

    for assignment in urls.lines() {
        let said = run(&env, &format!("export {assignment}; tenure config")).exits_with(0).stdout;
        assert!(said.contains("://db1:6379/0\""), "{said}");
    }
}
