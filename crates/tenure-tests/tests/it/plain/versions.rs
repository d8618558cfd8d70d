//! Two versions at once, as during an upgrade: one runs today's scripts under its own SHA, the other is this
//! library. There is only one version yet, so both run the same text. After a release, the old text of a
//! changed script is kept beside this file, and [`Version`] runs it.

use std::sync::Mutex;
use std::thread::scope;

use tenure::Guard;

use super::*;

const KINDS: [&str; 5] = ["mutex", "reentrant", "fair", "writer", "permit"];
const SEMAPHORE: Lock = Lock { machine: Machine::Queue, kind: "semaphore", permits: "1" };

/// A client of another version, which sends its own scripts.
struct Version {
    plain: Plain,
    lock: Lock,
    script: String,
}

impl Version {
    /// `mark` makes it a different script with the same effect.
    fn new(server: &Server, digit: char, kind: &'static str, mark: &str) -> Self {
        let lock = match kind {
            "mutex" => MUTEXES,
            "reentrant" => REENTRANTS,
            "fair" => FAIR,
            "writer" => READ_WRITE,
            _ => SEMAPHORE,
        };
        let script = format!("{}{mark}", lock.machine.script());
        Self { plain: Plain::new(server, digit), lock, script }
    }

    /// With those of these arguments that the request has.
    fn ask(&mut self, verb: &str) -> Said {
        let weight = match (self.lock.kind, verb) {
            (_, "renew") => "",
            ("read-write lock", _) => page::weight_to_write(),
            _ => "1",
        };
        let all = [
            ("hold", "1a"),
            ("ttl", "30000"),
            ("ballot", ""),
            ("bind", ""),
            ("weight", weight),
            ("wait", ""),
            ("whose", "mine"),
        ];
        let names = page::arguments(self.lock.machine, verb);
        let given: Vec<_> = all.into_iter().filter(|(name, _)| names.contains(name)).collect();
        self.plain.ask_by(&self.script, self.lock, verb, &given)
    }

    /// Its token, if it is free.
    fn try_acquire(&mut self) -> Option<u64> {
        let said = self.ask("acquire");
        (said.word == "held").then(|| said.part("token").parse().expect("a token"))
    }

    fn holds(&mut self) -> bool {
        self.ask("renew").word == "held"
    }

    fn release(&mut self) -> bool {
        self.ask("release").word == "released"
    }
}

fn acquire(locks: &Locks, kind: &str, wait: Duration) -> Option<Guard> {
    let asked = async {
        match kind {
            "mutex" => locks.mutex("x")?.try_lock_for(wait).await,
            // With its own owner each time, like all others.
            "reentrant" => locks.reentrant_mutex("x", &Owner::new("me")?)?.try_lock_for(wait).await,
            "fair" => locks.fair_mutex("x")?.try_lock_for(wait).await,
            "writer" => Ok(locks.rwlock("x")?.try_write_for(wait).await?.map(Guard::from)),
            _ => locks.semaphore("x", 1)?.try_acquire_for(wait).await,
        }
    };
    block_on(asked).unwrap_or_else(|error| panic!("{kind}: {error:?}"))
}

const SOON: Duration = Duration::from_secs(20);

/// All kinds concurrently, each on its own server.
fn with_each(it: impl Fn(&'static str) + Sync) {
    scope(|scope| {
        for kind in KINDS {
            let it = &it;
            scope.spawn(move || it(kind));
        }
    });
}

#[test]
fn two_versions_take_turns_at_each_machine_and_tokens_grow_over_all() {
    const TURNS: u32 = 40;
    with_each(|kind| {
        let server = Server::start();
        let ours = locks(&server);
        // The holder, and the last token.
        let book = Mutex::new((None, 0));
        let enters = |who: &'static str, token: u64| {
            let mut book = book.lock().expect("no panic");
            assert_eq!(book.0.replace(who), None, "{kind}: {who} is not alone");
            assert!(token > book.1, "{kind}: {who}: {token} after {}", book.1);
            book.1 = token;
        };
        let leaves = || book.lock().expect("no panic").0 = None;
        scope(|scope| {
            for (who, digit, mark) in [("the one", 'a', ""), ("the other", 'b', "-- another text\n")] {
                let (server, enters, leaves) = (&server, &enters, &leaves);
                scope.spawn(move || {
                    let mut version = Version::new(server, digit, kind, mark);
                    for _ in 0..TURNS {
                        let mut token = None;
                        eventually(|| {
                            token = version.try_acquire();
                            token.is_some()
                        });
                        enters(who, token.expect("waited for"));
                        std::thread::sleep(ms(1));
                        assert!(version.holds());
                        leaves();
                        assert!(version.release());
                        std::thread::sleep(ms(5)); // it does not queue: let others have their turn
                    }
                });
            }
            for _ in 0..TURNS {
                let guard = acquire(&ours, kind, SOON).expect("a turn");
                enters("this one", guard.fence());
                std::thread::sleep(ms(1));
                leaves();
                block_on(guard.release()).expect("a release");
                std::thread::sleep(ms(5));
            }
        });
    });
}

#[test]
fn holds_and_waits_outlive_a_flush_of_the_scripts_and_their_replacement() {
    with_each(|kind| {
        let server = Server::start();
        let (ours, theirs) = (locks(&server), locks(&server));
        let short = ours.with(|options| options.ttl(ms(2_000))).expect("options");
        let guard = acquire(&short, kind, Duration::ZERO).expect("a free lock");
        let mut other = Version::new(&server, 'a', kind, "-- another text\n");
        scope(|scope| {
            let guard = guard;
            let waiter = scope.spawn(|| acquire(&theirs, kind, SOON).expect("a turn"));
            // Long enough for several renewals of the one and, in a queue, refreshes of the other.
            let until = Instant::now() + ms(2_500);
            while Instant::now() < until {
                server.command(&["SCRIPT", "FLUSH"]);
                assert_eq!(other.try_acquire(), None);
                std::thread::sleep(ms(50));
            }
            let token = guard.fence();
            block_on(guard.release()).expect("it was held all the time");
            let next = waiter.join().expect("no panic");
            assert!(next.fence() > token, "{kind}: {} after {token}", next.fence());
        });
        // The same hold through two different texts.
        let mut one = Version::new(&server, 'b', kind, "");
        let mut token = None;
        eventually(|| {
            token = one.try_acquire();
            token.is_some()
        });
        one.script.push_str("-- upgraded\n");
        assert!(one.holds() && acquire(&ours, kind, Duration::ZERO).is_none());
        assert!(one.release() && !one.holds());
    });
}

/// Data in the format of a version that does not exist yet.
#[test]
fn what_a_later_version_keeps_otherwise_is_held_by_somebody_else_and_left_as_it_is() {
    let server = Server::start();
    let locks = locks(&server);
    let owner = format!("later@elsewhere:7/{}", "c".repeat(32));
    let (dated, marked) = (format!("{owner}#7#another"), format!("!{owner}"));
    for (put, shown) in [
        (vec!["SET", "x", &dated], &*dated),
        (vec!["HSET", "x", "#version", "2", &owner, "1"], "(hash)"),
        (
            vec!["ZADD", "x", "-7", "#2:fair mutex:1", "2000000000000", &marked, "200000000000000", &owner],
            "(zset)",
        ),
    ] {
        server.command(&["DEL", "x"]);
        server.command(&put);
        server.command(&["PEXPIRE", "x", "60000"]);
        let before = server.command(&["DUMP", "x"]);
        for kind in KINDS {
            assert!(acquire(&locks, kind, Duration::ZERO).is_none(), "{put:?}: {kind}");
            assert!(acquire(&locks, kind, ms(100)).is_none(), "{put:?}: {kind}");
            let mut version = Version::new(&server, 'd', kind, "");
            assert!(!version.holds() && !version.release(), "{put:?}: {kind}");
        }
        let status = block_on(locks.inspect("x")).expect("an answer").expect("a holder");
        assert_eq!((&*status.holders[0].value, &status.holders[0].owner), (shown.as_bytes(), &None));
        assert_eq!(server.command(&["DUMP", "x"]), before);
        assert!((50_000..=60_000).contains(&server.command(&["PTTL", "x"]).int()));
    }
}
