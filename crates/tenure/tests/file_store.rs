//! The file store with real processes, damaged files and directories that cannot be used.
//!
//! A test that needs another process starts this very program again, with a role in its environment: see `role`.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "real processes take real time")]
#![expect(clippy::zombie_processes, reason = "some children are to outlive their parent")]

use std::fs;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::sleep;
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use tempfile::TempDir;
use tenure::internals::protocol::{
    Answer, Bind, Fence, Found, Kind, Op, Place, Rule, Seat, Verb, Wake, Whose,
};
use tenure::internals::store::file::File;
use tenure::internals::store::{Cursor, Failure, Listener};
use tenure::internals::{Driver, Runtime, Store};
use tenure::{LockName, Locks, Options, Owner, block_on};

const SECOND: Duration = Duration::from_secs(1);
/// A lease that no test outlives: what becomes free before it did so for another reason.
const LONG_MS: u64 = 600_000;
const FAIR: Rule = Rule::Queue(Seat::FAIR);
const READER: Rule = Rule::Queue(Seat::READER);
const WRITER: Rule = Rule::Queue(Seat::WRITER);
const TWO_OF_FIVE: Rule = Rule::Queue(Seat::permits(5, 2));

// ---------------------------------------------------------------------------------------------------------------
// One client of a directory

struct Client {
    store: File,
    driver: Arc<Driver>,
    rule: Rule,
}

impl Client {
    fn new(dir: &Path) -> Self {
        Self::of(Rule::Mutex, dir)
    }

    /// One that asks for locks of this kind.
    fn of(rule: Rule, dir: &Path) -> Self {
        let driver = Driver::start().expect("a thread");
        let store = File::new(dir, "file:test", Arc::clone(&driver) as _);
        Self { store, driver, rule }
    }

    fn ask(&self, name: &str, owner: &Owner, verb: Verb, within: Duration) -> Result<Answer, Failure> {
        let op = Op {
            name: LockName::new(name).expect("a name"),
            rule: self.rule,
            owner: owner.clone(),
            request: 7,
            verb,
        };
        block_on(self.store.call(op, within)).map(|reply| {
            assert_eq!((&reply.owner, reply.request), (owner, 7));
            reply.answer
        })
    }

    fn try_acquire(&self, name: &str, owner: &Owner, bind: Bind, ttl_ms: u64) -> Result<Answer, Failure> {
        let verb = Verb::Acquire { ttl_ms, hold: 1, fence: Fence::Assign, wait_ms: None, bind };
        self.ask(name, owner, verb, 5 * SECOND)
    }

    /// Another hold of an owner that may have several.
    fn enter(&self, name: &str, owner: &Owner, hold: u64) -> Answer {
        let (fence, bind) = (Fence::Assign, Bind::Process);
        let verb = Verb::Acquire { ttl_ms: LONG_MS, hold, fence, wait_ms: None, bind };
        self.ask(name, owner, verb, 5 * SECOND).expect("an answer")
    }

    /// Takes a place in a queue that no test outlives.
    fn join(&self, name: &str, owner: &Owner) -> Answer {
        let (fence, wait_ms, bind) = (Fence::Assign, Some(LONG_MS), Bind::Process);
        self.ask(name, owner, Verb::Acquire { ttl_ms: LONG_MS, hold: 1, fence, wait_ms, bind }, 5 * SECOND)
            .expect("an answer")
    }

    fn acquire(&self, name: &str, owner: &Owner) -> Answer {
        self.try_acquire(name, owner, Bind::Process, LONG_MS).expect("an answer")
    }

    fn renew(&self, name: &str, owner: &Owner, bind: Option<Bind>, ttl_ms: u64) -> Answer {
        self.ask(name, owner, Verb::Renew { ttl_ms, hold: 1, bind, weight: None }, 5 * SECOND)
            .expect("an answer")
    }

    fn try_release(&self, name: &str, owner: &Owner) -> Result<Answer, Failure> {
        self.ask(name, owner, release(), 5 * SECOND)
    }

    fn release(&self, name: &str, owner: &Owner) -> Answer {
        self.try_release(name, owner).expect("an answer")
    }

    fn inspect(&self, name: &str) -> Result<Answer, Failure> {
        self.ask(name, &owner(), Verb::Inspect, 5 * SECOND)
    }

    fn listen(&self, name: &str) -> Listener {
        block_on(self.store.listen(&LockName::new(name).expect("a name"), Rule::Mutex, SECOND))
            .expect("a listener")
    }

    fn within<T>(&self, limit: Duration, what: impl Future<Output = T>) -> Option<T> {
        let late = self.driver.sleep_until(self.driver.now() + limit);
        match block_on(select(std::pin::pin!(what), late)) {
            Either::Left((output, _)) => Some(output),
            Either::Right(_) => None,
        }
    }

    /// Everything that is listed, over all pages.
    fn list(&self, prefix: &str) -> Result<Vec<String>, Failure> {
        let (mut names, mut from) = (Vec::new(), Cursor::default());
        loop {
            let page = block_on(self.store.list(prefix, from, 5 * SECOND))?;
            names.extend(page.locks.iter().map(|(name, _)| name.as_str().to_owned()));
            match page.next {
                Some(next) => from = next,
                None => return Ok(names),
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.driver.stop();
    }
}

fn release() -> Verb {
    Verb::Release { hold: 1, fence: Fence::Assign, whose: Whose::Mine }
}

fn owner() -> Owner {
    Owner::new("test").expect("an owner")
}

/// The number of a place.
fn ticket(answer: &Answer) -> u64 {
    match answer {
        Answer::Held { fence: ticket } | Answer::Waiting { ticket, .. } => *ticket,
        other => panic!("no place: {other:?}"),
    }
}

fn found(answer: Result<Answer, Failure>) -> Found {
    match answer {
        Ok(Answer::Found(found)) => found,
        other => panic!("nobody has it: {other:?}"),
    }
}

fn is_held(answer: &Answer) -> bool {
    matches!(answer, Answer::Held { .. })
}

fn is_busy(answer: &Answer) -> bool {
    matches!(answer, Answer::Busy { .. })
}

fn dir() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Waits until it is so; what it waits for takes some milliseconds.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < 10 * SECOND, "not within ten seconds: {what}");
        sleep(Duration::from_millis(2));
    }
    begin.elapsed()
}

fn files(dir: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> = entries
        .filter(|path| path.file_name().expect("a name").to_string_lossy().starts_with(prefix))
        .collect();
    files.sort();
    files
}

/// The file of the only lock.
fn record(dir: &Path) -> PathBuf {
    let files = files(dir, "lock-");
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

/// The message of a refusal: one line, which names this file.
#[track_caller]
fn refusal<T: std::fmt::Debug>(result: Result<T, Failure>, file: &Path) -> String {
    match result {
        Err(Failure::Refused(cause)) => {
            let text = cause.to_string();
            assert!(!text.contains('\n') && text.contains(&file.display().to_string()), "{text}");
            text
        }
        other => panic!("not refused: {other:?}"),
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Other processes

const ROLE: &str = "TENURE_TEST_ROLE";
const DIR: &str = "TENURE_TEST_DIR";

struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn start(role: &str, dir: &Path) -> Self {
        Self::start_under(&[], role, dir)
    }

    /// Starts another process of this program, with these words before its command line.
    fn start_under(before: &[&str], role: &str, dir: &Path) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut words: Vec<_> = before.iter().map(|word| (*word).to_owned()).collect();
        words.push(program.to_string_lossy().into_owned());
        words.extend(["--exact", "role", "--nocapture", "--test-threads=1"].map(str::to_owned));
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .env(ROLE, role)
            .env(DIR, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start, install it: {error}", words[0]));
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, stdin, lines }
    }

    /// The next line that it says, without what the test harness prints.
    fn line(&mut self) -> String {
        let mut line = String::new();
        while self.lines.read_line(&mut line).expect("its output") > 0 {
            if let Some(said) = line.strip_prefix('@') {
                return said.trim_end().to_owned();
            }
            line.clear();
        }
        panic!("it ended without a word");
    }

    fn kill(&mut self) {
        self.child.kill().expect("a process to kill");
        self.child.wait().expect("a process to wait for");
    }

    /// Lets it go on, or end.
    fn go_on(&mut self) {
        self.stdin.take();
    }

    fn ends_well(mut self) {
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

/// Says a line to the test. On a line of its own, since the harness leaves its own unfinished.
fn say(line: &str) {
    println!("\n@{line}");
}

fn wait_for_parent() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Not a test of its own: what the other processes do.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let dir = PathBuf::from(std::env::var_os(DIR).expect("a directory"));
    let (role, word) = role.split_once(": ").unwrap_or((&role, ""));
    let client = Client::of(rule(word), &dir);
    match role {
        "hold" => {
            assert!(is_held(&client.acquire("x", &owner())));
            say("held");
            wait_for_parent();
        }
        "hold with children" => {
            let before = Command::new("sleep").arg("30").spawn().expect("sleep");
            for (name, bind) in [("process", Bind::Process), ("work", Bind::Work), ("detached", Bind::Work)] {
                let owner = owner();
                assert!(is_held(&client.try_acquire(name, &owner, bind, LONG_MS).expect("an answer")));
                if name == "detached" {
                    assert!(is_held(&client.renew(name, &owner, Some(Bind::Lease), LONG_MS)));
                }
            }
            let after = Command::new("sleep").arg("30").spawn().expect("sleep");
            say(&format!("{} {}", before.id(), after.id()));
            wait_for_parent();
        }
        "release work" => {
            let owner = owner();
            let answer = client.try_acquire("x", &owner, Bind::Work, LONG_MS).expect("an answer");
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
        "enter again" => {
            let client = Client::of(Rule::Reentrant, &dir);
            let hold = u64::from(std::process::id());
            assert!(is_held(&client.enter("x", &word.parse().expect("an owner"), hold)));
            say("held");
            wait_for_parent();
        }
        "two permits with a child" => {
            let client = Client::of(Rule::Queue(Seat::permits(2, 1)), &dir);
            let take =
                || is_held(&client.try_acquire("x", &owner(), Bind::Work, LONG_MS).expect("an answer"));
            assert!(take());
            let child = Command::new("sleep").arg("30").spawn().expect("sleep");
            assert!(take());
            say(&child.id().to_string());
            wait_for_parent();
        }
        "wait in line" => {
            let guard = block_on(locks(&dir).fair("x").expect("a name").lock()).expect("a grant");
            say("held");
            wait_for_parent();
            block_on(guard.release()).expect("a release");
        }
        "take turns in a queue" => {
            let log = fs::OpenOptions::new().append(true).open(dir.join("turns")).expect("a log");
            let lock = locks(&dir).fair("turn").expect("a name");
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
        "listen" => {
            let mut listener = client.listen("x");
            say("listening");
            let wake = block_on(listener.next());
            say(&format!("{wake:?}"));
        }
        "try" => say(&match client.try_acquire("x", &owner(), Bind::Process, LONG_MS) {
            Ok(answer) => format!("{answer:?}"),
            Err(failure) => failure.to_string(),
        }),
        other => panic!("no such role: {other}"),
    }
}

/// What a role asks for.
fn rule(word: &str) -> Rule {
    match word {
        "fair" => FAIR,
        "reader" => READER,
        "writer" => WRITER,
        _ => Rule::Mutex,
    }
}

/// The library's own handle, whose waiters are served in the background.
fn locks(dir: &Path) -> Locks {
    let options = Options::new().ttl(Duration::from_millis(LONG_MS));
    Locks::open(&format!("file:{}", dir.display())).and_then(|locks| locks.with(options)).expect("a store")
}

const TURNS: usize = 300;

/// Waits for the lock, then notes that it came and went, with its token.
fn take_turn(client: &Client, mut log: &fs::File) {
    let owner = owner();
    let mut listener = client.listen("turn");
    let fence = loop {
        listener.drain();
        match client.acquire("turn", &owner) {
            Answer::Held { fence } => break fence,
            busy => assert!(is_busy(&busy), "{busy:?}"),
        }
        // A wake-up that another took: ask again, at the latest now and then.
        client.within(SECOND, listener.next());
    };
    writeln!(log, "in {fence}").expect("a line");
    writeln!(log, "out {fence}").expect("a line");
    assert_eq!(client.release("turn", &owner), Answer::Released { left: 0 });
}

/// Everything that changes a file, on one name for each kind.
fn churn(client: &Client) {
    let owner = owner();
    let queue = |verb| {
        let (name, rule) = (LockName::new("queue").expect("a name"), FAIR);
        let op = Op { name, rule, owner: owner.clone(), request: 0, verb };
        block_on(client.store.call(op, 5 * SECOND)).expect("an answer").answer
    };
    let (fence, wait_ms, bind) = (Fence::Assign, Some(LONG_MS), Bind::Process);
    assert!(is_held(&queue(Verb::Acquire { ttl_ms: LONG_MS, hold: 1, fence, wait_ms, bind })));
    assert_eq!(queue(release()), Answer::Released { left: 0 });
    for bind in [Bind::Process, Bind::Work] {
        if is_held(&client.try_acquire("x", &owner, bind, LONG_MS).expect("an answer")) {
            assert!(is_held(&client.renew("x", &owner, None, LONG_MS + 1)));
            assert!(is_held(&client.renew("x", &owner, Some(Bind::Work), LONG_MS)));
            assert_eq!(client.release("x", &owner), Answer::Released { left: 0 });
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Liveness

#[test]
fn a_crashed_holders_lock_is_free_at_once() {
    let dir = dir();
    let mut holder = Process::start("hold", dir.path());
    assert_eq!(holder.line(), "held");
    let client = Client::new(dir.path());
    assert!(is_busy(&client.acquire("x", &owner())));
    assert_eq!(client.list("").expect("a list"), ["x"]);
    holder.kill();
    assert_eq!(client.list("").expect("a list"), Vec::<String>::new());
    assert!(is_held(&client.acquire("x", &owner())));
}

#[test]
fn a_crash_wakes_who_listens() {
    let dir = dir();
    let mut holder = Process::start("hold", dir.path());
    assert_eq!(holder.line(), "held");
    let client = Client::new(dir.path());
    let mut listener = client.listen("x");
    assert!(client.within(SECOND, listener.next()).is_none(), "a wake-up while the holder lives");
    let crash = Instant::now();
    holder.kill();
    assert!(matches!(client.within(SECOND, listener.next()), Some(Some(Wake::Free { .. }))));
    println!("woken {:?} after the crash", crash.elapsed());
}

#[test]
fn the_lock_of_a_killed_process_stays_held_until_the_children_that_inherited_it_are_gone() {
    let dir = dir();
    let mut parent = Process::start("hold with children", dir.path());
    let said = parent.line();
    let pids: Vec<_> = said.split(' ').collect();
    let client = Client::new(dir.path());
    parent.kill();
    // A child that is just being started closes its parent's files a moment after its parent goes on.
    eventually("no child keeps what is bound to the process", || {
        is_held(&client.acquire("process", &owner()))
    });
    kill(pids[0]);
    sleep(Duration::from_millis(50));
    assert!(is_busy(&client.acquire("work", &owner())), "the child that inherited it still runs");
    assert!(is_busy(&client.acquire("detached", &owner())), "its lease still runs");
    kill(pids[1]);
    eventually("the work's lock is free", || is_held(&client.acquire("work", &owner())));
    assert!(is_busy(&client.acquire("detached", &owner())), "only its lease ends it");
}

#[test]
fn a_released_hold_is_free_although_a_child_that_inherited_it_runs() {
    let dir = dir();
    let mut parent = Process::start("release work", dir.path());
    parent.line();
    assert_eq!(files(dir.path(), "holder-"), Vec::<PathBuf>::new());
    assert!(is_held(&Client::new(dir.path()).acquire("x", &owner())));
    parent.ends_well();
}

#[test]
fn a_detached_hold_outlives_its_process_and_can_be_bound_to_another() {
    let (dir, name) = (dir(), owner());
    let first = Client::new(dir.path());
    let Answer::Held { fence } = first.acquire("x", &name) else { panic!("not held") };
    first.renew("x", &name, Some(Bind::Lease), LONG_MS);
    drop(first);
    let (second, third) = (Client::new(dir.path()), Client::new(dir.path()));
    assert!(is_busy(&second.acquire("x", &owner())));
    assert_eq!(second.renew("x", &name, Some(Bind::Process), LONG_MS), Answer::Held { fence });
    assert!(is_busy(&third.acquire("x", &owner())));
    drop(second);
    eventually("what was bound again ends with its store", || is_held(&third.acquire("x", &owner())));
}

#[test]
fn a_store_that_ends_in_good_order_leaves_no_holder_file_and_a_crashed_ones_is_cleared_away() {
    let (dir, name) = (dir(), owner());
    let client = Client::new(dir.path());
    client.acquire("x", &name);
    client.release("x", &name);
    assert_eq!(files(dir.path(), "holder-").len(), 1);
    drop(client);
    eventually("its file is gone", || files(dir.path(), "holder-").is_empty());

    let mut holder = Process::start("hold", dir.path());
    holder.line();
    holder.kill();
    assert_eq!((files(dir.path(), "holder-").len(), files(dir.path(), "lock-").len()), (1, 1));
    Client::new(dir.path()).inspect("another").expect("an answer");
    assert_eq!((files(dir.path(), "holder-").len(), files(dir.path(), "lock-").len()), (0, 0));
}

#[test]
fn a_hold_whose_holder_file_was_removed_is_good_for_its_lease() {
    let dir = dir();
    let (first, second) = (Client::new(dir.path()), Client::new(dir.path()));
    assert!(is_held(&first.try_acquire("x", &owner(), Bind::Process, 300).expect("an answer")));
    for file in files(dir.path(), "holder-") {
        fs::remove_file(file).expect("removed");
    }
    assert!(is_busy(&second.acquire("x", &owner())));
    eventually("its lease ends", || is_held(&second.acquire("x", &owner())));
}

#[test]
fn a_process_killed_at_any_moment_leaves_a_directory_that_can_be_read() {
    let dir = dir();
    let (client, queue) = (Client::new(dir.path()), Client::of(FAIR, dir.path()));
    let owner = owner();
    for round in 0..60 {
        let mut process = Process::start("churn", dir.path());
        process.line();
        sleep(Duration::from_micros(200 + 137 * (round * round % 61)));
        process.kill();
        client.list("").expect("a list");
        assert!(is_held(&client.acquire("x", &owner)), "round {round}");
        assert_eq!(client.release("x", &owner), Answer::Released { left: 0 }, "round {round}");
        assert!(is_held(&queue.acquire("queue", &owner)), "round {round}");
        assert_eq!(queue.release("queue", &owner), Answer::Released { left: 0 }, "round {round}");
    }
    drop((client, queue));
    Client::new(dir.path()).inspect("x").expect("an answer");
    // The guard and a temp file, as soon as both threads have ended.
    eventually("nothing else is left", || files(dir.path(), "").len() <= 2);
}

#[test]
fn a_killed_holder_in_a_queue_hands_on_at_once() {
    let dir = dir();
    let locks = locks(dir.path());
    for looked_at in [false, true] {
        let mut holder = Process::start("have a place: fair", dir.path());
        holder.line();
        let waits = std::thread::spawn({
            let lock = locks.fair("x").expect("a name");
            move || block_on(lock.lock()).expect("a grant")
        });
        let look = Client::of(FAIR, dir.path());
        eventually("it waits", || found(look.inspect("x")).waiters.len() == 1);
        let crash = Instant::now();
        holder.kill();
        if looked_at {
            // Whoever only looks takes the dead one out, and lets nobody in.
            found(look.inspect("x"));
        }
        let guard = waits.join().expect("a guard");
        let took = crash.elapsed();
        assert!(took < SECOND, "{took:?}");
        println!("handed on {took:?} after the crash");
        block_on(guard.release()).expect("a release");
    }
}

#[test]
fn a_killed_waiter_costs_those_behind_it_nothing() {
    let dir = dir();
    let (first, second) = (Client::of(FAIR, dir.path()), Client::of(FAIR, dir.path()));
    let (a, c) = (owner(), owner());
    first.join("x", &a);
    let mut waiter = Process::start("have a place: fair", dir.path());
    waiter.line();
    let place = ticket(&second.join("x", &c));
    assert_eq!(found(first.inspect("x")).waiters.len(), 2);
    waiter.kill();
    assert_eq!(found(first.inspect("x")).waiters.len(), 1);
    let mut listener = second.listen("x");
    assert_eq!(first.release("x", &a), Answer::Released { left: 0 });
    let heard = second.within(SECOND, listener.next());
    assert_eq!(heard, Some(Some(Wake::Granted { tickets: vec![place] })));
}

#[test]
fn readers_behind_a_killed_writer_are_let_in_at_once() {
    let dir = dir();
    let locks = locks(dir.path());
    let reader = block_on(locks.rwlock("x").expect("a name").read()).expect("a grant");
    let mut writer = Process::start("have a place: writer", dir.path());
    writer.line();
    let second = std::thread::spawn({
        let lock = locks.rwlock("x").expect("a name");
        move || block_on(lock.read()).expect("a grant")
    });
    let look = Client::of(READER, dir.path());
    eventually("both wait", || found(look.inspect("x")).waiters.len() == 2);
    let crash = Instant::now();
    writer.kill();
    let second = second.join().expect("a guard");
    assert!(crash.elapsed() < SECOND, "{:?}", crash.elapsed());
    block_on(async { reader.release().await.and(second.release().await) }).expect("a release");
}

#[test]
fn a_crashed_readers_lock_ends_and_no_others() {
    let dir = dir();
    let mut readers = [(); 2].map(|()| Process::start("have a place: reader", dir.path()));
    readers.iter_mut().for_each(|reader| drop(reader.line()));
    let writer = Client::of(WRITER, dir.path());
    assert_eq!(found(writer.inspect("x")).holders.len(), 2);
    readers[0].kill();
    assert_eq!(found(writer.inspect("x")).holders.len(), 1);
    assert!(is_busy(&writer.acquire("x", &owner())));
    readers[1].kill();
    assert!(is_held(&writer.acquire("x", &owner())));
}

#[test]
fn of_two_processes_of_one_owner_a_crash_ends_one_hold() {
    let (dir, name) = (dir(), owner());
    let role = format!("enter again: {name}");
    let mut holders = [(); 2].map(|()| Process::start(&role, dir.path()));
    holders.iter_mut().for_each(|holder| drop(holder.line()));
    let other = Client::of(Rule::Reentrant, dir.path());
    let count = || found(other.inspect("x")).holders[0].weight;
    assert_eq!(count(), 2);
    holders[0].kill();
    assert_eq!(count(), 1);
    assert!(is_busy(&other.acquire("x", &owner())));
    holders[1].kill();
    assert!(is_held(&other.acquire("x", &owner())));
}

#[test]
fn a_child_keeps_the_permits_it_has_inherited_and_no_others() {
    let dir = dir();
    let mut parent = Process::start("two permits with a child", dir.path());
    let child = parent.line();
    let client = Client::of(Rule::Queue(Seat::permits(2, 1)), dir.path());
    let taken = owner();
    assert!(is_busy(&client.acquire("x", &taken)));
    parent.kill();
    eventually("the second permit is free", || is_held(&client.acquire("x", &taken)));
    assert!(is_busy(&client.acquire("x", &owner())), "the child that inherited the first still runs");
    kill(&child);
    eventually("both are free", || is_held(&client.acquire("x", &owner())));
}

#[test]
fn each_of_an_owners_holds_can_be_passed_on() {
    let (dir, name) = (dir(), owner());
    let (first, second) = (Client::of(Rule::Reentrant, dir.path()), Client::of(Rule::Reentrant, dir.path()));
    let bind = |client: &Client, hold, bind| {
        let verb = Verb::Renew { ttl_ms: LONG_MS, hold, bind: Some(bind), weight: None };
        client.ask("x", &name, verb, 5 * SECOND).expect("an answer")
    };
    assert!(is_held(&first.enter("x", &name, 1)) && is_held(&first.enter("x", &name, 2)));
    assert!(is_held(&bind(&first, 1, Bind::Lease)));
    drop(first);
    let count = || found(second.inspect("x")).holders[0].weight;
    eventually("what was not passed on has ended", || count() == 1);
    assert!(is_held(&bind(&second, 7, Bind::Process)));
    assert_eq!(bind(&second, 8, Bind::Process), Answer::Free);
    drop(second);
    let third = Client::of(Rule::Reentrant, dir.path());
    eventually("what was bound again ends with its store", || is_held(&third.acquire("x", &owner())));
}

fn kill(pid: &str) {
    assert!(Command::new("kill").args(["-9", pid]).status().expect("kill").success());
}

// ---------------------------------------------------------------------------------------------------------------
// Exclusion and waking

#[test]
fn four_processes_on_one_name_never_overlap_and_their_tokens_grow() {
    never_overlap("take turns", TURNS);
}

#[test]
fn four_processes_in_one_queue_never_overlap_and_are_served_in_the_order_of_their_tickets() {
    never_overlap("take turns in a queue", TURNS / 3);
}

fn never_overlap(role: &str, turns: usize) {
    let dir = dir();
    fs::write(dir.path().join("turns"), "").expect("a log");
    let mut processes: Vec<_> = (0..4).map(|_| Process::start(role, dir.path())).collect();
    for process in &mut processes {
        assert_eq!(process.line(), "ready");
    }
    let begin = Instant::now();
    processes.iter_mut().for_each(Process::go_on);
    processes.into_iter().for_each(Process::ends_well);
    println!("{} turns of four processes in {:?}", 4 * turns, begin.elapsed());

    let log = fs::read_to_string(dir.path().join("turns")).expect("the log");
    let lines: Vec<_> = log.lines().map(|line| line.split_once(' ').expect("two words")).collect();
    assert_eq!(lines.len(), 4 * turns * 2);
    let mut last = 0;
    for turn in lines.chunks(2) {
        assert_eq!((turn[0].0, turn[1].0, turn[0].1), ("in", "out", turn[1].1), "an overlap");
        let fence: u64 = turn[0].1.parse().expect("a token");
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
}

#[test]
fn a_release_by_another_process_wakes_at_once_and_says_nothing_of_other_locks() {
    let (dir, name) = (dir(), owner());
    let (holder, waiter) = (Client::new(dir.path()), Client::new(dir.path()));
    holder.acquire("x", &name);
    holder.acquire("y", &name);
    let mut listener = waiter.listen("x");
    holder.release("y", &name);
    holder.renew("x", &name, None, LONG_MS + 1);
    let early = waiter.within(Duration::from_millis(500), listener.next());
    assert!(early.is_none(), "{early:?}");
    // Some in a row, so that the look that is taken now and then cannot be what finds it.
    let begin = Instant::now();
    for _ in 0..8 {
        holder.release("x", &name);
        assert!(matches!(waiter.within(SECOND, listener.next()), Some(Some(Wake::Free { .. }))));
        holder.acquire("x", &name);
    }
    assert!(begin.elapsed() < Duration::from_millis(400), "{:?}", begin.elapsed());
}

#[test]
fn a_release_within_a_store_wakes_once_and_says_whose_it_was() {
    let (dir, name) = (dir(), owner());
    let client = Client::new(dir.path());
    client.acquire("x", &name);
    let mut listener = client.listen("x");
    client.release("x", &name);
    assert_eq!(client.within(SECOND, listener.next()), Some(Some(Wake::Free { by: Some(name) })));
}

#[test]
fn what_holds_is_told_to_another_process_by_number_and_once() {
    let dir = dir();
    let (first, second) = (Client::of(TWO_OF_FIVE, dir.path()), Client::of(TWO_OF_FIVE, dir.path()));
    let owners = [(); 4].map(|()| owner());
    let tickets = [0, 1, 2, 3].map(|n| ticket(&first.join("x", &owners[n])));
    let mut listener = second.listen("x");
    let refresh = || {
        let verb =
            Verb::Refresh { owners: Arc::new([owners[2].clone(), owners[3].clone()]), wait_ms: LONG_MS };
        let places = first.ask("x", &owners[2], verb, 5 * SECOND).expect("an answer");
        let waiting = [2, 3].map(|n| Place::Waiting { ticket: tickets[n] });
        assert!(matches!(&places, Answer::Places { places, .. } if *places == waiting), "{places:?}");
        sleep(Duration::from_millis(3));
    };
    refresh();
    let all = Some(Some(Wake::Granted { tickets: tickets[..2].to_vec() }));
    assert_eq!(second.within(SECOND, listener.next()), all);
    // A refresh writes the record anew, and is no news.
    (0..5).for_each(|_| refresh());
    let early = second.within(Duration::from_millis(500), listener.next());
    assert!(early.is_none(), "{early:?}");
    let begin = Instant::now();
    for (leaves, comes) in [(0, 2), (1, 3)] {
        first.release("x", &owners[leaves]);
        let told = Some(Some(Wake::Granted { tickets: vec![tickets[comes]] }));
        assert_eq!(second.within(SECOND, listener.next()), told);
    }
    assert!(begin.elapsed() < Duration::from_millis(400), "{:?}", begin.elapsed());
}

#[test]
fn where_the_system_gives_no_inotify_a_place_in_a_queue_is_called_all_the_same() {
    let dir = dir();
    let mut holder = Process::start("have a place: fair", dir.path());
    holder.line();
    let script = "echo 0 > /proc/sys/user/max_inotify_instances && exec \"$@\"";
    let before = ["unshare", "-r", "sh", "-c", script, "sh"];
    let mut waiter = Process::start_under(&before, "wait in line", dir.path());
    let look = Client::of(FAIR, dir.path());
    eventually("it waits", || found(look.inspect("x")).waiters.len() == 1);
    let begin = Instant::now();
    holder.kill();
    assert_eq!(waiter.line(), "held");
    assert!(begin.elapsed() < SECOND, "{:?}", begin.elapsed());
}

#[test]
fn where_the_system_gives_no_inotify_a_release_and_a_crash_are_noticed_all_the_same() {
    let dir = dir();
    let mut holder = Process::start("hold", dir.path());
    holder.line();
    // A user namespace has a limit of its own.
    let script = "echo 0 > /proc/sys/user/max_inotify_instances && exec \"$@\"";
    let mut waiter = Process::start_under(&["unshare", "-r", "sh", "-c", script, "sh"], "listen", dir.path());
    assert_eq!(waiter.line(), "listening");
    holder.kill();
    let begin = Instant::now();
    assert!(waiter.line().contains("Free"));
    assert!(begin.elapsed() < SECOND, "{:?}", begin.elapsed());
}

#[test]
fn a_waiter_does_not_spin() {
    let dir = dir();
    let mut holder = Process::start("hold", dir.path());
    holder.line();
    let mut waiter = Process::start("listen", dir.path());
    waiter.line();
    does_not_spin(&[waiter]);
}

#[test]
fn three_processes_in_one_queue_do_not_wake_each_other_all_the_time() {
    let dir = dir();
    let mut holder = Process::start("have a place: fair", dir.path());
    holder.line();
    let waiters = [(); 3].map(|()| Process::start("wait in line", dir.path()));
    let look = Client::of(FAIR, dir.path());
    eventually("they wait", || found(look.inspect("x")).waiters.len() == 3);
    sleep(Duration::from_millis(300));
    does_not_spin(&waiters);
}

fn does_not_spin(waiters: &[Process]) {
    let used = || waiters.iter().map(|waiter| ticks(waiter.child.id())).sum::<u64>();
    let before = used();
    sleep(2 * SECOND);
    // A tick is 10 ms: 2 % of the time at most, on a machine that does other things too.
    let used = used() - before;
    assert!(used <= 4 * waiters.len() as u64, "{used} ticks of processor time in two seconds");
}

/// Processor time of a process, in hundredths of a second.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("Linux tells");
    let fields: Vec<_> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum()
}

// ---------------------------------------------------------------------------------------------------------------
// The contract of a store

#[test]
fn a_locked_guard_fails_calls_in_time_and_they_are_never_carried_out() {
    let (dir, name) = (dir(), owner());
    let client = Client::new(dir.path());
    client.inspect("x").expect("an answer");
    let path = dir.path().join("guard");
    let guard = fs::OpenOptions::new().read(true).write(true).open(&path).expect("the guard");
    guard.lock().expect("the guard's lock");
    let acquire =
        Verb::Acquire { ttl_ms: LONG_MS, hold: 1, fence: Fence::Assign, wait_ms: None, bind: Bind::Process };
    let begin = Instant::now();
    match client.ask("x", &name, acquire, Duration::from_millis(300)) {
        Err(Failure::NotSent(cause)) => {
            let text = cause.to_string();
            assert!(text.contains(&path.display().to_string()) && text.contains("locked"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(300) && took < Duration::from_millis(500), "{took:?}");
    guard.unlock().expect("the guard's lock");
    assert_eq!(client.inspect("x").expect("an answer"), Answer::Free);
}

#[test]
fn a_short_call_behind_a_long_one_fails_in_its_own_time() {
    let dir = dir();
    let client = Client::new(dir.path());
    client.inspect("x").expect("an answer");
    let guard = fs::File::open(dir.path().join("guard")).expect("the guard");
    guard.lock().expect("the guard's lock");
    std::thread::scope(|scope| {
        let long = scope.spawn(|| client.ask("x", &owner(), Verb::Inspect, 20 * SECOND));
        sleep(Duration::from_millis(50));
        let begin = Instant::now();
        let short = client.ask("x", &owner(), Verb::Inspect, Duration::from_millis(100));
        assert!(matches!(short, Err(Failure::NotSent(_))), "{short:?}");
        assert!(begin.elapsed() < Duration::from_millis(300), "{:?}", begin.elapsed());
        guard.unlock().expect("the guard's lock");
        assert_eq!(long.join().expect("an end").expect("an answer"), Answer::Free);
    });
}

#[test]
fn a_release_undoes_an_acquire_whose_future_was_dropped() {
    let (dir, name) = (dir(), owner());
    let client = Client::new(dir.path());
    for _ in 0..200 {
        let verb = Verb::Acquire {
            ttl_ms: LONG_MS,
            hold: 1,
            fence: Fence::Assign,
            wait_ms: None,
            bind: Bind::Process,
        };
        let lock = LockName::new("x").expect("a name");
        let op = Op { name: lock, rule: Rule::Mutex, owner: name.clone(), request: 0, verb };
        let mut call = client.store.call(op, SECOND);
        let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Pending | Poll::Ready(Ok(_))));
        drop(call);
        client.release("x", &name);
        assert_eq!(client.inspect("x").expect("an answer"), Answer::Free);
    }
}

#[test]
fn a_store_that_is_shut_down_says_so() {
    let dir = dir();
    let client = Client::new(dir.path());
    client.inspect("x").expect("an answer");
    client.driver.stop();
    let mut last = Ok(Answer::Free);
    eventually("the thread has ended", || {
        last = client.inspect("x");
        last.is_err()
    });
    assert!(matches!(last, Err(Failure::NotSent(_))), "{last:?}");
}

#[test]
fn a_listing_goes_on_where_its_page_ended() {
    let dir = dir();
    let client = Client::new(dir.path());
    let name = owner();
    for number in 0..1_100 {
        let kind = if number % 2 == 0 { "even" } else { "odd" };
        client.acquire(&format!("{kind}/{number}"), &name);
    }
    let mut names = client.list("").expect("a list");
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 1_100);
    assert_eq!(client.list("even/").expect("a list").len(), 550);
    assert_eq!(client.list("none").expect("a list"), Vec::<String>::new());
}

#[test]
fn tokens_grow_over_all_names_and_processes_when_the_clock_steps_back() {
    let dir = dir();
    Client::new(dir.path()).inspect("x").expect("an answer");
    // A year ahead: as if the clock had been set back by one since.
    let file = dir.path().join("guard");
    let text = fs::read_to_string(&file).expect("the guard");
    let ahead = Driver::start().expect("a thread").unix_micros() + 31_536_000_000_000;
    fs::write(&file, text.replace(&format!("{:020}", 0), &format!("{ahead:020}"))).expect("written");
    for step in 1..5 {
        let answer = Client::new(dir.path()).acquire(&format!("x{step}"), &owner());
        assert_eq!(answer, Answer::Held { fence: ahead + step });
    }
}

#[test]
fn a_lapsed_lease_is_free_and_its_record_goes() {
    let (dir, name) = (dir(), owner());
    let client = Client::new(dir.path());
    assert!(is_held(&client.try_acquire("x", &name, Bind::Lease, 60).expect("an answer")));
    eventually("the lease ends", || client.inspect("x").expect("an answer") == Answer::Free);
    assert_eq!(files(dir.path(), "lock-"), Vec::<PathBuf>::new());
    assert_eq!(client.renew("x", &name, None, LONG_MS), Answer::Free);
}

// ---------------------------------------------------------------------------------------------------------------
// Damage

#[test]
fn a_damaged_record_of_any_kind_is_refused_by_name_and_never_a_second_holder() {
    for rule in [Rule::Mutex, Rule::Reentrant, FAIR, WRITER, Rule::Queue(Seat::permits(5, 5))] {
        damaged(rule);
    }
}

fn damaged(rule: Rule) {
    let (dir, name) = (dir(), owner());
    let (holder, other) = (Client::of(rule, dir.path()), Client::of(rule, dir.path()));
    assert!(is_held(&holder.acquire("x", &name)));
    let file = record(dir.path());
    let text = fs::read_to_string(&file).expect("a record");
    assert!(is_held(&other.acquire("untouched", &owner())));
    let digit = text.rfind(|char: char| char.is_ascii_digit()).expect("a number");
    let other_digit = if text.as_bytes()[digit] == b'1' { "2" } else { "1" };
    let damages: [(&str, Vec<u8>, &str); 11] = [
        ("emptied", Vec::new(), "remove the file"),
        ("half-written", text.as_bytes()[..text.len() / 2].to_vec(), "remove the file"),
        ("without its last byte", text.as_bytes()[..text.len() - 1].to_vec(), "remove the file"),
        ("foreign text", b"pid 4711\n".to_vec(), "remove the file"),
        ("foreign bytes", vec![0xff; 5_000], "remove the file"),
        ("huge", vec![b'x'; 1 << 24], "remove the file"),
        ("zeroes after a power cut", vec![0; text.len()], "remove the file"),
        (
            "with another digit",
            [&text[..digit], other_digit, &text[digit + 1..]].concat().into(),
            "remove the file",
        ),
        ("with another owner", text.replacen("test@", "tess@", 1).into(), "remove the file"),
        ("twice", text.repeat(2).into(), "remove the file"),
        ("of a later version", text.replace("tenure lock 1", "tenure lock 2").into(), "format 2"),
    ];
    for (what, bytes, advice) in damages {
        fs::write(&file, bytes).expect("written");
        for text in [
            refusal(other.try_acquire("x", &owner(), Bind::Process, LONG_MS), &file),
            refusal(holder.try_release("x", &name), &file),
            refusal(other.inspect("x"), &file),
            refusal(other.list(""), &file),
        ] {
            assert!(text.contains(advice), "{what}: {text}");
        }
        assert!(is_busy(&holder.acquire("untouched", &owner())), "{what}");
    }
    fs::write(&file, &text).expect("written");
    assert!(is_busy(&other.acquire("x", &owner())));
    assert_eq!(holder.release("x", &name), Answer::Released { left: 0 });

    for (what, make) in [
        ("directory", (|path| fs::create_dir(path)) as fn(&Path) -> std::io::Result<()>),
        ("symbolic link", |path| symlink("/etc/passwd", path)),
        ("no whole record", |path| {
            assert!(Command::new("mkfifo").arg(path).status()?.success());
            Ok(())
        }),
    ] {
        make(&file).expect("made");
        let text = refusal(other.try_acquire("x", &owner(), Bind::Process, LONG_MS), &file);
        assert!(text.contains(what), "{text}");
        fs::remove_file(&file).or_else(|_| fs::remove_dir(&file)).expect("removed");
    }
    assert!(is_held(&other.acquire("x", &owner())));
}

#[test]
fn a_record_under_another_locks_name_never_merges_the_two() {
    let dir = dir();
    let client = Client::new(dir.path());
    client.acquire("y", &owner());
    let file = record(dir.path());
    client.try_acquire("x", &owner(), Bind::Lease, LONG_MS).expect("an answer");
    let x = files(dir.path(), "lock-").into_iter().find(|path| *path != file).expect("two records");
    fs::copy(&x, &file).expect("copied");
    let text = refusal(client.inspect("y"), &file);
    assert!(text.contains("`x`"), "{text}");
}

#[test]
fn a_damaged_guard_is_refused_and_lets_nobody_in() {
    let dir = dir();
    let client = Client::new(dir.path());
    assert!(is_held(&client.acquire("x", &owner())));
    let file = dir.path().join("guard");
    let text = fs::read_to_string(&file).expect("the guard");
    for (bytes, advice) in [
        (text.as_bytes()[..20].to_vec(), "remove the file"),
        (vec![0; 80], "remove the file"),
        (b"#!/bin/sh\n".to_vec(), "remove the file"),
        (text.replace("guard 1", "guard 2").into_bytes(), "format 2"),
    ] {
        fs::write(&file, bytes).expect("written");
        let other = Client::new(dir.path());
        for text in [
            refusal(client.try_acquire("y", &owner(), Bind::Process, LONG_MS), &file),
            refusal(other.try_acquire("x", &owner(), Bind::Process, LONG_MS), &file),
            refusal(block_on(other.store.ready(SECOND)), &file),
        ] {
            assert!(text.contains(advice), "{text}");
        }
    }
    // What the message advises is safe: the records stay.
    fs::remove_file(&file).expect("removed");
    assert!(is_busy(&Client::new(dir.path()).acquire("x", &owner())));
}

#[test]
fn another_kind_of_lock_is_said_and_its_record_left_alone() {
    let kinds = [
        (Rule::Mutex, Kind::Mutex, None),
        (Rule::Reentrant, Kind::Reentrant, None),
        (FAIR, Kind::Fair, Some(1)),
        (WRITER, Kind::RwLock, Some(1 << 20)),
        (TWO_OF_FIVE, Kind::Semaphore, Some(5)),
        (Rule::Queue(Seat::permits(6, 2)), Kind::Semaphore, Some(6)),
    ];
    for (rule, kind, capacity) in kinds {
        let (dir, name) = (dir(), owner());
        let holder = Client::of(rule, dir.path());
        assert!(is_held(&holder.acquire("x", &name)));
        let text = fs::read_to_string(record(dir.path())).expect("a record");
        for (other, ..) in kinds.into_iter().filter(|(other, ..)| *other != rule) {
            let client = Client::of(other, dir.path());
            assert_eq!(client.acquire("x", &name), Answer::Mismatch { kind, capacity });
            assert_eq!(client.release("x", &name), Answer::Mismatch { kind, capacity });
        }
        assert_eq!(fs::read_to_string(record(dir.path())).expect("a record"), text);
        assert_eq!(holder.list("").expect("a list"), ["x"]);
        assert_eq!(holder.release("x", &name), Answer::Released { left: 0 });
    }
}

/// The record of a queue with this many more places in it, each of an owner of its own.
fn lengthen(file: &Path, by: usize) {
    let text = fs::read_to_string(file).expect("a record");
    let (head, body) = text.split_once("bytes ").expect("a header");
    let (body, _) = body.rsplit_once("sum ").expect("a last line");
    let (name, value) = body.split_once('\n').and_then(|(_, body)| body.split_once('\n')).expect("a name");
    let mut value = value.strip_suffix('\n').expect("a line's end").to_owned();
    let last = value.lines().last().expect("a ticket").to_owned();
    let words: Vec<_> = last.split(' ').collect();
    let (ticket, random): (u64, _) = (words[0].parse().expect("a number"), words[3].len() - 8);
    for n in 1..=by {
        let (weight, deadline, owner) = (words[1], words[2], &words[3][..random]);
        value += &format!("{} {weight} {deadline} {owner}{n:08x}\n", ticket + n as u64);
    }
    let text = format!("{head}bytes {} {}\n{name}\n{value}\n", name.len(), value.len());
    let sum = siphasher::sip::SipHasher13::new().hash(text.as_bytes());
    fs::write(file, format!("{text}sum {sum:016x}\n")).expect("written");
}

#[test]
fn a_queue_of_ten_thousand_is_kept_and_a_full_one_lets_nobody_more_in() {
    let (dir, names) = (dir(), [owner(), owner(), owner(), owner()]);
    let client = Client::of(FAIR, dir.path());
    client.join("x", &names[0]);
    client.join("x", &names[1]);
    lengthen(&record(dir.path()), 10_000);
    let begin = Instant::now();
    client.join("x", &names[2]);
    assert_eq!(found(client.inspect("x")).waiters.len(), 10_002);
    println!("a place behind ten thousand, and a look at them: {:?}", begin.elapsed());
    lengthen(&record(dir.path()), 50_000);
    let (fence, wait_ms, bind) = (Fence::Assign, Some(LONG_MS), Bind::Process);
    let late = Verb::Acquire { ttl_ms: LONG_MS, hold: 1, fence, wait_ms, bind };
    let text = refusal(client.ask("x", &names[3], late, 5 * SECOND), &record(dir.path()));
    assert!(text.contains("full"), "{text}");
    assert!(is_held(&client.renew("x", &names[0], None, LONG_MS + 1)));
    assert_eq!(client.release("x", &names[1]), Answer::Released { left: 0 });
    assert_eq!(client.release("x", &names[0]), Answer::Released { left: 0 });
}

#[test]
fn a_reboot_frees_everything_even_what_cannot_be_read() {
    let dir = dir();
    let client = Client::new(dir.path());
    let Answer::Held { fence } =
        client.try_acquire("x", &owner(), Bind::Process, LONG_MS).expect("an answer")
    else {
        panic!("not held")
    };
    client.try_acquire("y", &owner(), Bind::Lease, LONG_MS).expect("an answer");
    drop(client);
    eventually("its process is gone", || {
        files(dir.path(), "holder-")
            .iter()
            .all(|path| fs::File::open(path).is_ok_and(|file| file.try_lock().is_ok()))
    });
    let boot = "00000000-0000-0000-0000-000000000000";
    for file in [files(dir.path(), "lock-"), files(dir.path(), "guard")].concat() {
        let text = fs::read_to_string(&file).expect("a file");
        let old = text.lines().find_map(|line| line.strip_prefix("boot ")).expect("a boot id");
        fs::write(&file, text.replace(old, boot)).expect("written");
    }
    fs::write(dir.path().join("lock-00000000000000000000000000000000"), "").expect("written");
    let client = Client::new(dir.path());
    assert_eq!(client.list("").expect("a list"), Vec::<String>::new());
    match client.acquire("x", &owner()) {
        Answer::Held { fence: next } => assert!(next > fence),
        other => panic!("{other:?}"),
    }
    assert!(is_held(&client.acquire("y", &owner())));
}

#[test]
fn another_boot_id_while_a_holder_lives_is_no_reboot() {
    let (dir, name) = (dir(), owner());
    let client = Client::new(dir.path());
    client.acquire("x", &name);
    let file = dir.path().join("guard");
    let text = fs::read_to_string(&file).expect("the guard");
    let old = text.lines().find_map(|line| line.strip_prefix("boot ")).expect("a boot id");
    fs::write(&file, text.replace(old, "00000000-0000-0000-0000-000000000000")).expect("written");
    let other = Client::new(dir.path());
    let said = refusal(other.try_acquire("x", &owner(), Bind::Process, LONG_MS), dir.path());
    assert!(said.contains("boot id"), "{said}");
    fs::write(&file, text).expect("written");
    assert!(is_busy(&other.acquire("x", &owner())));
}

// ---------------------------------------------------------------------------------------------------------------
// Directories

#[test]
fn a_missing_directory_is_created_for_its_user_alone() {
    let dir = dir();
    let path = dir.path().join("a/b/c");
    let client = Client::new(&path);
    assert!(!path.exists(), "no I/O before the first use");
    let looks = Locks::open(&format!("file://{}", path.display())).expect("a store");
    assert!(block_on(looks.inspect("x")).expect("an answer").is_none());
    assert!(block_on(looks.list("").expect("a prefix").next()).expect("an answer").is_none());
    assert!(!path.exists(), "a look makes no directory");
    block_on(client.store.ready(SECOND)).expect("a store");
    assert_eq!(fs::metadata(&path).expect("a directory").permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(dir.path().join("a")).expect("a directory").permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_file_in_the_place_of_the_directory_or_its_guard_is_said() {
    let dir = dir();
    let file = dir.path().join("file");
    fs::write(&file, "").expect("written");
    for path in [file.clone(), file.join("below")] {
        let text = refusal(block_on(Client::new(&path).store.ready(SECOND)), &path);
        assert!(text.contains("a file is in the way"), "{text}");
    }
    let below = dir.path().join("below");
    fs::create_dir_all(below.join("guard")).expect("a directory");
    let text = refusal(block_on(Client::new(&below).store.ready(SECOND)), &below.join("guard"));
    assert!(text.contains("it is a directory"), "{text}");
}

#[test]
fn a_directory_that_its_user_may_not_use_is_said() {
    let dir = dir();
    // Below a directory that anybody may pass.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("set");
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let theirs = dir.path().join("theirs");
    block_on(Client::new(&theirs).store.ready(SECOND)).expect("a store");
    for (mode, of_guard) in [(0o700, 0o600), (0o755, 0o644), (0o777, 0o644), (0o555, 0o666)] {
        fs::set_permissions(&theirs, fs::Permissions::from_mode(mode)).expect("set");
        fs::set_permissions(theirs.join("guard"), fs::Permissions::from_mode(of_guard)).expect("set");
        let said = Process::start_under(&nobody, "try", &theirs).line();
        let path = theirs.display().to_string();
        assert!(said.contains("this user may not") && said.contains(&path), "{mode:o}: {said}");
    }
    let said = Process::start_under(&nobody, "try", &dir.path().join("new")).line();
    assert!(said.contains("this user may not"), "{said}");
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o777)).expect("set");
    fs::set_permissions(theirs.join("guard"), fs::Permissions::from_mode(0o666)).expect("set");
    let said = Process::start_under(&nobody, "try", &theirs).line();
    assert!(said.contains("Held"), "{said}");
}

/// A file system of its own. Mounting takes root: without, it fails and says so.
struct Mount(TempDir);

impl Mount {
    fn new(options: &str) -> Self {
        let dir = dir();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tenure-test"]).arg(dir.path());
        assert!(
            mount.status().expect("mount").success(),
            "mounting a tmpfs takes root: run the tests as root"
        );
        Self(dir)
    }

    fn remount(&self, options: &str) {
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("remount,{options}")]).arg(self.0.path());
        assert!(mount.status().expect("mount").success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_file_system_refuses_a_grant_and_lets_a_release_through() {
    let mount = Mount::new("size=64k");
    let dir = mount.0.path();
    let (client, name) = (Client::new(dir), owner());
    assert!(is_held(&client.acquire("x", &name)));
    let ballast = dir.join("ballast");
    let mut file = fs::File::create(&ballast).expect("a file");
    while file.write_all(&[0; 1024]).is_ok() {}
    let other = Client::new(dir);
    for text in [
        refusal(other.try_acquire("y", &owner(), Bind::Process, LONG_MS), dir),
        refusal(block_on(other.store.ready(SECOND)), dir),
    ] {
        assert!(text.contains("full"), "{text}");
    }
    assert_eq!(other.inspect("y").expect("an answer"), Answer::Free);
    assert!(is_busy(&other.acquire("x", &owner())));
    assert_eq!(client.list("").expect("a list"), ["x"]);
    assert_eq!(client.release("x", &name), Answer::Released { left: 0 });
    fs::remove_file(&ballast).expect("removed");
    assert!(is_held(&other.acquire("y", &owner())));
}

#[test]
fn a_read_only_file_system_is_said() {
    let mount = Mount::new("size=64k");
    let dir = mount.0.path();
    Client::new(dir).inspect("x").expect("an answer");
    // The store that ends writes nothing any more, but may still have its files open.
    sleep(Duration::from_millis(100));
    mount.remount("ro");
    let text = refusal(block_on(Client::new(dir).store.ready(SECOND)), dir);
    assert!(text.contains("read-only"), "{text}");
    let below = dir.join("below");
    let text = refusal(block_on(Client::new(&below).store.ready(SECOND)), &below);
    assert!(text.contains("read-only"), "{text}");
}

#[test]
fn a_directory_that_is_replaced_is_noticed_by_who_listens_and_by_who_holds() {
    let dir = dir();
    let path = dir.path().join("locks");
    let (client, name) = (Client::new(&path), owner());
    assert!(is_held(&client.acquire("x", &name)));
    let mut listener = client.listen("y");
    let interrupted = client.store.interrupted();
    fs::rename(&path, dir.path().join("aside")).expect("moved");
    assert_eq!(client.within(SECOND, listener.next()), Some(Some(Wake::Reconnected)));
    assert!(client.within(SECOND, interrupted).is_some());
    let other = Client::new(&path);
    assert!(is_held(&other.acquire("x", &owner())));
    assert!(is_busy(&client.renew("x", &name, None, LONG_MS)), "both would hold");
}

#[test]
fn a_directory_that_was_removed_is_made_anew_and_nobody_holds_there() {
    let dir = dir();
    let path = dir.path().join("locks");
    let (client, name) = (Client::new(&path), owner());
    assert!(is_held(&client.acquire("x", &name)));
    let interrupted = client.store.interrupted();
    fs::remove_dir_all(&path).expect("removed");
    assert_eq!(client.renew("x", &name, None, LONG_MS), Answer::Free);
    assert!(client.within(SECOND, interrupted).is_some());
    assert!(is_held(&client.acquire("x", &owner())));
    assert!(is_busy(&Client::new(&path).acquire("x", &owner())));
}

/// Whoever is answered asks again, from threads of their own, and the thread beneath them has more to do than that.
#[test]
fn however_much_is_asked_what_is_held_is_renewed_and_limits_are_kept() {
    const TTL: Duration = Duration::from_millis(300);
    let dir = dir();
    let locks = Locks::open(&format!("file:{}", dir.path().display())).expect("a store");
    let locks = locks.with(Options::new().ttl(TTL)).expect("options");
    let guard = block_on(locks.mutex("leader").expect("a name").lock()).expect("a free lock");
    let until = Instant::now() + 10 * TTL;
    std::thread::scope(|scope| {
        for number in 0..16 {
            let locks = &locks;
            scope.spawn(move || {
                let mutex = locks.mutex(&format!("busy:{number}")).expect("a name");
                while Instant::now() < until {
                    let turn = block_on(mutex.try_lock()).expect("an answer").expect("a free lock");
                    block_on(turn.release()).expect("a release");
                }
            });
        }
        let waiter = locks.mutex("leader").expect("a name");
        while Instant::now() < until {
            let begun = Instant::now();
            assert!(block_on(waiter.try_lock_for(TTL / 3)).expect("an answer").is_none());
            assert!(begun.elapsed() < 10 * TTL, "a limit of {:?} took {:?}", TTL / 3, begun.elapsed());
            assert!(guard.is_held(), "its renewals had no turn");
        }
    });
    block_on(guard.release()).expect("still held");
}
