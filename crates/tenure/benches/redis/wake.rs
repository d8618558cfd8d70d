//! The delay of a hand-over to a client in another process.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout};
use std::thread;
use std::time::Duration;

use tenure::{Locks, block_on};
use tenure_testkit::servers::Server;
use tokio::runtime::Builder;

use crate::pairs::bare;
use crate::{Lock, median, now, row, start};

/// Another process, controlled by lines on its standard input.
struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    fn start(args: &[&str]) -> Self {
        let mut child = start(args);
        let (input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        Self { child, input, output: BufReader::new(output) }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("a reader");
    }

    fn hear(&mut self) -> u64 {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim().parse().expect("a number")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for the lock on each line, and prints the time of the grant.
pub(crate) fn waiter(url: &str, kind: &str) {
    let locks = Locks::open(url).expect("a store");
    let lock = Lock::new(&locks, kind, "wake");
    for _ in std::io::stdin().lines() {
        let guard = block_on(lock.lock());
        let had = now();
        block_on(guard.release()).expect("a release");
        println!("{had}");
    }
}

/// Campaigns on each line, and prints when it leads.
pub(crate) fn candidate(url: &str) {
    let election = Locks::open(url).expect("a store").election("wake", "peer").expect("a name");
    for _ in std::io::stdin().lines() {
        let term = block_on(election.campaign()).expect("a term");
        let led = now();
        block_on(term.resign()).expect("it led");
        println!("{led}");
    }
}

/// The bare hop: receives a message, sends one command if configured, and prints the time of the result.
pub(crate) fn hop(url: &str, then: &str) {
    let client = redis::Client::open(url).expect("a URL");
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");
        let mut messages = client.get_async_pubsub().await.expect("a connection");
        messages.subscribe("hop").await.expect("a subscription");
        let mut messages = messages.into_on_message();
        println!("0");
        loop {
            if futures_util::StreamExt::next(&mut messages).await.is_none() {
                return;
            }
            if then == "ask" {
                let _: Option<String> =
                    redis::cmd("GET").arg("hop").query_async(&mut connection).await.expect("an answer");
            }
            println!("{}", now());
        }
    });
}

/// From a leader's resignation to the next leader, compared with a single message.
pub(crate) fn election(what: &str, server: &Server) {
    let url = server.url();
    let election = Locks::open(&url).expect("a store").election("wake", "this").expect("a name");
    let lead = || block_on(election.campaign()).expect("a term");
    wake_up_by(what, &url, &["candidate", &url], "go on", 3.0, lead, |term| {
        block_on(term.resign()).expect("it led");
    });
}

/// The waiter gets a message and sends a request, like the bare side.
pub(crate) fn mutex(what: &str, server: &Server) {
    wake_up(what, &server.url(), "mutex", "ask");
}

/// The message is the grant.
pub(crate) fn fair(what: &str, server: &Server) {
    wake_up(what, &server.url(), "fair", "go on");
}

fn wake_up(what: &str, url: &str, kind: &str, then: &str) {
    let locks = Locks::open(url).expect("a store");
    let lock = Lock::new(&locks, kind, "wake");
    wake_up_by(
        what,
        url,
        &["waiter", url, kind],
        then,
        1.5,
        || block_on(lock.lock()),
        |guard| {
            block_on(guard.release()).expect("a release");
        },
    );
}

/// The medians of a hand-over to a peer and of a message to the bare one, alternating.
fn wake_up_by<T>(
    what: &str,
    url: &str,
    peer: &[&str],
    then: &str,
    reach: f64,
    take: impl Fn() -> T,
    give: impl Fn(T),
) {
    const TIMES: usize = 300;
    let mut peer = Peer::start(peer);
    let mut bare_peer = Peer::start(&["hop", url, then]);
    let mut connection = bare(url);
    bare_peer.hear();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        let taken = take();
        peer.say("wait");
        thread::sleep(Duration::from_millis(4));
        let began = now();
        give(taken);
        ours.push((peer.hear().saturating_sub(began)) as f64 / 1e3);
        thread::sleep(Duration::from_millis(4));
        let began = now();
        let _: i64 = block_on(redis::cmd("PUBLISH").arg("hop").arg("x").query_async(&mut connection))
            .expect("an answer");
        theirs.push((bare_peer.hear().saturating_sub(began)) as f64 / 1e3);
    }
    let (ours, theirs) = (median(ours), median(theirs));
    row(what, ours, theirs, ours / theirs, &format!("<= {reach}"));
}
