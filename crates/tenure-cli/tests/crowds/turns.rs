//! Many turns on one name.

use std::thread;
use std::time::Duration;

use crate::env::TestEnv;

/// Logs the beginning and end of a turn, without starting a process.
const TURN: &str = r#"echo "in $TENURE_FENCE" >> log; echo "out $TENURE_FENCE" >> log"#;

#[test]
fn eight_processes_take_200_turns_each_without_meeting_and_tokens_grow() {
    let env = TestEnv::new();
    let many =
        format!(r#"i=0; while [ $i -lt 200 ]; do "$0" run x -- sh -c '{TURN}' || exit; i=$((i + 1)); done"#);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut command = env.program("sh");
                command.args(["-c", &many, crate::env::BINARY]);
                env.start(command).wait_for(Duration::from_secs(300)).exits_with(0).says_nothing();
            });
        }
    });
    let log = env.read("log");
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 8 * 200 * 2);
    let mut last = 0;
    for turn in lines.chunks(2) {
        let token = turn[0].strip_prefix("in ").expect("one gets in when all are out");
        assert_eq!(turn[1].strip_prefix("out "), Some(token), "and gets out before anybody gets in");
        let token = token.parse::<u64>().unwrap();
        assert!(last < token, "{last} then {token}");
        last = token;
    }
}
