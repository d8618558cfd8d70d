//! A child process that outlives neither its handle nor the test that started it.

use std::env;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{LazyLock, Mutex, PoisonError};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, geteuid, kill_process, waitid};

/// Stops a child (SIGSTOP). Returns once all its threads have stopped: until then, some may keep running.
///
/// # Panics
/// If it has ended.
pub fn stop(child: &Child) {
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::STOP).expect("a child that no client waited for has its pid still");
    let look = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let seen = waitid(WaitId::Pid(pid), look).expect("our child").expect("it has changed");
    assert!(seen.stopped(), "it has ended");
}

/// Uid of `nobody`, as whom a database runs if the test is root, because PostgreSQL refuses to run as root.
const NOBODY: u32 = 65534;

#[derive(Debug)]
pub(super) struct Process(Child);

impl Process {
    /// Starts `program` with its output in `log`.
    ///
    /// Dropping the handle kills the process. `setpriv --pdeathsig` covers a test that is killed, or that
    /// keeps the handle in a `static`: it asks the kernel to end the process with its parent, and then
    /// executes `program` under the same pid.
    pub(super) fn start(
        program: &Path,
        arguments: &[&str],
        environment: &[(&str, &Path)],
        log: &Path,
    ) -> io::Result<Self> {
        let output = File::create(log)?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program).args(arguments);
        command.envs(environment.iter().copied()).stdin(Stdio::null());
        command.stdout(output.try_clone()?).stderr(output);
        spawn(command).map(Self)
    }

    /// Like `start`, as a user whom databases accept.
    pub(super) fn start_as_nobody(program: &Path, arguments: &[&str], log: &Path) -> Self {
        let words = as_nobody(program, arguments);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Self::start(Path::new(words[0]), &words[1..], &[], log).expect("setpriv")
    }

    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Its memory and that of its children, in bytes; shared memory is divided among its users.
    pub(super) fn memory(&self) -> u64 {
        memory_of(self.id())
    }

    /// Stops the process (SIGSTOP). Returns once it has stopped.
    pub(super) fn stop(&self) {
        stop(&self.0);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.state() == Some('T')
    }

    /// Resumes a stopped process (SIGCONT).
    pub(super) fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks the process to quit at once (SIGQUIT).
    pub(super) fn quit(&mut self) {
        if !self.has_ended() {
            self.signal(Signal::QUIT);
        }
    }

    /// Ends the process at once (SIGKILL).
    pub(super) fn kill(&mut self) {
        if !self.has_ended() {
            self.signal(Signal::KILL);
        }
    }

    pub(super) fn has_ended(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|status| status.is_some())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal)
            .expect("a child that no client waited for has its pid still");
    }

    /// The state follows the last parenthesis, because the process name before it may contain anything.
    fn state(&self) -> Option<char> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id())).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }
}

impl Drop for Process {
    /// SIGKILL, which also ends a stopped process, then a wait, after which its port and pid are free.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Spawns on a thread that never ends. The kernel sends the parent-death signal when the *thread* that
/// spawned ends, and a test's thread ends with the test, while several tests may share a server.
fn spawn(command: Command) -> io::Result<Child> {
    type Order = (Command, Sender<io::Result<Child>>);
    static SPAWNER: LazyLock<Mutex<Sender<Order>>> = LazyLock::new(|| {
        let (orders, received) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, reply) in received {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(orders)
    });

    let (reply, child) = channel();
    SPAWNER
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, reply))
        .expect("the spawner never ends");
    child.recv().expect("the spawner answers each order")
}

fn memory_of(pid: u32) -> u64 {
    let file = |pid: u32, name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let own = file(pid, "smaps_rollup");
    let own =
        own.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.parse().ok());
    let children = file(pid, &format!("task/{pid}/children"));
    let children = children.split_whitespace().filter_map(|child| child.parse().ok()).map(memory_of);
    own.unwrap_or(0_u64) * 1024 + children.sum::<u64>()
}

/// Runs a program of a database to its end.
pub(super) fn run_as_nobody(program: &Path, arguments: &[&str]) {
    let words = as_nobody(program, arguments);
    let done = Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).output();
    let done = done.unwrap_or_else(|error| panic!("{}: {error}", words[0]));
    let said = [done.stdout, done.stderr].concat();
    assert!(done.status.success(), "{}: {}", program.display(), String::from_utf8_lossy(&said));
}

/// If the test is root, gives the directory to the user as whom the server runs.
pub(super) fn give_to_nobody(dir: &Path) {
    if geteuid().is_root() {
        chown(dir, Some(NOBODY), Some(NOBODY)).expect("root may give files away");
        fs::set_permissions(dir, Permissions::from_mode(0o755)).expect("our directory");
    }
}

/// The command line that runs `program` as a user whom databases accept. A change of user undoes the
/// `setpriv` of [`Process::start`], which ends a server with its test, so there is a second one.
fn as_nobody(program: &Path, arguments: &[&str]) -> Vec<String> {
    let id = NOBODY.to_string();
    let user = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "--"];
    // PostgreSQL has to tell its own processes. MySQL, whose directory is removed meanwhile, would never end.
    let signal = if program.ends_with("postgres") { "QUIT" } else { "KILL" };
    let program = program.to_str().expect("a path in UTF-8");
    let bound = ["setpriv", "--pdeathsig", signal, "--", program];
    let user = if geteuid().is_root() { &user[..] } else { &[] };
    [user, &bound, arguments].concat().into_iter().map(str::to_owned).collect()
}

/// A program on the path, or where Debian installs servers, which not all users have on the path.
pub(super) fn program(name: &str, package: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let dirs = env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/bin".into()]);
    let found = dirs.map(|dir| dir.join(name)).find(|program| program.exists());
    found.unwrap_or_else(|| panic!("no {name}; the tests need it: apt-get install {package}"))
}
