//! A scratch directory, and commands with a time limit that print everything when they fail.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{PipeReader, PipeWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, fcntl_setfl, flock};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tenure::diagnosis::boot_clock;
use tenure_testkit::servers::eventually;

pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A script that runs until [`TestEnv::end`].
pub(crate) const UNTIL_END: &str = "READY; while [ ! -e end ]; do sleep 0.02; done";

pub(crate) struct TestEnv {
    dir: tempfile::TempDir,
    commands: AtomicUsize,
}

impl TestEnv {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a scratch directory"), commands: AtomicUsize::new(0) }
    }

    /// The same with its store in the configuration file, for what hosts do together.
    pub(crate) fn shared() -> Self {
        let env = Self::new();
        for directory in [env.path("config"), env.store()] {
            fs::create_dir(directory).expect("a directory");
        }
        fs::write(env.path("config/tenure.toml"), format!("store = \"{}\"\n", env.url())).expect("a file");
        env
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The directory of the default store.
    pub(crate) fn store(&self) -> PathBuf {
        self.path("tenure")
    }

    pub(crate) fn url(&self) -> String {
        format!("file:{}", self.store().display())
    }

    /// A file that a command wrote to this directory.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// A program with this store as the default. It ignores no signals, even if the parent of the tests does
    /// (`nohup`).
    pub(crate) fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("/usr/bin/env");
        command.arg("--default-signal=HUP,INT,QUIT,PIPE,TERM,USR1,USR2,TSTP,TTIN,TTOU,XFSZ");
        command.arg(program);
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command.env_remove("TENURE_STORE").env_remove("TENURE_STORE_FILE").env("LOGNAME", "alice");
        command.env("XDG_STATE_HOME", self.dir.path()).env("XDG_CONFIG_HOME", self.path("config"));
        command
    }

    pub(crate) fn tenure<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.program(BINARY);
        command.args(args);
        command
    }

    /// `tenure` as a user other than root, started by a program such as `setpriv`.
    pub(crate) fn as_user(&self, id: u32, by: &[&str]) -> Command {
        let binary = self.path("tenure-for-all");
        if !binary.exists() {
            // Written by another process: a child forked by another test would have it open for writing, and
            // it could not be executed.
            let mut copy = self.program("install");
            copy.args(["-m", "755", BINARY]).arg(&binary);
            self.run(copy).exits_with(0);
            fs::set_permissions(binary.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let user = [format!("--reuid={id}"), format!("--regid={id}")];
        let mut command = self.program("env");
        if rustix::process::geteuid().is_root() {
            command.arg("setpriv").args(user).args(["--clear-groups", "--"]);
        }
        command.args(by).arg(&binary);
        command
    }

    /// Starts a command with its output in files.
    pub(crate) fn start(&self, mut command: Command) -> Running {
        let number = self.commands.fetch_add(1, Ordering::Relaxed);
        let (out, err) = (self.path(&format!("{number}.out")), self.path(&format!("{number}.err")));
        command.stdout(File::create(&out).expect("a file")).stderr(File::create(&err).expect("a file"));
        let started = now();
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Running { line: shorten(&format!("{command:?}")), child, out, err, started }
    }

    pub(crate) fn run(&self, command: Command) -> Outcome {
        self.start(command).wait()
    }

    /// Runs it until it was quick enough, at most five times, because the machine may be busy. The time to
    /// start a program does not count.
    #[track_caller]
    pub(crate) fn within(&self, limit: Duration, mut run: impl FnMut() -> Outcome) -> Outcome {
        for round in 1.. {
            let before = self.run(self.tenure(["--version"])).took;
            let said = run();
            let start = before.max(self.run(self.tenure(["--version"])).took);
            if said.took.saturating_sub(start * 4) <= limit {
                return said;
            }
            assert!(round < 5, "more than {limit:?}, and {start:?} for its start: {said:?}");
        }
        unreachable!("it returned or failed")
    }

    pub(crate) fn tenure_run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Outcome {
        self.run(self.tenure_run_command(args))
    }

    pub(crate) fn tenure_run_command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.tenure(["run"]);
        command.args(args);
        command
    }

    /// Starts `tenure run NAME sh -c SCRIPT`, and waits until the script has created the file `up`.
    pub(crate) fn start_script(&self, options: &[&str], name: &str, script: &str) -> Running {
        self.start_script_by(self.tenure_run_command(options), name, script)
    }

    /// The same with this command before NAME.
    pub(crate) fn start_script_by(&self, mut command: Command, name: &str, script: &str) -> Running {
        let _ = fs::remove_file(self.path("up"));
        let script = script.replace("READY", "echo $$ > up.new && mv up.new up");
        command.args([name, "--", "sh", "-c", &script]);
        let running = self.start(command);
        running.eventually("the command is up", || self.path("up").exists());
        running
    }

    /// Ends the scripts that run until there is a file `end`.
    pub(crate) fn end(&self) {
        fs::write(self.path("end"), "").expect("a file");
    }

    /// Leads `api` for a moment.
    pub(crate) fn elect(&self, store: &str, payload: &str) -> Outcome {
        let elect = ["elect", "--store", store, "--payload", payload, "api", "--", "true"];
        self.run(self.tenure(elect)).exits_with(0)
    }

    /// The same, until this watch shows it, because a term that ends before the watch starts is not shown.
    pub(crate) fn elect_until_watched(&self, watch: &Running, store: &str, payload: &str) {
        let shown = format!("resigned: {payload}, term ");
        watch.eventually("it watches", || {
            self.elect(store, payload);
            watch.stdout().contains(&shown)
        });
    }

    /// Blocks the store, like a process that is stopped in the middle of a change.
    pub(crate) fn silence_the_store(&self) -> File {
        let guard = File::open(self.store().join("guard")).expect("a store that was used");
        let end = now() + LIMIT;
        while flock(&guard, FlockOperation::NonBlockingLockExclusive).is_err() {
            assert!(now() < end, "another process keeps the store busy");
        }
        guard
    }

    /// The pid that a script wrote to a file.
    pub(crate) fn pid(&self, name: &str) -> Pid {
        self.read(name).trim().parse().ok().and_then(Pid::from_raw).expect("a pid")
    }
}

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_tenure");

pub(crate) struct Running {
    line: String,
    child: Child,
    out: PathBuf,
    err: PathBuf,
    started: Duration,
}

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it is ours to signal");
    }

    pub(crate) fn stdout(&self) -> String {
        read(&self.out)
    }

    pub(crate) fn stderr(&self) -> String {
        read(&self.err)
    }

    pub(crate) fn has_ended(&self) -> bool {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid()), look).expect("it is our child").is_some()
    }

    /// Waits until a condition holds, and fails at the limit.
    #[track_caller]
    pub(crate) fn eventually(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let end = now() + LIMIT;
        while !is_so() {
            assert!(!self.has_ended() || is_so(), "ended before: {what}\n{self:?}");
            assert!(now() < end, "not so within {LIMIT:?}: {what}\n{self:?}");
            sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn wait(self) -> Outcome {
        self.wait_for(LIMIT)
    }

    /// Waits until the command has ended: this process has no child.
    #[track_caller]
    pub(crate) fn command_has_ended(&self) {
        let children = format!("/proc/{0}/task/{0}/children", self.pid().as_raw_nonzero());
        self.eventually("the command has ended", || {
            fs::read_to_string(&children).expect("its children").trim().is_empty()
        });
    }

    pub(crate) fn wait_for(mut self, limit: Duration) -> Outcome {
        let end = now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().expect("a status") {
                let took = now() - self.started;
                let (stdout, stderr) = (read(&self.out), read(&self.err));
                return Outcome { line: self.line.clone(), status, stdout, stderr, took };
            }
            assert!(now() < end, "still running after {limit:?}\n{self:?}");
            sleep(Duration::from_millis(2));
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\nstdout: {}\nstderr: {}", self.line, read(&self.out), self.stderr())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Outcome {
    line: String,
    status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Outcome {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    #[track_caller]
    pub(crate) fn exits_with(self, code: i32) -> Self {
        assert_eq!(self.code(), Some(code), "{self:?}");
        self
    }

    /// Checks that it printed one line of tenure's own, with these words.
    #[track_caller]
    pub(crate) fn says(self, words: &str) -> Self {
        let line = self.stderr.strip_suffix('\n').unwrap_or("");
        assert!(
            line.starts_with("tenure: ") && line.contains(words) && !line.contains('\n'),
            "{words}\n{self:?}"
        );
        self
    }

    /// The same, among output of the command.
    #[track_caller]
    pub(crate) fn says_among_others(self, words: &str) -> Self {
        let own: Vec<&str> = self.stderr.lines().filter(|line| line.starts_with("tenure: ")).collect();
        assert!(own.len() == 1 && own[0].contains(words), "{words}\n{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn says_nothing(self) -> Self {
        assert_eq!(self.stderr, "", "{self:?}");
        self
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, status, stdout, stderr, took } = self;
        writeln!(f, "{line}\n{status:?} after {took:?}\nstdout: {stdout}\nstderr: {stderr}")
    }
}

/// A full pipe whose reader reads nothing.
pub(crate) fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    fcntl_setfl(&writer, OFlags::NONBLOCK).expect("a flag");
    while writer.write(b".").is_ok() {}
    fcntl_setfl(&writer, OFlags::empty()).expect("a flag");
    (reader, writer)
}

pub(crate) fn is_alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    // A zombie no longer runs.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

pub(crate) fn until_gone(pid: Pid) {
    eventually("the process is gone", LIMIT, || !is_alive(pid));
}

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn now() -> Duration {
    Duration::from_nanos(boot_clock().0)
}

/// A number below `below`, random enough for tests.
pub(crate) fn random(below: u64) -> u64 {
    static STATE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let step = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed) ^ now().as_nanos() as u64;
    let mixed = (step ^ (step >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 33) % below
}

fn read(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn shorten(text: &str) -> String {
    if text.chars().count() > 600 {
        text.chars().take(600).chain("…".chars()).collect()
    } else {
        text.into()
    }
}
