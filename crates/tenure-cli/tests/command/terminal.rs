//! On a real terminal, in a new session.

use std::fs;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, fcntl_setfl};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::env::{BINARY, LIMIT, TestEnv, is_alive, now};

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// A program that leads a session on a new terminal.
pub(crate) struct Session {
    child: Child,
    keys: OwnedFd,
    screen: String,
    /// Length of the output that was already matched.
    read: usize,
}

impl Session {
    pub(crate) fn start(env: &TestEnv, args: &[&str]) -> Self {
        let close = OpenptFlags::from_bits_retain(OFlags::CLOEXEC.bits()); // not named on macOS
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | close;
        let keys = openpt(flags).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let path = ptsname(&keys, Vec::new()).unwrap();
        let tty =
            rustix::fs::open(&path, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        fcntl_setfl(&keys, OFlags::NONBLOCK).unwrap();
        let mut command: Command = env.program("setsid");
        command.args(["--ctty", "--wait"]).args(args).env("PS1", "> ").env("TENURE", BINARY);
        command.stdin(tty.try_clone().unwrap()).stdout(tty.try_clone().unwrap()).stderr(tty);
        Self { child: command.spawn().unwrap(), keys, screen: String::new(), read: 0 }
    }

    pub(crate) fn script(env: &TestEnv, script: &str) -> Self {
        Self::start(env, &["sh", "-c", script])
    }

    pub(crate) fn keys(&self, keys: &str) {
        assert_eq!(rustix::io::write(&self.keys, keys.as_bytes()), Ok(keys.len()));
    }

    pub(crate) fn look(&mut self) {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = rustix::io::read(&self.keys, &mut bytes) {
            self.screen.push_str(&String::from_utf8_lossy(&bytes[..length]));
        }
    }

    /// Waits for this text in the output after the last match.
    #[track_caller]
    pub(crate) fn expect(&mut self, text: &str) {
        let end = now() + LIMIT;
        loop {
            self.look();
            if let Some(at) = self.screen[self.read..].find(text) {
                self.read += at + text.len();
                return;
            }
            assert!(now() < end, "no {text:?} on the screen:\n{}", self.screen);
            sleep(Duration::from_millis(2));
        }
    }

    #[track_caller]
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let end = now() + LIMIT;
        loop {
            self.look();
            if let Some(status) = self.child.try_wait().unwrap() {
                self.look();
                return (status, std::mem::take(&mut self.screen));
            }
            assert!(now() < end, "still running:\n{}", self.screen);
            sleep(Duration::from_millis(2));
        }
    }

    #[track_caller]
    pub(crate) fn exits_with(self, code: i32) -> String {
        let (status, screen) = self.wait();
        assert_eq!(status.code(), Some(code), "{screen}");
        screen
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const COUNT_INT: &str =
    r#"trap "echo got it" INT; echo ready; while [ ! -e end ]; do sleep 0.02; done; exit 3"#;

/// The key reaches the command alone, which dies of it.
#[test]
fn ctrl_c_ends_a_scheduler_whose_command_dies_of_it() {
    let env = TestEnv::new();
    for job in ["a", "b", "c"] {
        let script = format!(
            r#"exec "$TENURE" run --store {} --once-per 1d --forever {job} -- sh -c 'echo ready; exec sleep 60'"#,
            env.url()
        );
        let mut session = Session::script(&env, &script);
        session.expect("ready");
        session.keys(CTRL_C);
        session.exits_with(130);
    }
}

#[test]
fn ctrl_c_reaches_the_command_exactly_once() {
    let env = TestEnv::new();
    for around in ["exec", ""] {
        let _ = fs::remove_file(env.path("end"));
        let mut session =
            Session::script(&env, &format!(r#"{around} "$TENURE" run x -- sh -c '{COUNT_INT}'; exit $?"#));
        session.expect("ready");
        session.keys(CTRL_C);
        session.expect("got it");
        sleep(Duration::from_millis(100)); // time for a second one
        env.end();
        let screen = session.exits_with(3);
        assert_eq!(screen.matches("got it").count(), 1, "{screen}");
    }
}

#[test]
fn ctrl_c_in_a_pipeline_reaches_the_command_exactly_once() {
    let env = TestEnv::new();
    let script = format!(r#"trap : INT; "$TENURE" run x -- sh -c '{COUNT_INT}' | (trap '' INT; cat)"#);
    let mut session = Session::script(&env, &script);
    session.expect("ready");
    session.keys(CTRL_C);
    session.expect("got it");
    sleep(Duration::from_millis(100));
    env.end();
    let (_, screen) = session.wait();
    assert_eq!(screen.matches("got it").count(), 1, "{screen}");
}

#[test]
fn ctrl_c_ends_the_script_around_too() {
    let env = TestEnv::new();
    let mut session =
        Session::script(&env, r#""$TENURE" run x -- sh -c 'echo ready; exec sleep 30'; echo not reached"#);
    session.expect("ready");
    session.keys(CTRL_C);
    let (_, screen) = session.wait();
    assert!(!screen.contains("not reached"), "{screen}");
    env.tenure_run(["-n", "x", "--", "true"]).exits_with(0);
}

#[test]
fn ctrl_c_while_waiting_ends_the_wait() {
    let env = TestEnv::new();
    let holder = env.start_script(&[], "x", "READY; exec sleep 30");
    let mut session = Session::start(&env, &[BINARY, "run", "-v", "x", "--", "touch", "ran"]);
    session.expect("waiting");
    session.keys(CTRL_C);
    session.exits_with(130);
    holder.signal(rustix::process::Signal::TERM);
    holder.wait().exits_with(143);
    assert!(!env.path("ran").exists());
}

#[test]
fn a_wait_shows_for_whom_on_one_line_that_goes_away() {
    let env = TestEnv::new();
    let holder = env.start_script(&["--fair", "--label", "job 7"], "x", "READY; exec sleep 30");
    let waits = |env: &TestEnv| env.run(env.tenure(["status", "x"])).stdout.contains("waiter: ");
    let first = env.start(env.tenure_run_command(["--fair", "x", "--", "true"]));
    first.eventually("it waits", || waits(&env));
    let script = r#"stty columns 250; exec "$TENURE" run --fair x -- echo done"#;
    let mut session = Session::script(&env, script);
    session.expect("tenure: waiting ");
    session.expect("s for alice@");
    session.expect(r#" "job 7", for "#);
    session.expect("; place 2 in the queue");
    session.expect("\r\u{1b}[Ktenure: waiting ");
    session.expect("s for alice@");
    holder.signal(rustix::process::Signal::TERM);
    session.expect("\r\u{1b}[Kdone");
    session.exits_with(0);
    holder.wait().exits_with(143);
    first.wait().exits_with(0);
}

#[test]
fn a_terminal_without_a_width_shows_for_whom_too() {
    let env = TestEnv::new();
    let holder = env.start_script(&[], "x", "READY; exec sleep 30");
    let mut session = Session::script(&env, r#"stty columns 0; exec "$TENURE" run x -- echo done"#);
    session.expect("tenure: waiting ");
    session.expect("s for alice@");
    holder.signal(rustix::process::Signal::TERM);
    session.expect("done");
    session.exits_with(0);
    holder.wait().exits_with(143);
}

#[test]
fn the_command_has_the_terminal_and_gives_it_back() {
    let env = TestEnv::new();
    let script =
        r#""$TENURE" run x -- sh -c 'read line; echo "command: $line"'; read line; echo "script: $line""#;
    let mut session = Session::script(&env, script);
    session.keys("one\n");
    session.expect("command: one");
    session.keys("two\n");
    session.expect("script: two");
    session.exits_with(0);
}

#[test]
fn in_a_pipeline_the_command_that_reads_has_the_terminal() {
    let env = TestEnv::new();
    let reader =
        r#""$TENURE" run x -- echo piped | sh -c 'read line; read key </dev/tty; echo "$line, $key"'"#;
    let mut session = Session::script(&env, reader);
    session.keys("one\n");
    session.expect("piped, one");
    session.exits_with(0);
    let command = r#""$TENURE" run x -- sh -c 'read key </dev/tty; echo "key: $key"' | cat; read line; echo "then $line""#;
    let mut session = Session::script(&env, command);
    session.keys("one\n");
    session.expect("key: one");
    session.keys("two\n");
    session.expect("then two");
    session.exits_with(0);
}

#[test]
fn ctrl_z_stops_and_fg_goes_on() {
    let env = TestEnv::new();
    let mut session = Session::start(&env, &["sh", "-i"]);
    session.keys("\"$TENURE\" run x -- sh -c 'echo re\"\"ady; read line; echo \"got: $line\"; exit 3'\n");
    session.expect("ready");
    session.keys(CTRL_Z);
    session.expect("Stopped");
    session.keys("echo \"shell\"\": alive\"\n");
    session.expect("shell: alive");
    session.keys("fg\n");
    session.expect("run x");
    session.keys("a line\n");
    session.expect("got: a line");
    session.keys("echo \"code\"\": $?\"; exit 0\n");
    session.expect("code: 3");
    session.exits_with(0);
}

#[test]
fn a_command_that_was_stopped_past_its_lease_does_not_go_on() {
    let env = TestEnv::new();
    let mut session = Session::start(&env, &["sh", "-i"]);
    session.keys(
        "\"$TENURE\" run --ttl 600ms x -- sh -c 'echo $$ > up; echo re\"\"ady; read line; touch ran'\n",
    );
    session.expect("ready");
    session.keys(CTRL_Z);
    session.expect("Stopped");
    env.tenure_run(["-w", "10", "x", "--", "true"]).exits_with(0);
    assert!(!is_alive(env.pid("up")), "a stopped command ends with its lease");
    session.keys("fg\n");
    session.expect("is lost");
    session.keys("echo \"code\"\": $?\"; exit 0\n");
    session.expect("code: 79");
    session.exits_with(0);
    assert!(!env.path("ran").exists());
}

#[test]
fn a_background_job_that_wants_the_terminal_stops_until_it_gets_it() {
    let env = TestEnv::new();
    let mut session = Session::start(&env, &["sh", "-i"]);
    session.keys("\"$TENURE\" run x -- sh -c 'read line; echo \"got: $line\"' &\n");
    session.keys("until jobs >j; grep -q Stop\"\"ped j; do sleep 0.1; done; cat j\n");
    session.expect("Stopped");
    session.keys("fg\n");
    session.expect("run x");
    session.keys("a line\n");
    session.expect("got: a line");
    session.keys("exit 0\n");
    session.exits_with(0);
}

#[test]
fn without_job_control_ctrl_z_does_not_leave_the_terminal_dead() {
    let env = TestEnv::new();
    let mut session = Session::start(
        &env,
        &[BINARY, "run", "x", "--", "sh", "-c", "echo ready; read line; echo \"got: $line\""],
    );
    session.expect("ready");
    session.keys(CTRL_Z);
    session.keys("a line\n");
    session.expect("got: a line");
    session.exits_with(0);
}
