//! Other processes: this program, with a role.

use std::sync::mpsc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

/// Generous, for busy machines.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) const ROLE: &str = "TENURE_TEST_ROLE";
pub(crate) const DIR: &str = "TENURE_TEST_DIR";

pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    /// Its output, without that of the test harness.
    pub(crate) lines: mpsc::Receiver<String>,
}

impl Process {
    pub(crate) fn start(role: &str, dir: &Path) -> Self {
        Self::start_under(&[], role, dir)
    }

    /// Starts another process of this program, with a command that wraps it.
    pub(crate) fn start_under(before: &[&str], role: &str, dir: &Path) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut words: Vec<_> = before.iter().map(|word| (*word).to_owned()).collect();
        words.push(program.to_string_lossy().into_owned());
        words.extend(["--exact", "process::role", "--nocapture", "--test-threads=1"].map(str::to_owned));
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .env(ROLE, role)
            .env(DIR, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start, install it: {error}", words[0]));
        let stdin = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(said) = line.strip_prefix('@') {
                    let _ = sender.send(said.to_owned());
                }
            }
        });
        Self { child, stdin, lines }
    }

    /// The next line of output.
    pub(crate) fn line(&mut self) -> String {
        self.lines.recv_timeout(LIMIT).expect("a word of it")
    }

    /// A line that it has printed already.
    pub(crate) fn said(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a process to kill");
        self.child.wait().expect("a process to wait for");
    }

    /// Lets it continue, or end.
    pub(crate) fn go_on(&mut self) {
        self.stdin.take();
    }

    pub(crate) fn ends_well(mut self) {
        self.go_on();
        assert!(self.child.wait().expect("a process").success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints a line for the test, after a newline because the harness leaves its own line unfinished.
pub(crate) fn say(line: &str) {
    println!("\n@{line}");
}

pub(crate) fn wait_for_parent() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Not a test: the code of the other processes.
#[test]
#[expect(clippy::too_many_lines, reason = "a case for each role")]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let dir = PathBuf::from(std::env::var_os(DIR).expect("a directory"));
    let (role, word) = role.split_once(": ").unwrap_or((&role, ""));
    let client = Client::of(spec(word), &dir);
    match role {
        "hold" => {
            assert!(is_held(&client.acquire("x", &owner())));
            say("held");
            wait_for_parent();
        }
        "hold with children" => {
            let before = Command::new("sleep").arg("30").spawn().expect("sleep");
            for (name, bind) in
                [("process", Liveness::Process), ("work", Liveness::Work), ("detached", Liveness::Work)]
            {
                let owner = owner();
                assert!(is_held(&client.try_acquire(name, &owner, bind, LONG_MS).expect("an answer")));
                if name == "detached" {
                    assert!(is_held(&client.renew(name, &owner, Some(Liveness::Lease), LONG_MS)));
                }
            }
            let after = Command::new("sleep").arg("30").spawn().expect("sleep");
            say(&format!("{} {}", before.id(), after.id()));
            wait_for_parent();
        }
        "release work" => {
            let owner = owner();
            let answer = client.try_acquire("x", &owner, Liveness::Work, LONG_MS).expect("an answer");
            assert!(is_held(&answer));
            let mut child = Command::new("sleep").arg("30").spawn().expect("sleep");
            assert_eq!(client.release("x", &owner), Answer::Released { left: 0 });
            say(&child.id().to_string());
            wait_for_parent();
            let _ = child.kill();
        }
        "have a place" => {
            say(&ticket(&client.join("x", &owner())).to_string());
            wait_for_parent();
        }
        "have many places" => {
            let client = Client::of(FAIR, &dir);
            (0..700).for_each(|_| drop(client.join("x", &owner())));
            say("waiting");
            wait_for_parent();
        }
        "enter again" => {
            let client = Client::of(LockSpec::Reentrant, &dir);
            let hold = u64::from(std::process::id());
            assert!(is_held(&client.enter("x", &word.parse().expect("an owner"), hold)));
            say("held");
            wait_for_parent();
        }
        "two permits with a child" => {
            let client = Client::of(LockSpec::Queue(QueueSpec::permits(2, 1)), &dir);
            let take =
                || is_held(&client.try_acquire("x", &owner(), Liveness::Work, LONG_MS).expect("an answer"));
            assert!(take());
            let child = Command::new("sleep").arg("30").spawn().expect("sleep");
            assert!(take());
            say(&child.id().to_string());
            wait_for_parent();
        }
        "hold without a socket" => {
            let (owner, name) = (owner(), LockName::new("x").expect("a name"));
            assert!(is_held(&client.acquire("x", &owner)));
            // Meanwhile no file and no socket can be opened.
            let most = getrlimit(Resource::Nofile);
            let none = Rlimit { current: Some(0), maximum: most.maximum };
            setrlimit(Resource::Nofile, none).expect("a limit");
            let listens =
                client.store.subscribe(Topic::new(&name, LockSpec::Mutex, Purpose::Hold(&owner)), 5 * SECOND);
            let mut listener = block_on(listens).expect("a listener");
            setrlimit(Resource::Nofile, most).expect("the limit that was there");
            say("listens");
            let told = client.within(8 * SECOND, listener.next());
            say(if told.is_some() { "told" } else { "not told" });
            wait_for_parent();
        }
        "wait for a mutex" => {
            let guard = block_on(locks(&dir).mutex("x").expect("a name").lock()).expect("a grant");
            say("held");
            wait_for_parent();
            block_on(guard.release()).expect("a release");
        }
        "wait in line" => {
            let guard = block_on(locks(&dir).fair_mutex("x").expect("a name").lock()).expect("a grant");
            say("held");
            wait_for_parent();
            block_on(guard.release()).expect("a release");
        }
        "take turns in a queue" => {
            let log = fs::OpenOptions::new().append(true).open(dir.join("turns")).expect("a log");
            let lock = locks(&dir).fair_mutex("turn").expect("a name");
            say("ready");
            wait_for_parent();
            for _ in 0..TURNS / 3 {
                let guard = block_on(lock.lock()).expect("a grant");
                writeln!(&log, "in {}", guard.fence()).expect("a line");
                writeln!(&log, "out {}", guard.fence()).expect("a line");
                block_on(guard.release()).expect("a release");
            }
        }
        "take turns" => {
            let log = fs::OpenOptions::new().append(true).open(dir.join("turns")).expect("a log");
            say("ready");
            wait_for_parent();
            for _ in 0..TURNS {
                take_turn(&client, &log);
            }
        }
        "churn" => {
            say("ready");
            loop {
                churn(&client);
            }
        }
        #[cfg(tenure_planted)]
        "live" => {
            tenure::internals::planted::crash_after(word.parse().expect("how many points"));
            crash_points::live(&dir);
            say("lived");
        }
        "listen" => {
            let mut listener = client.listen("x");
            say("listening");
            let wake = block_on(listener.next());
            say(&format!("{wake:?}"));
        }
        "try" => say(&match client.try_acquire("x", &owner(), Liveness::Process, LONG_MS) {
            Ok(answer) => format!("{answer:?}"),
            Err(failure) => failure.to_string(),
        }),
        other => panic!("no such role: {other}"),
    }
}

pub(crate) fn spec(word: &str) -> LockSpec {
    match word {
        "fair" => FAIR,
        "reader" => READER,
        "writer" => WRITER,
        _ => LockSpec::Mutex,
    }
}

/// The library's own handle, whose waiters are served in the background.
pub(crate) fn locks(dir: &Path) -> Locks {
    let options = Options::new().ttl(Duration::from_millis(LONG_MS));
    Locks::open(&format!("file:{}", dir.display()))
        .and_then(|locks| locks.with(|_| options))
        .expect("a store")
}

pub(crate) const TURNS: usize = 300;

/// Waits for the lock, then logs its beginning and end, with the token.
pub(crate) fn take_turn(client: &Client, mut log: &fs::File) {
    let owner = owner();
    let mut listener = client.listen("turn");
    let fence = loop {
        listener.drain();
        match client.acquire("turn", &owner) {
            Answer::Held { fence } => break fence,
            busy => assert!(is_busy(&busy), "{busy:?}"),
        }
        // Another process may have taken the wake-up, so also retry periodically.
        client.within(SECOND, listener.next());
    };
    writeln!(log, "in {fence}").expect("a line");
    writeln!(log, "out {fence}").expect("a line");
    assert_eq!(client.release("turn", &owner), Answer::Released { left: 0 });
}

/// Every operation that changes a file, on one name for each kind.
pub(crate) fn churn(client: &Client) {
    let owner = owner();
    let queue = |verb| {
        let (name, spec) = (LockName::new("queue").expect("a name"), FAIR);
        let op = Op { name, spec, owner: owner.clone(), request: 0, verb };
        block_on(client.store.request(op, 5 * SECOND)).expect("an answer")
    };
    let (fence, wait_ms, bind) = (Fence::Assign, Some(LONG_MS), Liveness::Process);
    assert!(is_held(&queue(Verb::Acquire { ttl_ms: LONG_MS, hold: 1, fence, wait_ms, listens: None, bind })));
    assert_eq!(queue(release()), Answer::Released { left: 0 });
    for bind in [Liveness::Process, Liveness::Work] {
        if is_held(&client.try_acquire("x", &owner, bind, LONG_MS).expect("an answer")) {
            assert!(is_held(&client.renew("x", &owner, None, LONG_MS + 1)));
            assert!(is_held(&client.renew("x", &owner, Some(Liveness::Work), LONG_MS)));
            assert_eq!(client.release("x", &owner), Answer::Released { left: 0 });
        }
    }
}
