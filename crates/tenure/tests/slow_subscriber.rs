//! A subscriber that blocks costs its own events, and no lease.
#![expect(clippy::disallowed_methods, reason = "the subscriber blocks its thread on purpose")]

#[path = "common/subscriber.rs"]
mod subscriber;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use subscriber::{Hears, Said};
use tenure::{Guard, Locks, Options, Renewal, block_on};
use tenure_testkit::servers::Server;
use tracing::subscriber::with_default;

/// How long the subscriber blocks, and the lease that it must not cost.
const BLOCK: Duration = Duration::from_secs(3);
const TTL: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(30);

/// Signals the beginning of the block, and sets its end.
struct Blocks {
    begins: Receiver<()>,
    is_over: Arc<AtomicBool>,
}

impl Blocks {
    /// Opens a store whose subscriber blocks at the first of these events.
    fn at(message: &'static str, block: Duration, open: impl FnOnce() -> Locks) -> (Locks, Self) {
        let (begin, begins) = channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let (begin, over) = (Mutex::new(Some(begin)), Arc::clone(&is_over));
        let hears = Hears(move |said: Said| {
            let begin = (said.message == message).then(|| begin.lock().expect("no panic").take());
            if let Some(begin) = begin.flatten() {
                begin.send(()).expect("the test waits");
                thread::sleep(block);
                over.store(true, Ordering::Release);
            }
        });
        let locks = with_default(hears, open).with(|options| options.ttl(TTL)).expect("options");
        (locks, Self { begins, is_over })
    }

    fn begins(&self) {
        self.begins.recv_timeout(LIMIT).expect("the subscriber has the event");
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

fn lock(locks: &Locks, name: &str) -> Guard {
    block_on(locks.mutex(name).expect("a name").lock()).expect("a grant")
}

/// While the subscriber blocks, a lease is renewed and a waiter gets its turn.
fn nothing_else_is_lost(locks: &Locks, kept: &Guard, blocks: &Blocks) {
    let first = lock(locks, "kept:turn");
    let others = locks.clone();
    let waiter = thread::spawn(move || lock(&others, "kept:turn"));
    block_on(first.release()).expect("a release");
    let second = waiter.join().expect("a turn");
    assert!(!blocks.is_over(), "the turn came before the subscriber went on");
    while !blocks.is_over() {
        thread::sleep(Duration::from_millis(10));
    }
    assert!(kept.is_held() && second.is_held());
    block_on(kept.verify()).expect("still held");
}

#[test]
fn a_subscriber_that_blocks_at_a_loss_costs_no_other_lease_in_memory() {
    let (locks, blocks) = Blocks::at("lost", BLOCK, Locks::memory);
    let kept = lock(&locks, "kept");
    let brief = Options::new().ttl(Duration::from_millis(300)).renewal(Renewal::Off);
    let _lost = lock(&locks.with(|_| brief).expect("options"), "lost");
    blocks.begins();
    nothing_else_is_lost(&locks, &kept, &blocks);
}

#[test]
fn a_subscriber_that_blocks_at_a_loss_costs_no_other_lease_on_a_server() {
    let server = Server::start();
    let open = || Locks::open(&server.url()).expect("a store");
    let (locks, blocks) = Blocks::at("lost", BLOCK, open);
    let kept = lock(&locks, "kept");
    let _lost = lock(&locks, "lost");
    block_on(open().force_release("lost")).expect("an answer");
    blocks.begins();
    nothing_else_is_lost(&locks, &kept, &blocks);
}

#[test]
fn a_subscriber_that_blocks_at_a_failed_renewal_costs_no_other_lease() {
    let server = Server::start();
    let open = || Locks::open(&server.url()).expect("a store");
    let (locks, blocks) = Blocks::at("renewal failed", BLOCK, open);
    let kept = lock(&locks, "kept");
    let _refused = lock(&locks, "refused");
    assert_eq!(server.command(&["ACL", "SETUSER", "default", "resetkeys", "~*kept*", "~tenure:fence"]), "OK");
    blocks.begins();
    nothing_else_is_lost(&locks, &kept, &blocks);
}

/// Like a program that ends soon after.
fn loses_one(end: impl FnOnce(Locks)) {
    let (locks, blocks) = Blocks::at("lost", Duration::from_millis(300), Locks::memory);
    let brief = Options::new().ttl(Duration::from_millis(50)).renewal(Renewal::Off);
    let brief = locks.with(|_| brief).expect("options");
    let lost = lock(&brief, "lost");
    blocks.begins();
    drop((lost, brief));
    assert!(!blocks.is_over(), "the subscriber still has the event");
    end(locks);
    assert!(blocks.is_over(), "the event was waited for");
}

#[test]
fn flush_waits_for_the_subscriber() {
    loses_one(|locks| {
        // The last handle is never dropped, so only `flush` can wait.
        std::mem::forget(locks.clone());
        block_on(locks.flush()).expect("flushed");
    });
}

#[test]
fn the_drop_of_the_last_handle_waits_for_the_subscriber() {
    loses_one(drop);
}
