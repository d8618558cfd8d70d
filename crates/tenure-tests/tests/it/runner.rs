//! The runner of the test binaries, which lists failures that overlap a stall.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// A fake test binary that stops its runner for a moment, like a stall of the machine.
const BINARY: &str = r#"#!/bin/sh
case "$*" in
*--list*) printf 'a: test\nb: test\n' ;;
*)
    kill -STOP $PPID; sleep 0.3; kill -CONT $PPID
    printf 'test a ... ok\ntest b ... FAILED\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\n'
    exit 101
    ;;
esac
"#;

#[test]
fn a_failure_during_a_stall_is_listed_for_a_second_try() {
    let dir = tempfile::tempdir().expect("a directory");
    let (binary, list) = (dir.path().join("suite"), dir.path().join("list"));
    fs::write(&binary, BINARY).expect("a file");
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).expect("it may run");
    let run = |binary: &std::path::Path| {
        let mut runner = Command::new(env!("CARGO_BIN_EXE_runner"));
        runner.arg(binary).current_dir(dir.path()).env("TENURE_RERUN", &list);
        runner.output().expect("the runner")
    };
    let said = run(&binary);
    let text = String::from_utf8(said.stdout).expect("text");
    assert!(said.status.success() && text.contains("test b ... FAILED\n"), "{text}");
    let line = format!("{}\t{}\tb\n", dir.path().display(), binary.display());
    assert_eq!(fs::read_to_string(&list).expect("a list"), line);

    // A binary that ended before its summary has failed, stall or not.
    fs::write(&binary, BINARY.replace("test result", "")).expect("a file");
    assert_eq!(run(&binary).status.code(), Some(101));
}
