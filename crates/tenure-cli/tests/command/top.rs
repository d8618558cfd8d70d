//! `tenure top` in a terminal multiplexer: its screens, its keys, and the state of the terminal afterwards.

use std::fs::File;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use rustix::termios::tcgetwinsize;
use tenure_testkit::servers::{Server, eventually};

use crate::env::{Running, TestEnv};
use crate::tmux::Tmux;

const HEADER: &str = "NAME         KIND      PERMITS WAIT FOR     LEASE              HELD BY";
const FOOT: &str = "q quit  ↑↓ select  enter details  s sort  / filter  f force  space pause";

/// A mutex, a semaphore, and a fair mutex with a waiter.
fn locks(env: &TestEnv, store: &[&str]) -> Vec<Running> {
    let hold = |options: &[&str], name: &str| {
        env.start_script(&[store, &["--ttl", "1h"], options].concat(), name, "READY; exec sleep 100")
    };
    let mut all = vec![hold(&[], "deploy"), hold(&["--fair"], "queue"), hold(&["--slots", "3"], "render")];
    let waiter = [&["run"], store, &["--ttl", "1h", "--fair", "queue", "--", "true"]].concat();
    let waiter = env.start(env.tenure(waiter));
    waiter.eventually("it waits", || {
        env.run(env.tenure([&["status", "queue"], store].concat())).stdout.contains("waiter: ")
    });
    all.push(waiter);
    all
}

/// The cells below the header, by the columns of the header.
fn cells(screen: &[String]) -> Vec<[String; 7]> {
    let starts: Vec<usize> = ["NAME", "KIND", "PERMITS", "WAIT", "FOR", "LEASE", "HELD BY"]
        .map(|title| HEADER.find(title).expect("a title"))
        .into();
    let rows = screen.iter().skip(3).take_while(|line| !line.is_empty());
    rows.map(|line| {
        let chars: Vec<char> = line.chars().collect();
        let cell = |at: usize| {
            let end = starts.get(at + 1).copied().unwrap_or(usize::MAX).min(chars.len());
            chars[starts[at].min(end)..end].iter().collect::<String>().trim_end().to_owned()
        };
        std::array::from_fn(cell)
    })
    .collect()
}

#[track_caller]
fn assert_screen(screen: &[String], columns: usize, rows: usize) {
    let told = screen.join("\n");
    assert_eq!(screen.len(), rows, "{told}");
    assert!(screen.iter().all(|line| line.chars().count() <= columns), "{told}");
    assert!(screen[0].starts_with("tenure top  file:"), "{told}");
    assert!(screen[0].ends_with("3 locks, 1 waiting, 0.0 hand-overs/s"), "{told}");
    assert_eq!(screen[0].chars().count(), columns, "the counts are at the right: {told}");
    assert!(screen[1].starts_with("refreshed every ") && screen[1].ends_with("sorted by name"), "{told}");
    assert_eq!(screen[2], HEADER);
    let cells = cells(screen);
    let parts = cells.iter().map(|row| [0, 1, 2, 3].map(|at| row[at].as_str())).collect::<Vec<_>>();
    let expected =
        [["deploy", "mutex", "-", "0"], ["queue", "fair", "-", "1"], ["render", "semaphore", "1/3", "0"]];
    assert_eq!(parts, expected, "{told}");
    for [_, _, _, _, held_for, lease, holder] in &cells {
        assert!(held_for.ends_with('s') && lease.starts_with("██████████ 59m"), "{told}");
        assert!(holder.starts_with("alice@") && holder.contains(" pid "), "{told}");
    }
    assert!(screen[6..rows - 1].iter().all(String::is_empty), "{told}");
    assert_eq!(screen[rows - 1], FOOT);
}

#[test]
fn the_screen_of_top_fits_its_terminal_and_follows_its_size() {
    let env = TestEnv::new();
    let _locks = locks(&env, &[]);
    // Under another parent than tmux, which resumes its own children when they stop.
    let script = "sh -c 'echo $$ > top; exec $TENURE top --every 200ms'";
    let terminal = Tmux::start(&env, 80, 24, script);
    assert_screen(&terminal.expect(FOOT), 80, 24);
    terminal.resize(200, 60);
    let is_large =
        |screen: &[String]| screen.len() == 60 && screen[59] == FOOT && screen[0].chars().count() == 200;
    assert_screen(&terminal.until("it has the new size", is_large), 200, 60);
    terminal.resize(80, 24);
    let is_small =
        |screen: &[String]| screen.len() == 24 && screen[23] == FOOT && screen[5].starts_with("render");
    assert_screen(&terminal.until("it has the old size", is_small), 80, 24);
    // A terminal that is too small for the table causes no panic.
    terminal.resize(20, 3);
    terminal.until("it is small", |screen| screen.len() == 3);
    terminal.resize(80, 24);
    assert_screen(&terminal.until("it has the old size", is_small), 80, 24);
    // It is stopped meanwhile, so it knows the old size only.
    let (process, tty) = (env.pid("top"), File::open(terminal.tty()).expect("a terminal"));
    kill_process(process, Signal::STOP).expect("it runs");
    for (columns, rows) in [(20, 3), (80, 24)] {
        terminal.resize(columns, rows);
        eventually("the terminal has this size", Duration::from_secs(20), || {
            tcgetwinsize(&tty).expect("a terminal").ws_row == rows as u16
        });
    }
    kill_process(process, Signal::CONT).expect("it runs");
    assert_screen(&terminal.until("it has the old size", is_small), 80, 24);
}

#[test]
fn keys_select_a_lock_show_its_history_and_filter() {
    let env = TestEnv::new();
    let mut held = locks(&env, &[]);
    let terminal = Tmux::start(&env, 100, 30, "$TENURE top --every 100ms");
    terminal.expect(FOOT);
    terminal.keys(&["Down", "Enter"]);
    let screen = terminal.expect("history");
    assert_eq!(screen[2], "queue: fair mutex");
    assert!(
        screen[3].starts_with("  holder  alice@") && screen[4].starts_with("  waiter  alice@"),
        "{screen:?}"
    );
    let is_line = |line: &String| line.starts_with("  ·") && line.ends_with('▓');
    terminal.until("it has a time line", |screen| screen.iter().any(is_line));
    // The waiter gets the lock and ends, so both are in its history.
    held[1].signal(Signal::TERM);
    let screen = terminal.expect("queue: free");
    assert!(
        screen.iter().any(|line| line.contains("UTC  alice@") && line.ends_with(", released")),
        "{screen:?}"
    );
    terminal.keys(&["Escape"]);
    terminal.expect(FOOT);
    terminal.keys(&["/", "r", "e", "n", "Enter"]);
    terminal.until("only one is left", |screen| {
        let cells = cells(screen);
        cells.len() == 1 && cells[0][0] == "render"
    });
    held.clear();
}

#[test]
fn top_ends_holds_only_after_it_asked_twice() {
    let env = TestEnv::new();
    let _held = locks(&env, &[]);
    let terminal = Tmux::start(&env, 100, 30, "$TENURE top --every 100ms");
    terminal.expect(FOOT);
    terminal.keys(&["f"]);
    terminal.expect("End 1 hold of deploy?");
    terminal.keys(&["y", "y"]);
    terminal.expect(FOOT);
    assert!(env.run(env.tenure(["status", "deploy"])).exits_with(0).stdout.contains("holder: "));
    terminal.keys(&["f", "y"]);
    terminal.expect("Really? Y yes");
    terminal.keys(&["Y"]);
    terminal.expect("deploy: 1 hold ended");
    terminal.until("it is gone", |screen| cells(screen).iter().all(|row| row[0] != "deploy"));
}

#[test]
fn top_outlives_a_store_that_comes_and_goes_and_never_asks_for_all_keys_at_once() {
    let (env, server) = (TestEnv::new(), Server::start());
    let url = server.url();
    let store = ["--store", url.as_str()];
    let _locks = locks(&env, &store);
    let script = format!("$TENURE top --every 100ms --store {url}");
    let terminal = Tmux::start(&env, 100, 30, &script);
    terminal.expect(FOOT);
    eventually("it asked several times", Duration::from_secs(10), || {
        server.info_commandstats().get("scan").is_some_and(|count| *count > 5)
    });
    let calls = server.info_commandstats();
    assert!(!calls.contains_key("keys") && !calls.contains_key("psubscribe"), "{calls:?}");
    server.kill();
    let screen = terminal.expect(" old: ");
    assert_eq!(cells(&screen).len(), 3, "what was seen stays: {screen:?}");
    server.restart();
    terminal.until("it asks again", |screen| screen[1].starts_with("refreshed every "));
    terminal.keys(&["q"]);
    terminal.until("it ends", |_| !terminal.is_alternate());
}

fn settings(tty: &str) -> String {
    let said = Command::new("stty").args(["-F", tty, "-a"]).output().expect("stty");
    String::from_utf8(said.stdout).expect("text")
}

#[test]
fn the_terminal_is_restored_when_top_ends_by_a_key_or_a_signal() {
    let env = TestEnv::new();
    let _locks = locks(&env, &[]);
    for (signal, code) in [(None, 0), (Some(Signal::TERM), 143), (Some(Signal::HUP), 129)] {
        let script = "echo before; sh -c 'echo $$ > pid; exec $TENURE top'; echo code $?";
        let terminal = Tmux::start(&env, 80, 24, script);
        terminal.expect(FOOT);
        let tty = terminal.tty();
        assert!(settings(&tty).contains("-icanon"), "{}\n{tty} {:?}", settings(&tty), terminal.screen());
        assert!(terminal.is_alternate());
        match signal {
            None => terminal.keys(&["q"]),
            Some(signal) => kill_process(env.pid("pid"), signal).expect("it runs"),
        }
        let screen = terminal.expect(&format!("code {code}"));
        assert!(!terminal.is_alternate(), "{screen:?}");
        assert_eq!(screen[0], "before", "{screen:?}");
        let after = settings(&tty);
        let is_on = |flag: &str| after.split_whitespace().any(|word| word == flag);
        assert!(["icanon", "echo", "isig", "opost"].into_iter().all(is_on), "{after}");
    }
}

#[test]
fn colours_are_those_that_all_can_tell_apart_or_none() {
    let env = TestEnv::new();
    let _locks = locks(&env, &[]);
    let coloured = |script: &str| {
        let terminal = Tmux::start(&env, 80, 24, script);
        terminal.expect(FOOT);
        terminal.coloured()
    };
    assert!(coloured("TERM=xterm-256color $TENURE top").contains("38;5;32"));
    let plain = coloured("NO_COLOR=1 TERM=xterm-256color $TENURE top");
    let sets_colour =
        |code: &str| plain.contains(&format!("\x1b[{code}")) || plain.contains(&format!(";{code}"));
    assert!(
        !["30", "31", "32", "33", "34", "35", "36", "37", "38"].into_iter().any(sets_colour),
        "{plain:?}"
    );
}

#[test]
fn top_without_a_terminal_or_a_store_is_an_error_of_one_line() {
    let env = TestEnv::new();
    env.run(env.tenure(["top"])).exits_with(64).says("needs a terminal");
    let terminal = Tmux::start(&env, 100, 24, "$TENURE top --store redis://127.0.0.1:1; echo code $?");
    let screen = terminal.expect("code 69");
    assert!(screen[0].starts_with("tenure: cannot reach store redis://127.0.0.1:1/0"), "{screen:?}");
}
