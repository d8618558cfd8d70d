//! What book/migrate/index.md claims: the commands of other libraries, and a fleet that moves from each of
//! them to tenure while it works, on one server and on a quorum.
#![expect(clippy::disallowed_methods, reason = "tests against real servers take real time")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use tenure::{Locks, Multi, Owner, block_on};
use tenure_testkit::servers::{Client, Server, Value};

use super::quorum::nodes::Nodes;

const SOON: Duration = Duration::from_secs(30);

/// The commands of a library's lock. Each script compares the value first.
struct Library {
    name: &'static str,
    /// If it is not `SET NX PX`.
    take: Option<&'static str>,
    extend: &'static str,
    release: &'static str,
}

const DELETE: &str = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0";
const PEXPIRE: &str =
    "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2]) or 0";
const SET_AGAIN: &str = "return redis.call('GET', KEYS[1]) == ARGV[1]
    and redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) and 1 or 0";
const IF_ABSENT: &str = "return redis.call('EXISTS', KEYS[1]) == 0
    and redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) and 1 or 0";
/// Wakes a waiter through a list beside the lock.
const DELETE_AND_PUSH: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
    local list = 'lock-signal:' .. string.sub(KEYS[1], #'lock:' + 1)
    redis.call('LPUSH', list, 1)
    redis.call('PEXPIRE', list, 1000)
    return redis.call('DEL', KEYS[1])";

const LIBRARIES: [Library; 5] = [
    Library { name: "rslock", take: None, extend: SET_AGAIN, release: DELETE },
    Library { name: "redlock of npm", take: Some(IF_ABSENT), extend: SET_AGAIN, release: DELETE },
    Library { name: "redis-py", take: None, extend: PEXPIRE, release: DELETE },
    Library { name: "redsync", take: None, extend: PEXPIRE, release: DELETE },
    // The prefix of its keys.
    Library { name: "lock:python-redis-lock", take: None, extend: PEXPIRE, release: DELETE_AND_PUSH },
];

/// A client of a library. Its lock is the key on a majority of its servers.
struct Foreign<'a> {
    library: &'a Library,
    servers: Vec<Client>,
    value: String,
}

impl<'a> Foreign<'a> {
    fn new(library: &'a Library, servers: &[Server]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let value = format!("{:040x}", NEXT.fetch_add(1, Ordering::Relaxed));
        let servers = servers.iter().map(|server| server.client().expect("a connection")).collect();
        Self { library, servers, value }
    }

    /// Whether a script succeeds on a majority.
    fn asks(&mut self, script: &str, key: &str) -> bool {
        let command = ["EVAL", script, "1", key, &self.value, "10000"];
        let yes = |client: &mut Client| client.command(&command).expect("an answer") == Value::Int(1);
        let votes = self.servers.iter_mut().map(yes).filter(|yes| *yes).count();
        votes > self.servers.len() / 2
    }

    fn take(&mut self, key: &str) -> bool {
        let taken = match self.library.take {
            Some(script) => self.asks(script, key),
            None => {
                let command = ["SET", key, &self.value, "NX", "PX", "10000"];
                let set = |client: &mut Client| client.command(&command).expect("an answer") == "OK";
                let votes = self.servers.iter_mut().map(set).filter(|set| *set).count();
                votes > self.servers.len() / 2
            }
        };
        if !taken {
            self.release(key);
        }
        taken
    }

    fn extend(&mut self, key: &str) -> bool {
        self.asks(self.library.extend, key)
    }

    fn release(&mut self, key: &str) -> bool {
        self.asks(self.library.release, key)
    }
}

/// Each library, on one server and on a quorum of three.
fn with_each(test: impl Fn(&Library, &[Server], &Locks)) {
    let one = [Server::start()];
    let three = Nodes::new(3);
    for (servers, url) in [(&one[..], one[0].url()), (&three[..], three.url())] {
        let locks = Locks::open(&url).expect("a store");
        for library in &LIBRARIES {
            println!("{}, {} servers", library.name, servers.len());
            test(library, servers, &locks);
        }
    }
}

#[test]
fn locks_of_each_library_and_ours_exclude_each_other_and_neither_frees_the_others() {
    with_each(|library, servers, locks| {
        let mutex = locks.mutex(library.name).expect("a name");
        let mut theirs = Foreign::new(library, servers);
        assert!(theirs.take(library.name));
        assert!(block_on(mutex.try_lock()).expect("an answer").is_none());
        assert!(theirs.extend(library.name), "our attempt left it as it was");
        assert!(block_on(mutex.try_lock_for(Duration::from_millis(100))).expect("an answer").is_none());
        assert!(theirs.release(library.name));

        let guard = block_on(mutex.try_lock_for(SOON)).expect("an answer").expect("it is free");
        assert!(guard.fence() > 0);
        let mut other = Foreign::new(library, servers);
        for client in [&mut theirs, &mut other] {
            assert!(!client.take(library.name) && !client.extend(library.name));
            assert!(!client.release(library.name));
        }
        block_on(guard.verify()).expect("it is still ours");
        block_on(guard.release()).expect("it was ours to the end");
        assert!(other.take(library.name) && other.release(library.name));
    });
}

#[test]
fn a_crew_moves_from_each_library_to_ours_one_by_one_and_is_never_inside_together() {
    const TURNS: u32 = 12;
    with_each(|library, servers, locks| {
        let (inside, seen) = (AtomicBool::new(false), AtomicU32::new(0));
        let work = |who: &str| {
            assert!(!inside.swap(true, Ordering::SeqCst), "{}: {who} is not alone", library.name);
            let before = seen.load(Ordering::SeqCst);
            sleep(Duration::from_millis(1));
            seen.store(before + 1, Ordering::SeqCst);
            assert!(inside.swap(false, Ordering::SeqCst), "{}: {who} was not alone", library.name);
        };
        scope(|scope| {
            for member in 0..4 {
                let work = &work;
                scope.spawn(move || {
                    let mut theirs = Foreign::new(library, servers);
                    let mutex = locks.mutex(library.name).expect("a name");
                    for turn in 0..TURNS {
                        // The first member moves immediately, the last after most of its turns.
                        if turn < member * 3 {
                            while !theirs.take(library.name) {
                                sleep(Duration::from_millis(u64::from(5 + member * 7 + turn % 3)));
                            }
                            work("an old client");
                            assert!(theirs.release(library.name), "{}: it had the lock", library.name);
                        } else {
                            let guard = block_on(mutex.try_lock_for(SOON)).expect("an answer");
                            let guard = guard.expect("a turn");
                            work("a new client");
                            block_on(guard.release()).expect("it had the lock");
                        }
                        sleep(Duration::from_millis(3));
                    }
                });
            }
        });
        assert_eq!(seen.load(Ordering::SeqCst), 4 * TURNS, "a turn was not seen");
    });
}

/// Redisson's `RLock` is a hash: it excludes every kind, and interoperates with the reentrant mutex.
#[test]
fn redissons_lock_excludes_each_kind_and_fails_at_what_is_no_reentrant_mutex() {
    const HOLDER: &str = "550e8400-e29b-41d4-a716-446655440000:51";
    let server = Server::start();
    let locks = Locks::open(&server.url()).expect("a store");
    let me = Owner::new("me").expect("an owner");
    server.command(&["HINCRBY", "x", HOLDER, "1"]);
    server.command(&["PEXPIRE", "x", "30000"]);
    block_on(async {
        assert!(locks.mutex("x")?.try_lock().await?.is_none());
        assert!(locks.fair_mutex("x")?.try_lock().await?.is_none());
        assert!(locks.reentrant_mutex("x", &me)?.try_lock().await?.is_none());
        assert!(locks.rwlock("x")?.try_read().await?.is_none());
        assert!(locks.semaphore("x", 2)?.try_acquire().await?.is_none());
        server.command(&["DEL", "x"]);

        let held = |is_reentrant: bool| {
            let asked = server.command(&["HEXISTS", "x", HOLDER]);
            match asked {
                Value::Int(there) => assert!(is_reentrant && there == 0, "{asked:?}"),
                other => assert!(!is_reentrant && format!("{other:?}").contains("WRONGTYPE"), "{other:?}"),
            }
        };
        let guard = locks.mutex("x")?.lock().await?;
        held(false);
        guard.release().await?;
        let guard = locks.reentrant_mutex("x", &me)?.lock().await?;
        held(true);
        guard.release().await
    })
    .expect("answers");
}

#[test]
fn a_crew_moves_to_another_name_on_other_servers_through_a_version_that_holds_both() {
    const TURNS: u32 = 24;
    let (server, nodes) = (Server::start(), Nodes::new(3));
    let old = Locks::open(&server.url()).and_then(|locks| locks.mutex("old")).expect("a mutex");
    let new = Locks::open(&nodes.url()).and_then(|locks| locks.mutex("new")).expect("a mutex");
    let both = Multi::new([old.clone(), new.clone()]).expect("two names");
    let inside = AtomicBool::new(false);
    // All reach the second version before the first reaches the third.
    let (second, third) = (Barrier::new(4), AtomicU32::new(0));
    scope(|scope| {
        for member in 0..4 {
            let (old, new, both, inside, second, third) = (&old, &new, &both, &inside, &second, &third);
            scope.spawn(move || {
                for turn in 0..TURNS {
                    let work = || {
                        assert!(!inside.swap(true, Ordering::SeqCst), "member {member} is not alone");
                        sleep(Duration::from_millis(1));
                        inside.store(false, Ordering::SeqCst);
                    };
                    if turn == 8 {
                        second.wait();
                    }
                    let waited = block_on(async {
                        if turn < 2 + member * 2 {
                            let guard = old.try_lock_for(SOON).await?.expect("a turn");
                            work();
                            guard.release().await
                        } else if turn < 10 + member * 2 {
                            let guards = both.try_lock_for(SOON).await?.expect("a turn");
                            work();
                            guards.release().await
                        } else {
                            third.fetch_add(1, Ordering::SeqCst);
                            let guard = new.try_lock_for(SOON).await?.expect("a turn");
                            work();
                            guard.release().await
                        }
                    });
                    waited.expect("an answer");
                }
            });
        }
    });
    assert!(third.into_inner() > 20, "all came to the third version");
}
