//! The wrapper is killed: what ends with it, and what escapes.

use rustix::process::{Pid, Signal, kill_process};

use crate::env::{TestEnv, is_alive, until_gone};

/// A prefix that changes the user of a command, so that the kernel's parent death signal is cleared.
pub(crate) fn another_user() -> &'static [&'static str] {
    match rustix::process::geteuid().is_root() {
        true => &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"],
        false => &["unshare", "--user", "--"],
    }
}

pub(crate) fn with_rights_for_all(env: &TestEnv) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(env.path(""), std::fs::Permissions::from_mode(0o777)).unwrap();
}

/// Runs these words under the lock, and kills the wrapper when the file `up` has a pid.
fn kill_the_wrapper_of(env: &TestEnv, words: &[&str]) -> Pid {
    let mut command = env.tenure_run_command(["x", "--"]);
    command.args(words);
    let running = env.start(command);
    running.eventually("the command is up", || env.read("up").ends_with('\n'));
    let pid = env.pid("up");
    assert!(is_alive(pid));
    running.signal(Signal::KILL);
    drop(running);
    pid
}

#[test]
fn a_command_that_changed_its_user_dies_with_its_wrapper() {
    let env = TestEnv::new();
    with_rights_for_all(&env);
    let script = "echo $$ > up.new; mv up.new up; exec sleep 60";
    let words = [another_user(), &["sh", "-c", script]].concat();
    until_gone(kill_the_wrapper_of(&env, &words));
}

#[test]
fn what_a_command_that_changed_its_user_started_dies_with_the_wrapper() {
    let env = TestEnv::new();
    with_rights_for_all(&env);
    let script = "sleep 60 & echo $! > up.new; mv up.new up; wait";
    let words = [another_user(), &["sh", "-c", script]].concat();
    until_gone(kill_the_wrapper_of(&env, &words));
}

#[test]
fn a_command_that_left_its_group_gets_signals_and_dies_with_its_wrapper() {
    let env = TestEnv::new();
    // It joins its child's group.
    let script = r#"
import os, signal, time
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    time.sleep(20)
    os._exit(0)
while os.getpgid(child) != child:
    time.sleep(0.001)
os.setpgid(0, child)
def told(*_):
    open("told", "w").write("TERM")
    os.kill(child, signal.SIGKILL)
    os._exit(7)
signal.signal(signal.SIGTERM, told)
open("up.new", "w").write(f"{os.getpid()}\n")
os.rename("up.new", "up")
# Python hears of a signal that comes just before a sleep after it.
while True:
    time.sleep(0.05)
"#;
    let words = ["python3", "-c", script];
    let command = kill_the_wrapper_of(&env, &words);
    until_gone(command);
    std::fs::remove_file(env.path("up")).unwrap();

    // Told to end, or stopped because the lease is lost.
    for by_loss in [false, true] {
        let mut command = env.tenure_run_command(["--ttl", "900ms", "y", "--"]);
        command.args(words);
        let running = env.start(command);
        running.eventually("the command is up", || env.path("up").exists());
        if by_loss {
            env.run(env.tenure(["release", "--force", "y"])).exits_with(0);
        } else {
            running.signal(Signal::TERM);
        }
        running.wait().exits_with(if by_loss { 79 } else { 7 });
        assert_eq!(env.read("told"), "TERM");
        std::fs::remove_file(env.path("told")).unwrap();
        std::fs::remove_file(env.path("up")).unwrap();
    }
}

/// A documented limitation without the rights of a service manager.
#[test]
fn what_moved_to_a_session_of_its_own_escapes_and_keeps_a_file_lock() {
    let env = TestEnv::new();
    let script = "setsid sh -c 'echo $$ > up.new; mv up.new up; exec sleep 60' & wait";
    let escaped = kill_the_wrapper_of(&env, &["sh", "-c", script]);
    env.tenure_run(["-w", "0.5", "x", "--", "true"]).exits_with(75);
    assert!(is_alive(escaped));
    kill_process(escaped, Signal::KILL).unwrap();
    env.tenure_run(["-w", "10", "x", "--", "true"]).exits_with(0);
}

#[test]
fn what_a_command_left_in_the_background_outlives_the_wrapper_that_ended() {
    let env = TestEnv::new();
    let script = "sleep 60 & echo $! > up";
    env.tenure_run(["x", "--", "sh", "-c", script]).exits_with(0);
    // The watchdog has ended with the wrapper.
    assert!(is_alive(env.pid("up")));
    kill_process(env.pid("up"), Signal::KILL).unwrap();
}
