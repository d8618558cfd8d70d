//! Interoperation with redis-py's `Lock` on the same names: no overlap, no foreign release, no starvation.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers and other programs measure real time"
)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use tenure::{Guard, Locks, Mutex, Options, Renewal, block_on};
use tenure_testkit::servers::{Server, eventually};

use crate::common::ms;

const SOON: Duration = Duration::from_secs(5);

fn locks(server: &Server) -> Locks {
    Locks::open(&server.url()).expect("a store")
}

fn mutex(server: &Server, name: &str) -> Mutex {
    locks(server).mutex(name).expect("a name")
}

fn held(mutex: &Mutex) -> Guard {
    block_on(mutex.try_lock_for(SOON)).expect("an answer").expect("it is free soon")
}

/// A Python process with redis-py.
struct Python {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Python {
    fn start(server: &Server) -> Self {
        let mut command = Command::new(tenure_testkit::interop::python());
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop.py"));
        command.arg(server.address().port().to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("python");
        let orders = process.stdin.take().expect("a pipe");
        let answers = BufReader::new(process.stdout.take().expect("a pipe"));
        Self { process, orders, answers }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it reads its orders");
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it answers");
        assert!(line.ends_with('\n'), "it ended");
        line.trim_end().to_owned()
    }

    fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_redis_py_process_and_ours_are_never_inside_together() {
    const TURNS: u32 = 300;
    let server = Server::start();
    let mut python = Python::start(&server);
    let mut client = server.client().expect("a connection");
    let mutex = mutex(&server, "app:x");
    let mut waited = 0;
    python.order(&format!("turns app:x {TURNS}"));
    for turn in 0..TURNS {
        // Some turns wait; most only try, so that there are many in a short time.
        let guard = if turn % 10 == 0 {
            waited += 1;
            held(&mutex)
        } else {
            let started = Instant::now();
            loop {
                if let Some(guard) = block_on(mutex.try_lock()).expect("an answer") {
                    break guard;
                }
                assert!(started.elapsed() < SOON, "no turn within {SOON:?}");
                std::thread::sleep(Duration::from_micros(300));
            }
        };
        let alone = client.command(&["SET", "inside", "ours", "NX"]).expect("a reply");
        assert!(alone == "OK", "another client is inside in turn {turn}");
        let seen = client.command(&["INCRBY", "turns", "0"]).expect("a reply").int();
        std::thread::sleep(Duration::from_micros(500));
        client.command(&["SET", "turns", &(seen + 1).to_string()]).expect("a reply");
        client.command(&["DEL", "inside"]).expect("a reply");
        block_on(guard.release()).expect("it was ours to the end");
        std::thread::sleep(ms(1));
    }
    assert_eq!(python.answer(), "0", "a client was inside with redis-py");
    assert_eq!(server.command(&["GET", "turns"]).text(), (2 * TURNS).to_string(), "a turn was not seen");
    println!("{TURNS} turns each, {waited} of tenure waited for");
}

#[test]
fn we_get_our_turn_beside_ten_pollers_of_redis_py() {
    const BOUND: Duration = Duration::from_secs(10);
    for (kind, held_s, paused_s) in
        [("pause as long as they hold", "0.02", "0.02"), ("pause for 1 ms", "0.02", "0.001")]
    {
        let server = Server::start();
        let mut python = Python::start(&server);
        assert_eq!(python.ask(&format!("crowd app:x 10 {held_s} {paused_s}")), "ok");
        let crowd = || server.command(&["INCRBY", "crowd", "0"]).int();
        eventually("the crowd takes turns", SOON, || crowd() > 10);
        let mutex = mutex(&server, "app:x");
        let mut waits: Vec<Duration> = (0..10)
            .map(|_| {
                let started = Instant::now();
                let guard = block_on(mutex.try_lock_for(BOUND)).expect("an answer");
                let guard =
                    guard.unwrap_or_else(|| panic!("no turn within {BOUND:?}, beside pollers that {kind}"));
                let waited = started.elapsed();
                block_on(guard.release()).expect("a release");
                std::thread::sleep(ms(30));
                waited
            })
            .collect();
        waits.sort();
        println!(
            "beside ten pollers that hold 20 ms and {kind}: {:?} median, {:?} at most",
            waits[5], waits[9]
        );
    }
}

#[test]
fn a_release_of_redis_py_never_frees_ours_nor_ours_its() {
    let server = Server::start();
    let mut python = Python::start(&server);
    let short = Options::new().ttl(ms(100)).renewal(Renewal::Off);
    let (lasting, lapsing) = (mutex(&server, "app:x"), locks(&server).with(|_| short).expect("options"));

    // Its lease expires, ours begins, and its release comes too late.
    assert_ne!(python.ask("acquire app:x 0.05 5"), "busy");
    let ours = held(&lasting);
    for late in ["release app:x", "acquire app:x 30 0"] {
        let said = python.ask(late);
        assert!(said == "LockNotOwnedError" || said == "busy", "{late}: {said}");
        block_on(ours.verify()).expect("it is still ours");
    }
    block_on(ours.release()).expect("it was ours all the time");

    // The same with an extension: our lease keeps its end.
    assert_ne!(python.ask("acquire app:x 0.05 5"), "busy");
    let ours = held(&lasting);
    assert_eq!(python.ask("extend app:x 3600"), "LockNotOwnedError");
    assert_eq!(python.ask("reacquire app:x"), "LockNotOwnedError");
    assert_eq!((&*python.ask("owned app:x"), &*python.ask("locked app:x")), ("False", "True"));
    assert!(server.command(&["PTTL", "app:x"]).int() <= 15_000);
    block_on(ours.release()).expect("it was ours all the time");

    // The reverse: by a release, by a renewal, and by a drop.
    let late: [fn(Guard); 3] = [
        |guard| assert!(block_on(guard.release()).expect_err("it was lost").is_lost()),
        |guard| assert!(block_on(guard.renew()).expect_err("it was lost").is_lost()),
        |guard| drop(guard),
    ];
    for late in late {
        let ours = held(&lapsing.mutex("app:x").expect("a name"));
        let token = python.ask("acquire app:x 30 5");
        assert_ne!(token, "busy");
        late(ours);
        assert!(block_on(lasting.try_lock()).expect("an answer").is_none(), "also after whatever that did");
        assert_eq!(server.command(&["GET", "app:x"]).text(), token);
        assert_eq!(python.ask("owned app:x"), "True");
        assert_eq!(python.ask("release app:x"), "None");
    }
}

#[test]
fn a_redis_py_holder_is_shown_as_foreign_and_can_be_forced() {
    let server = Server::start();
    let mut python = Python::start(&server);
    let locks = locks(&server);
    let token = python.ask("acquire app:x 30 0");
    for forced in [false, true] {
        let status = if forced {
            block_on(locks.force_release_foreign("app:x"))
        } else {
            block_on(locks.inspect("app:x"))
        };
        let status = status.expect("an answer").expect("a holder");
        let [holder] = &status.holders[..] else { panic!("{status:?}") };
        assert_eq!((&holder.owner, &*holder.value, holder.fence), (&None, token.as_bytes(), 0));
        let left = holder.remaining.expect("an end");
        assert!(left > ms(25_000) && left <= ms(30_000), "{left:?}");
    }
    assert!(block_on(locks.inspect("app:x")).expect("an answer").is_none());
    assert_eq!(python.ask("release app:x"), "LockNotOwnedError");

    // A waiter of redis-py gets the lock after a forced release by tenure.
    let ours = held(&locks.mutex("app:x").expect("a name"));
    python.order("acquire app:x 30 5");
    std::thread::sleep(ms(100));
    let status = block_on(locks.force_release("app:x")).expect("an answer").expect("a holder");
    assert_eq!(status.holders[0].owner.as_ref(), Some(ours.owner()));
    let token = python.answer();
    assert_ne!(token, "busy");
    let why = block_on(ours.verify()).expect_err("it was forced open");
    assert!(why.is_lost() && why.to_string().contains(&token), "{why}");
}
