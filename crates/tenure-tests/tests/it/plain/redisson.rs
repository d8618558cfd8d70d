//! Another program's `RLock`, by the commands that Redisson documents for it.

use super::*;
use tenure_testkit::timed::in_time;

const HOLDER: &str = "550e8400-e29b-41d4-a716-446655440000:51";
const CHANNEL: &str = "redisson_lock__channel:{x}";

struct Redisson(Plain);

impl Redisson {
    fn new(server: &Server) -> Self {
        Self(Plain::new(server, 'f'))
    }

    /// The remaining lease of the current holder, unless this one holds now.
    fn lock(&mut self) -> Result<(), i64> {
        let exists = self.0.command(&["EXISTS", "x"]).int() == 1;
        if exists && self.0.command(&["HEXISTS", "x", HOLDER]).int() == 0 {
            return Err(self.0.command(&["PTTL", "x"]).int());
        }
        self.0.command(&["HINCRBY", "x", HOLDER, "1"]);
        self.0.command(&["PEXPIRE", "x", "30000"]);
        Ok(())
    }

    /// Whether it is free now; `None` if this holder did not hold it.
    fn unlock(&mut self) -> Option<bool> {
        if self.0.command(&["HEXISTS", "x", HOLDER]).int() == 0 {
            return None;
        }
        if self.0.command(&["HINCRBY", "x", HOLDER, "-1"]).int() > 0 {
            self.0.command(&["PEXPIRE", "x", "30000"]);
            return Some(false);
        }
        self.force_unlock();
        Some(true)
    }

    fn force_unlock(&mut self) {
        self.0.command(&["DEL", "x"]);
        self.0.command(&["PUBLISH", CHANNEL, "0"]);
    }
}

#[test]
fn its_lock_excludes_ours_through_all_its_holds_and_its_last_unlock_wakes_us() {
    let server = Server::start();
    let (locks, mut redisson) = (locks(&server), Redisson::new(&server));
    let me = Owner::new("me").expect("an owner");
    let ours = locks.reentrant_mutex("x", &me).expect("a name");
    assert_eq!((redisson.lock(), redisson.lock()), (Ok(()), Ok(())));
    assert!(block_on(ours.try_lock()).expect("an answer").is_none());
    let status = block_on(locks.inspect("x")).expect("an answer").expect("a holder");
    assert_eq!(status.kind, Kind::Reentrant);
    assert_eq!((&*status.holders[0].value, status.holders[0].share), (HOLDER.as_bytes(), Share::Holds(2)));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = block_on(ours.lock()).expect("a grant");
            (guard, Instant::now())
        });
        heard_by_one(&server, CHANNEL);
        assert_eq!(redisson.unlock(), Some(false));
        assert!(block_on(ours.try_lock()).expect("an answer").is_none());
        // By now it polls once a second, so a faster grant is due to the message.
        std::thread::sleep(ms(4_000));
        assert_eq!(redisson.unlock(), Some(true));
        let released = Instant::now();
        let (guard, granted) = waiter.join().expect("no panic");
        in_time(granted.saturating_duration_since(released), ms(500));
        drop(guard);
    });
}

#[test]
fn our_lock_excludes_it_through_all_our_holds_and_our_last_release_wakes_it() {
    let server = Server::start();
    // Two clients, because a re-entry through the same one sends no request.
    let (ours, more, mut redisson) = (locks(&server), locks(&server), Redisson::new(&server));
    let me = Owner::new("me").expect("an owner");
    let (ours, more) = (ours.reentrant_mutex("x", &me), more.reentrant_mutex("x", &me));
    let mut listener = Plain::listen(&server, CHANNEL);
    let outer = block_on(ours.expect("a name").lock()).expect("a grant");
    let inner = block_on(more.expect("a name").lock()).expect("a re-entry");
    assert_eq!(outer.fence(), inner.fence());
    assert!((1..=3_000).contains(&redisson.lock().expect_err("it is held")));
    assert_eq!(redisson.0.command(&["HGET", "x", me.as_str()]).text(), "2");
    block_on(inner.release()).expect("a release");
    assert!(redisson.lock().is_err());
    block_on(outer.release()).expect("a release");
    assert_eq!(listener.hear(), "0");
    assert_eq!(redisson.lock(), Ok(()));
}

#[test]
fn neither_can_unlock_what_the_other_holds() {
    let server = Server::start();
    let (locks, mut redisson) = (locks(&server), Redisson::new(&server));
    let me = Owner::new("me").expect("an owner");
    let ours = locks.reentrant_mutex("x", &me).expect("a name");
    let guard = block_on(ours.lock()).expect("a grant");
    assert_eq!(redisson.unlock(), None);
    block_on(guard.verify()).expect("it is still ours");
    block_on(guard.release()).expect("a release");
    redisson.lock().expect("it is free");
    let mut plain = Plain::new(&server, 'a');
    assert_eq!(page::channel(Machine::Reentrant, "x"), CHANNEL);
    let busy = plain.ask(REENTRANTS, "release", &[("hold", "1a"), ("whose", "mine")]);
    assert_eq!((&*busy.word, &*busy.part("holder")), ("busy", HOLDER));
    assert_eq!(redisson.unlock(), Some(true));
}

#[test]
fn its_force_unlock_is_a_loss_to_us() {
    let server = Server::start();
    let (locks, mut redisson) = (locks(&server), Redisson::new(&server));
    let me = Owner::new("me").expect("an owner");
    let guard = block_on(locks.reentrant_mutex("x", &me).expect("a name").lock()).expect("a grant");
    let started = Instant::now();
    redisson.force_unlock();
    let lost = block_on(guard.lost());
    assert!(lost.is_lost() && !guard.is_held(), "{lost}");
    // Before the lease would have ended.
    in_time(started.elapsed(), ms(1_800));
    assert_eq!(redisson.lock(), Ok(()));
}

#[test]
fn our_forced_release_leaves_its_lock() {
    let server = Server::start();
    let (locks, mut redisson) = (locks(&server), Redisson::new(&server));
    redisson.lock().expect("it is free");
    for forced in [block_on(locks.force_release("x")), block_on(locks.force_release_foreign("x"))] {
        assert!(forced.expect_err("a lock of another library").is_mismatch());
    }
    let status = block_on(locks.inspect("x")).expect("an answer").expect("a holder");
    assert_eq!(status.holders[0].value, HOLDER.as_bytes());
    assert_eq!(redisson.unlock(), Some(true));
}
