//! As process 1 of a container, or as a subreaper, the wrapper reaps orphans.

use std::process::Command;

use rustix::process::{Signal, geteuid};

use crate::env::{BINARY, TestEnv};

/// Leaves five orphans that end, and a child whose status it reads afterwards.
const SCRIPT: &str = r#"
sh -c 'exit 9' & own=$!
for orphan in 1 2 3 4 5; do sh -c '(sleep 0.1; exit 4) & exit 0'; done
touch up
while [ ! -e end ]; do sleep 0.02; done
wait $own; echo "own $?"
exit 3
"#;

/// Number of zombies in the container.
const ZOMBIES: &str = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l";

fn container(env: &TestEnv) -> Command {
    let mut command = env.program("unshare");
    if !geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    command
}

#[test]
#[cfg_attr(tenure_portable, ignore = "only Linux makes a program the parent of orphans")]
fn the_first_process_of_a_container_reaps_orphans_and_keeps_the_status_of_its_command() {
    let env = TestEnv::new();
    // Its own child stays a zombie until its parent waits for it.
    let until_reaped = format!("sleep 0.3; until [ $({ZOMBIES}) -le 1 ]; do sleep 0.02; done; touch up");
    let script = SCRIPT.replace("touch up", &until_reaped);
    let mut command = container(&env);
    command.args([BINARY, "run", "x", "--", "sh", "-c", &script]);
    let running = env.start(command);
    running.eventually("all five are gone", || env.path("up").exists());
    env.end();
    let said = running.wait().exits_with(3).says_nothing();
    assert_eq!(said.stdout, "own 9\n");
}

#[test]
fn the_first_process_of_a_container_still_tells_how_its_command_ended() {
    let env = TestEnv::new();
    for (script, code) in [("exit 7", 7), ("kill -KILL $$", 128 + Signal::KILL.as_raw()), ("true", 0)] {
        for _ in 0..5 {
            let mut command = container(&env);
            command.args([BINARY, "run", "x", "--", "sh", "-c", script]);
            env.run(command).exits_with(code);
        }
    }
}
