//! How a run ends: every fate of the lock, every way in which a command handles a signal, with and without a
//! terminal.

use std::fs;
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use tenure::{Locks, block_on};
use tenure_testkit::servers::eventually;

use crate::env::{LIMIT, TestEnv, is_alive, until_gone};
use crate::terminal::Session;

/// How the command handles signals, and whether it has a child that ignores them.
#[derive(Clone, Copy, Debug)]
enum Child {
    Obeys,
    Ignores,
    Forks,
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    /// The command exits with this code.
    Exits(i32),
    /// The lock is kept, and `tenure run` gets this signal.
    Signalled(Signal),
    Lost,
    ServerGone,
}

const LINES: usize = 200;

impl Child {
    /// Logs its signals, creates a file `up`, and exits with the code in the file `end`.
    fn script(self) -> String {
        let lines = format!("i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo line $i; done; ");
        let wait = "while [ ! -e end ]; do sleep 0.02; done; exit $(cat end)";
        let grandchild = r#"sh -c 'trap "" TERM INT HUP; echo $$ > grandchild; while [ ! -e end ]; do sleep 0.02; done' & "#;
        let before = match self {
            Self::Obeys => "",
            Self::Ignores => "trap '' TERM INT HUP; ",
            Self::Forks => grandchild,
        };
        let up =
            if matches!(self, Self::Forks) { "while [ ! -s grandchild ]; do sleep 0.01; done; " } else { "" };
        format!("{before}{lines}{up}echo $$ > up.new; mv up.new up; {wait}")
    }
}

/// The documented exit code.
fn code(child: Child, fate: Fate) -> i32 {
    match (fate, child) {
        (Fate::Exits(code), _) => code,
        // --kill-after
        (Fate::Signalled(_), Child::Ignores) => 128 + Signal::KILL.as_raw(),
        (Fate::Signalled(signal), _) => 128 + signal.as_raw(),
        (Fate::Lost | Fate::ServerGone, _) => 79,
    }
}

/// Runs one case, and reports differences from the documentation.
fn check(on_terminal: bool, child: Child, fate: Fate) {
    let env = TestEnv::new();
    let case = format!("terminal {on_terminal}, {child:?}, {fate:?}");
    let ttl = if matches!(fate, Fate::ServerGone) { "1500ms" } else { "30s" };
    fs::write(env.path("script"), child.script()).expect("a file");
    let words = format!("run --ttl {ttl} --kill-after 300ms x -- sh script");
    let mut session = None;
    let mut running = None;
    if on_terminal {
        session = Some(Session::script(&env, &format!("echo $$ > wrapper; exec \"$TENURE\" {words}")));
    } else {
        let script = format!("echo $$ > wrapper; exec \"$0\" {words}");
        let mut command = env.program("sh");
        command.args(["-c", &script, crate::env::BINARY]);
        running = Some(env.start(command));
    }
    eventually(&format!("it is up: {case}"), LIMIT, || {
        session.iter_mut().for_each(Session::look);
        env.path("up").exists()
    });
    let (wrapper, command) = (env.pid("wrapper"), env.pid("up"));
    match fate {
        Fate::Exits(code) => {
            // Renamed, because the script reads it as soon as it exists.
            fs::write(env.path("code"), code.to_string()).expect("a file");
            fs::rename(env.path("code"), env.path("end")).expect("a file");
        }
        Fate::Signalled(signal) => kill_process(wrapper, signal).expect("it runs"),
        Fate::Lost => {
            let locks = block_on(Locks::connect(&env.url())).expect("the store");
            assert!(block_on(locks.force_release("x")).expect("an answer").is_some(), "{case}");
        }
        Fate::ServerGone => {
            fs::rename(env.store(), env.path("away")).expect("a directory");
            fs::write(env.store(), "no directory").expect("a file");
        }
    }
    let (ended, output) = match (session, running) {
        (Some(session), _) => {
            let (status, screen) = session.wait();
            (status.code(), screen.replace("\r\n", "\n"))
        }
        (None, Some(running)) => {
            let said = running.wait();
            (said.code(), format!("{}{}", said.stdout, said.stderr))
        }
        (None, None) => unreachable!("one of them was started"),
    };
    assert_eq!(ended, Some(code(child, fate)), "{case}\n{output}");
    let lines: String = (1..=LINES).map(|number| format!("line {number}\n")).collect();
    assert!(output.starts_with(&lines), "{case}: output is missing\n{output}");
    let said = output[lines.len()..].lines().filter(|line| line.starts_with("tenure: ")).count();
    assert_eq!(said, usize::from(ended == Some(79)), "{case}\n{output}");
    assert!(!is_alive(command), "{case}: the command is left over");
    if matches!(child, Child::Forks) {
        let grandchild: Pid = env.pid("grandchild");
        // While the lock is kept, a child that ignores the signal is the command's own business.
        if matches!(fate, Fate::Signalled(_)) {
            fs::write(env.path("end"), "0").expect("a file");
        }
        until_gone(grandchild);
    }
    if !matches!(fate, Fate::ServerGone) {
        env.tenure_run(["-n", "x", "--", "true"]).exits_with(0);
    }
}

#[test]
fn every_end_of_a_run_has_its_code_keeps_all_output_and_leaves_no_process() {
    let fates = [
        Fate::Exits(0),
        Fate::Exits(7),
        Fate::Signalled(Signal::TERM),
        Fate::Signalled(Signal::INT),
        Fate::Signalled(Signal::HUP),
        Fate::Lost,
        Fate::ServerGone,
    ];
    let children = [Child::Obeys, Child::Ignores, Child::Forks];
    let cases: Vec<_> = [false, true]
        .into_iter()
        .flat_map(|terminal| children.into_iter().map(move |child| (terminal, child)))
        .flat_map(|(terminal, child)| fates.into_iter().map(move |fate| (terminal, child, fate)))
        .collect();
    assert_eq!(cases.len(), 42);
    thread::scope(|scope| {
        for part in cases.chunks(11) {
            scope.spawn(move || {
                part.iter().for_each(|(terminal, child, fate)| check(*terminal, *child, *fate))
            });
        }
    });
}

#[test]
fn a_lost_run_is_begun_again_with_retry_lost_and_a_signal_ends_it() {
    let env = TestEnv::new();
    let script = "echo $TENURE_FENCE >> turns; READY; while [ ! -e end ]; do sleep 0.02; done; exit 3";
    let running = env.start_script(&["--ttl", "900ms", "--retry-lost"], "x", script);
    let turns = || env.read("turns").lines().count();
    let locks = block_on(Locks::connect(&env.url())).expect("the store");
    for turn in 1..=2 {
        running.eventually("it runs", || turns() == turn);
        assert!(block_on(locks.force_release("x")).expect("an answer").is_some());
    }
    running.eventually("it runs again", || turns() == 3);
    let turns: Vec<u64> = env.read("turns").lines().map(|line| line.parse().expect("a token")).collect();
    assert!(turns.is_sorted_by(|a, b| a < b), "{turns:?}");
    env.end();
    let said = running.wait().exits_with(3);
    assert_eq!(said.stderr.matches("waiting for the lock again").count(), 2, "{said:?}");

    fs::remove_file(env.path("end")).expect("a file");
    let running = env.start_script(&["--ttl", "900ms", "--retry-lost"], "x", script);
    running.signal(Signal::TERM);
    running.wait().exits_with(143);
}

#[test]
fn a_command_in_the_foreground_shares_the_group_the_keys_and_the_terminal() {
    let env = TestEnv::new();
    let same = "test $(ps -o pgid= $$) = $(ps -o pgid= $PPID)";
    env.tenure_run(["--foreground", "x", "-c", same]).exits_with(0);
    env.tenure_run(["x", "-c", same]).exits_with(1);
    // It gets a key once, and reads input. A trap set just before `read` would run after it.
    let script = r#"trap 'echo got; on=1' INT; echo ready; until [ $on ]; do sleep 0.02; done
        read line; echo "line $line"; exit 4"#;
    fs::write(env.path("script"), script).expect("a file");
    let mut session = Session::script(&env, r#"trap : INT; "$TENURE" run --foreground x -- bash script"#);
    session.expect("ready");
    session.keys("\x03");
    session.expect("got");
    session.keys("text\n");
    session.expect("line text");
    let screen = session.exits_with(4);
    assert_eq!(screen.matches("got").count(), 1, "{screen}");
    // Only the command gets a signal, and a loss stops it.
    let running = env.start_script(&["--foreground"], "x", "READY; exec sleep 30");
    running.signal(Signal::INT);
    running.wait().exits_with(130);
    let running = env.start_script(&["--foreground", "--ttl", "900ms"], "x", "READY; exec sleep 30");
    let locks = block_on(Locks::connect(&env.url())).expect("the store");
    assert!(block_on(locks.force_release("x")).expect("an answer").is_some());
    running.wait().exits_with(79).says("lost");
}
