//! The rights listed in `book/operate/rights.md` are sufficient, and each of them is needed.
#![expect(clippy::disallowed_methods, reason = "tests against real servers measure real time")]

use std::collections::BTreeMap;
use std::thread::scope;
use std::time::Duration;

use tenure::internals::protocol::{Answer, LockSpec, Op, Verb};
use tenure::internals::store::{Purpose, StoreExt, Topic};
use tenure::{Error, Guard, LockName, Locks, Options, Owner, Result, block_on};
use tenure_testkit::asker::Asker;
use tenure_testkit::conformance::{Case, Fixture, Flavour, exclusion, guard, lease};
use tenure_testkit::servers::{Config, Sentinels, Server, eventually};

use crate::no_scripts::knows;

const SOON: Duration = Duration::from_secs(10);
/// A user without any rights.
const NOTHING: &str = "on >pw resetkeys resetchannels -@all";

/// The lines of the page, keyed by their first word.
fn page() -> BTreeMap<&'static str, Vec<&'static str>> {
    let page = include_str!("../../../../book/operate/rights.md");
    let (_, rest) = page.split_once("```acl\n").expect("a list of rights");
    let (lines, _) = rest.split_once("```").expect("its end");
    let line = |line: &'static str| {
        let (what, rights) = line.split_once(' ').expect("rights");
        (what, rights.split_whitespace().collect())
    };
    lines.lines().map(line).collect()
}

pub(crate) fn rights(lines: &[&str]) -> Vec<&'static str> {
    let page = page();
    let mut rights: Vec<_> = lines.iter().flat_map(|line| page[line].clone()).collect();
    rights.sort_unstable();
    rights.dedup();
    rights
}

/// Gives the user `app` these rights only, and clears the log of denials.
pub(crate) fn allow(server: &Server, rights: &[&str]) {
    let set = ["ACL", "SETUSER", "app", "reset"].into_iter().chain(NOTHING.split(' '));
    // A client that may query the server's commands uses the ones it finds.
    let deletes = [("DELIFEQ", "+delifeq"), ("DELEX", "+delex")];
    let asks = rights.contains(&"+command|info");
    let deletes = deletes.into_iter().filter(|(command, _)| asks && knows(server, command));
    let set: Vec<_> = set.chain(rights.iter().copied()).chain(deletes.map(|(_, right)| right)).collect();
    assert_eq!(server.command(&set), "OK", "{rights:?}");
    // Connections opened under the previous rights must not remain.
    server.command(&["CLIENT", "KILL", "USER", "app"]);
    assert_eq!(server.command(&["ACL", "LOG", "RESET"]), "OK");
}

pub(crate) fn denied(server: &Server) -> Vec<String> {
    let log = server.command(&["ACL", "LOG"]);
    let entries = log.items().iter().map(|entry| {
        let pairs = entry.items().chunks_exact(2);
        let fields: BTreeMap<_, _> = pairs.map(|pair| (pair[0].text(), &pair[1])).collect();
        format!("{} {}", fields["reason"].text(), fields["object"].text())
    });
    entries.collect()
}

fn url(server: &Server) -> String {
    server.url().replace("redis://", "redis://app:pw@")
}

fn locks(url: &str) -> Result<Locks> {
    let options = Options::new().prefix("app:").op_timeout(Duration::from_secs(5));
    block_on(Locks::connect(url))?.with(|_| options)
}

/// One client holds, another waits and then holds, and both release.
fn hand_over(hold: impl Fn() -> Result<Guard>, wait: impl Fn() -> Result<Guard> + Send) -> Result<()> {
    let first = hold()?;
    block_on(first.verify())?;
    std::thread::sleep(Duration::from_millis(5)); // long enough for a renewal to have an effect
    block_on(first.renew())?;
    scope(|threads| {
        let waits = threads.spawn(wait);
        std::thread::sleep(Duration::from_millis(60));
        let released = block_on(first.release());
        let second = waits.join().expect("no panic");
        released?;
        block_on(second?.release())
    })
}

/// Everything that can be done with one kind of lock.
fn use_kind(kind: &str, url: &str) -> Result<()> {
    use_kind_of(kind, &locks(url)?, &locks(url)?, Duration::from_millis(30))
}

/// As `use_kind`, by two clients. `patience` is the wait of a waiter that gives up.
pub(crate) fn use_kind_of(kind: &str, ours: &Locks, theirs: &Locks, patience: Duration) -> Result<()> {
    match kind {
        "mutex" => {
            let (a, b) = (ours.mutex("{m}utex")?, theirs.mutex("{m}utex")?);
            hand_over(|| block_on(a.lock()), || block_on(b.lock()))
        }
        "reentrant" => {
            let (me, you) = (Owner::new("me")?, Owner::new("you")?);
            let (a, b) = (ours.reentrant_mutex("r", &me)?, theirs.reentrant_mutex("r", &you)?);
            // From another client, because a re-entry through the same one sends no request.
            let again = theirs.reentrant_mutex("r", &me)?;
            let both = || {
                let (one, two) = (block_on(a.lock())?, block_on(again.lock())?);
                block_on(two.release())?;
                Ok(one)
            };
            hand_over(both, || block_on(b.lock()))
        }
        _ => {
            let (a, b) = (ours.fair_mutex("f")?, theirs.fair_mutex("f")?);
            hand_over(|| block_on(a.lock()), || block_on(b.lock()))?;
            // An abandoned wait leaves the queue.
            let held = block_on(a.lock())?;
            assert!(block_on(b.try_lock_for(patience))?.is_none());
            block_on(held.release())?;
            let (a, b) = (ours.rwlock("w")?, theirs.rwlock("w")?);
            hand_over(|| block_on(a.write()).map(Guard::from), || block_on(b.read()).map(Guard::from))?;
            let reader = block_on(block_on(a.write())?.downgrade())?;
            block_on(reader.release())?;
            let (a, b) = (ours.semaphore("s", 3)?, theirs.semaphore("s", 3)?);
            hand_over(|| block_on(a.acquire_many(3)), || block_on(b.acquire()))
        }
    }
}

pub(crate) const KINDS: [&str; 3] = ["mutex", "reentrant", "queue"];

#[test]
fn locks_of_each_kind_need_no_other_right() {
    for kind in KINDS {
        let server = Server::start();
        allow(&server, &rights(&["always", "fast", kind, "wake", "old", "quorum"]));
        use_kind(kind, &url(&server)).unwrap_or_else(|error| panic!("{kind}: {error:?}"));
        assert_eq!(denied(&server), [""; 0], "{kind}");
        // Keys outside the prefix are not accessible.
        for name in ["other", "tenure:ballot:{other}"] {
            let mut client = server.client().expect("a connection");
            client.command(&["AUTH", "app", "pw"]).expect("a reply");
            let reply = client.command(&["EVAL", "return 1", "1", name]).expect("a reply");
            assert_eq!(reply.error_code(), Some("NOPERM"), "{name}");
        }
    }
}

/// Removes each right in turn; the operations must then be refused, and the server must log the denial.
fn each_is_needed(
    server: &Server,
    what: &str,
    needed: &[&str],
    each: &[&str],
    done: impl Fn() -> Result<()>,
) {
    for missing in each {
        let rest: Vec<_> = needed.iter().filter(|right| *right != missing).copied().collect();
        allow(server, &rest);
        let error = match done() {
            Ok(()) => panic!("{what} works without {missing}; denied: {:?}", denied(server)),
            Err(error) => error,
        };
        assert!(is_telling(&error), "{what}, {missing}: {error:?}");
        assert!(was_denied(server, missing), "{what} without {missing}: {:?}", denied(server));
        server.command(&["FLUSHALL"]);
        server.command(&["SCRIPT", "FLUSH"]);
    }
}

/// Whether an error reports missing rights. A lock that is taken but cannot be renewed is lost, which also
/// shows refusals in the background.
fn is_telling(error: &Error) -> bool {
    error.is_refused() || error.is_unsupported() || error.is_unknown() || error.is_lost()
}

fn was_denied(server: &Server, right: &str) -> bool {
    let kind = match right.as_bytes()[0] {
        b'+' => format!("command {}", &right[1..]),
        b'~' => "key ".to_owned(),
        _ => "channel ".to_owned(),
    };
    denied(server).iter().any(|denied| match right.starts_with('+') {
        true => *denied == kind,
        false => denied.starts_with(&kind),
    })
}

#[test]
fn with_one_right_less_something_is_refused() {
    scope(|threads| {
        for kind in KINDS {
            threads.spawn(move || {
                let server = Server::start();
                let (url, needed) = (url(&server), rights(&["always", kind]));
                each_is_needed(&server, kind, &needed, &needed, || use_kind(kind, &url));
            });
        }
    });
}

/// Requests names that hold other kinds of locks or other programs' locks.
fn meet_others(server: &Server, url: &str) -> Result<()> {
    let locks = locks(url)?;
    let me = Owner::new("me")?;
    server.command(&["SET", "app:text", "somebody", "PX", "60000"]);
    server.command(&["HSET", "app:hash", "550e8400:1", "1"]);
    for name in ["text", "hash"] {
        assert!(block_on(locks.mutex(name)?.try_lock())?.is_none());
        assert!(block_on(locks.reentrant_mutex(name, &me)?.try_lock())?.is_none());
        assert!(block_on(locks.fair_mutex(name)?.try_lock())?.is_none());
        assert!(block_on(locks.inspect(name))?.is_some());
    }
    let mine = block_on(locks.fair_mutex("mine")?.lock())?;
    match block_on(locks.mutex("mine")?.try_lock()) {
        Err(error) if error.is_mismatch() => {}
        other => return other.map(|_| ()),
    }
    assert!(block_on(locks.force_release("mine"))?.is_some());
    drop(mine);
    // With another number of permits, after all leases have expired but before the key does.
    let short = locks.with(|options| options.prefix("app:").ttl(Duration::from_millis(50)))?;
    let long = block_on(locks.semaphore("permits", 2)?.acquire())?;
    drop(block_on(block_on(short.semaphore("permits", 2)?.acquire())?.detach())?);
    block_on(long.release())?;
    std::thread::sleep(Duration::from_millis(100));
    block_on(block_on(locks.semaphore("permits", 3)?.acquire())?.release())
}

/// Lists locks of this library and of other programs.
fn list(server: &Server, url: &str) -> Result<()> {
    let locks = locks(url)?;
    server.command(&["SET", "app:text", "somebody", "PX", "60000"]);
    server.command(&["HSET", "app:hash", "550e8400:1", "1"]);
    let _guard = block_on(locks.reentrant_mutex("ours", &Owner::new("me")?)?.lock())?;
    let _fair = block_on(locks.fair_mutex("fair")?.lock())?;
    let mut listing = locks.list("")?;
    let mut found = 0;
    while block_on(listing.next())?.is_some() {
        found += 1;
    }
    assert_eq!(found, 4);
    Ok(())
}

#[test]
fn to_meet_others_and_to_list_take_rights_of_their_own() {
    let server = Server::start();
    let url = url(&server);
    let common = ["always", "mutex", "reentrant", "queue"];
    type Done = fn(&Server, &str) -> Result<()>;
    for (line, done) in [("others", meet_others as Done), ("list", list)] {
        let needed = rights(&[&common[..], &[line]].concat());
        allow(&server, &needed);
        done(&server, &url).unwrap_or_else(|error| panic!("{line}: {error:?}"));
        let own: Vec<_> =
            page()[line].iter().filter(|right| !rights(&common).contains(right)).copied().collect();
        each_is_needed(&server, line, &needed, &own, || done(&server, &url));
    }
}

#[test]
fn to_count_who_waits_takes_a_right_of_its_own() {
    let server = Server::start();
    let common = ["always", "mutex", "reentrant", "queue", "others", "list"];
    allow(&server, &rights(&common));
    let holder = locks(&url(&server)).expect("a store");
    let _held = block_on(holder.mutex("x").expect("a name").lock()).expect("free");
    // Each time by a new client: a change of rights may end connections.
    let told = || {
        let locks = locks(&url(&server)).expect("a store");
        let mut listing = locks.list("").expect("a prefix");
        let listed = block_on(listing.next()).expect("an answer").expect("a holder");
        let inspected = block_on(locks.inspect("x")).expect("an answer").expect("a holder");
        [listed.waiting, inspected.waiting]
    };
    assert_eq!(told(), [None, None]);
    assert!(was_denied(&server, page()["waits"][0]), "{:?}", denied(&server));
    allow(&server, &rights(&[&common[..], &["waits"]].concat()));
    assert_eq!(told(), [Some(0), Some(0)]);
}

#[test]
fn without_the_rights_to_publish_and_to_kill_connections_locks_work() {
    let server = Server::start();
    let url = url(&server);
    let all = rights(&["always", "fast", "mutex", "reentrant", "wake", "old", "quorum"]);
    for line in ["wake", "old", "quorum", "fast"] {
        for missing in rights(&[line]) {
            let rest: Vec<_> = all.iter().filter(|right| **right != missing).copied().collect();
            allow(&server, &rest);
            let locks = locks(&url).expect("a store");
            let owner = Owner::new("me").expect("an owner");
            // A connection's first grant uses a script, later ones plain commands.
            let first = block_on(locks.mutex("m").expect("a name").lock()).expect("a lock");
            block_on(first.release()).expect("released");
            let held = block_on(locks.mutex("m").expect("a name").lock()).expect("a lock");
            let hash = block_on(locks.reentrant_mutex("r", &owner).expect("a name").lock()).expect("a lock");
            let other = Owner::new("other").expect("an owner");
            // Renewals leave together.
            let both = [held.owner(), &other].map(|owner| {
                let (name, owner) = (LockName::new("app:m").expect("a name"), owner.clone());
                let verb = Verb::Renew { ttl_ms: 60_000, hold: 1, bind: None, weight: None };
                Op { name, spec: LockSpec::Mutex, owner, request: 1, verb }
            });
            let renewed = block_on(Asker::new(&url).store.renew(both.into(), SOON));
            assert!(matches!(renewed[..], [Ok(Answer::Held { .. }), Ok(Answer::Busy { .. })]), "{renewed:?}");
            // The connection is lost while a client waits.
            let short = Duration::from_millis(60);
            let wait = async {
                locks.mutex("m")?.try_lock_for(short).await?;
                locks.reentrant_mutex("r", &other)?.try_lock_for(short).await
            };
            assert!(block_on(wait).expect("busy").is_none());
            server.command(&["CLIENT", "KILL", "USER", "app"]);
            eventually("the lock is renewed", SOON, || block_on(held.renew()).is_ok());
            block_on(held.release()).expect("released");
            eventually("the lock is renewed", SOON, || block_on(hash.renew()).is_ok());
            block_on(hash.release()).expect("released");
            let asker = Asker::new(&url);
            let listen = |name| {
                let name = LockName::new(name).expect("a name");
                block_on(asker.store.subscribe(Topic::new(&name, LockSpec::Mutex, Purpose::Watch), SOON)).ok()
            };
            // A channel is unsubscribed 5 s after its last listener left, if the client still listens to
            // another.
            let (_kept, left) = (listen("app:kept"), listen("app:left"));
            drop(left);
            eventually(&format!("{missing} was denied"), SOON, || was_denied(&server, missing));
            let others: Vec<_> =
                denied(&server).into_iter().filter(|_| !was_denied(&server, missing)).collect();
            assert_eq!(others, [""; 0], "{missing}");
        }
    }
}

#[test]
fn mutexes_without_scripts_take_rights_of_their_own() {
    let server = Server::start();
    let url = url(&server);
    let done = || {
        let options = || Options::new().prefix("app:").unfenced(true).op_timeout(Duration::from_secs(5));
        let (ours, theirs) = (locks(&url)?.with(|_| options())?, locks(&url)?.with(|_| options())?);
        let (a, b) = (ours.mutex("m")?, theirs.mutex("m")?);
        hand_over(|| block_on(a.lock()), || block_on(b.lock()))
    };
    let all = rights(&["always", "unscripted", "wake"]);
    let needed: Vec<_> = all.into_iter().filter(|right| !right.starts_with("+eval")).collect();
    allow(&server, &needed);
    done().unwrap_or_else(|error| panic!("{error:?}"));
    // Valkey since 8.1 has a conditional SET and so renews without PEXPIRE.
    let sets = server.info("server").contains_key("valkey_version");
    let each: Vec<_> =
        page()["unscripted"].iter().copied().filter(|right| !(sets && *right == "+pexpire")).collect();
    each_is_needed(&server, "unscripted", &needed, &each, done);
}

#[test]
fn another_database_takes_the_right_to_choose_it() {
    let server = Server::start();
    let url = format!("{}/1", url(&server));
    let needed = rights(&["always", "mutex", "database"]);
    allow(&server, &needed);
    use_kind("mutex", &url).expect("the right to it");
    each_is_needed(&server, "database", &needed, &["+select"], || use_kind("mutex", &url));
}

#[test]
fn sentinels_and_the_master_ask_for_one_right_each() {
    let named = "user on >pw -@all +sentinel|get-master-addr-by-name";
    let sentinels = Sentinels::start_with(&Config::new(), &Config::new().user(named), "");
    let url = sentinels.url().replace("://", "://app:pw@") + "?sentinel-user=user&sentinel-password=pw";
    let master = sentinels.master();
    let needed = rights(&["always", "mutex", "sentinel"]);
    allow(master, &needed);
    use_kind("mutex", &url).expect("the right to it");
    each_is_needed(master, "sentinel", &needed, &["+role"], || use_kind("mutex", &url));
    allow(master, &needed);
    for sentinel in sentinels.sentinels() {
        sentinel.command(&["ACL", "SETUSER", "user", "-sentinel|get-master-addr-by-name"]);
    }
    let error = use_kind("mutex", &url).expect_err("a right is missing");
    let why = std::error::Error::source(&error).expect("a cause").to_string();
    assert!(error.is_refused() && why.contains("NOPERM"), "{error}: {why}");
}

/// The conformance cases about waiting, renewing and losing, with exactly the rights of a kind and of `wake`.
/// They use names without a prefix, so the rules are those for an empty prefix.
fn conforms(kind: &str, flavour: Flavour) {
    let cases: [for<'a> fn(&'a Fixture) -> Case<'a>; 9] = [
        |fixture| {
            Box::pin(exclusion::a_free_lock_is_granted_and_a_held_one_is_busy_to_everybody_else(fixture))
        },
        |fixture| Box::pin(exclusion::a_waiter_of_another_client_is_woken_by_the_release(fixture)),
        |fixture| Box::pin(exclusion::a_wait_that_is_dropped_leaves_the_queue(fixture)),
        |fixture| Box::pin(exclusion::an_acquisition_that_is_dropped_anywhere_leaves_nothing(fixture)),
        |fixture| Box::pin(lease::a_lease_that_is_renewed_by_hand_lives_on(fixture)),
        |fixture| Box::pin(lease::an_expired_holders_release_never_frees_the_next(fixture)),
        |fixture| Box::pin(guard::tokens_grow_from_grant_to_grant(fixture)),
        |fixture| Box::pin(guard::a_detached_hold_is_resumed_with_its_token(fixture)),
        |fixture| Box::pin(guard::a_released_lock_is_free_and_its_signal_says_released(fixture)),
    ];
    let rights = rights(&["always", "fast", "mutex", kind, "others", "wake", "old", "quorum"]);
    let rights =
        rights.iter().filter(|right| !right.starts_with("~tenure:")).map(|right| right.replace("app:", ""));
    let rights: Vec<_> = rights.collect(); // a pattern for all keys must be the only one
    let rights: Vec<_> = rights.iter().map(String::as_str).collect();
    let server = Server::start();
    allow(&server, &rights);
    for case in cases {
        server.command(&["FLUSHALL"]);
        let url = url(&server);
        let open = move || Locks::open(&url).expect("a store");
        block_on(case(&Fixture::in_real_time(open).with(flavour)));
    }
    assert_eq!(denied(&server), [""; 0], "{kind}");
}

#[test]
fn mutexes_conform_under_exactly_these_rights() {
    conforms("mutex", Flavour::Mutex);
}

#[test]
fn reentrant_mutexes_conform_under_exactly_these_rights() {
    conforms("reentrant", Flavour::Reentrant);
}

#[test]
fn fair_mutexes_conform_under_exactly_these_rights() {
    conforms("queue", Flavour::Fair);
}

#[test]
fn writers_conform_under_exactly_these_rights() {
    conforms("queue", Flavour::Write);
}

#[test]
fn permits_conform_under_exactly_these_rights() {
    conforms("queue", Flavour::LastPermit);
}
