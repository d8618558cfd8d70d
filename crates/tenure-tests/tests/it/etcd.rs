//! Locks on etcd: members that are killed or stopped, clients that are cut off, wrong URLs, rights.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};
use tenure::internals::store::{self, Cursor, Opening};
use tenure::internals::{Driver, Store};
use tenure::{Guard, Locks, Options, block_on};
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::servers::{Authority, Ensemble, Etcd, eventually};

use crate::candidates::outlast_leaders;
use crate::common::{locks, said, with};
use crate::crowd::Crowd;

pub(crate) const TTL: Duration = Duration::from_secs(3);

pub(crate) fn client(url: &str) -> Locks {
    locks(url, TTL)
}

/// Tries once, or until the limit.
pub(crate) fn take(
    locks: &Locks,
    name: &str,
    is_fair: bool,
    limit: Option<Duration>,
) -> tenure::Result<Option<Guard>> {
    match (is_fair, limit) {
        (true, None) => block_on(locks.fair_mutex(name)?.try_lock()),
        (true, Some(limit)) => block_on(locks.fair_mutex(name)?.try_lock_for(limit)),
        (false, None) => block_on(locks.mutex(name)?.try_lock()),
        (false, Some(limit)) => block_on(locks.mutex(name)?.try_lock_for(limit)),
    }
}

/// With the options that clients have by default.
#[test]
fn a_first_server_that_answers_no_dial_is_passed_over() {
    let server = Etcd::start();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = listener.local_addr().expect("an address");
    let fits = |_| TcpStream::connect_timeout(&silent, Duration::from_millis(300)).ok();
    let _full: Vec<_> = (0..10_000).map_while(fits).collect();
    let locks = Locks::open(&format!("etcd://{silent},{}", server.address())).expect("a store");
    let guard = block_on(async { locks.mutex("x")?.lock().await }).expect("a free lock");
    block_on(guard.release()).expect("a release");
}

/// More than a request looks at.
#[test]
fn of_many_holders_one_that_died_unseen_frees_its_permit() {
    const PERMITS: u32 = 36;
    let server = Etcd::start();
    let proxy = Proxy::start(server.address());
    let hold = |locks: &Locks| {
        block_on(async { locks.semaphore("x", PERMITS)?.try_acquire().await }).expect("an answer")
    };
    let crowd: Vec<Locks> = (1..PERMITS).map(|_| client(&server.url())).collect();
    let _held: Vec<Guard> = crowd.iter().map(|locks| hold(locks).expect("a permit")).collect();
    let dying = client(&format!("etcd://{}", proxy.address()));
    let _dying = hold(&dying).expect("the last permit");
    let newcomer = client(&server.url());
    assert!(hold(&newcomer).is_none());
    proxy.set(Fault::BlackHole);
    eventually("its permit is free", Duration::from_secs(60), || hold(&newcomer).is_some());
}

fn crowd(url: &str, members: usize, is_fair: bool) -> Crowd {
    Crowd::start((0..members).map(|_| client(url)), is_fair)
}

/// Number of leaders to kill; `TENURE_LEADERS` raises it for a soak.
pub(crate) fn kills() -> u64 {
    tenure_testkit::setting("TENURE_LEADERS").unwrap_or(1)
}

/// Two crowds continue while leaders are killed and restarted.
pub(crate) fn killed_leaders_cost_nothing(servers: &impl Ensemble) -> [Crowd; 2] {
    let crowds = [false, true].map(|is_fair| crowd(&servers.url(), 3, is_fair));
    for _ in 0..kills() {
        let leader = servers.leader();
        servers.kill(leader);
        crowds.iter().for_each(Crowd::goes_on);
        servers.restart(leader);
        crowds.iter().for_each(Crowd::goes_on);
    }
    crowds
}

#[test]
fn a_killed_leader_costs_no_exclusion_no_token_and_no_waiter() {
    let etcd = Etcd::cluster();
    killed_leaders_cost_nothing(&etcd).into_iter().for_each(Crowd::end);
}

/// Their transactions leave together, and some are lost with the leader.
#[test]
fn locks_of_many_tasks_go_on_when_the_leader_is_killed() {
    const TASKS: usize = 48;
    let etcd = Etcd::cluster();
    let locks = client(&etcd.url());
    let (counts, is_over) = ([const { AtomicU64::new(0) }; TASKS], AtomicBool::new(false));
    thread::scope(|scope| {
        for (at, count) in counts.iter().enumerate() {
            let (name, locks, is_over) = (format!("x{at}"), &locks, &is_over);
            scope.spawn(move || {
                let mut last = 0;
                while !is_over.load(Ordering::Relaxed) {
                    // One of unknown outcome may take a lease to end.
                    let Ok(Some(guard)) = take(locks, &name, false, Some(TTL)) else { continue };
                    assert!(guard.fence() > last, "{name}: {} after {last}", guard.fence());
                    last = guard.fence();
                    let _ = block_on(guard.release());
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let go_on = |what| {
            let before = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
            eventually(what, Duration::from_secs(60), || {
                counts.iter().zip(before).all(|(count, before)| count.load(Ordering::Relaxed) > before + 3)
            });
        };
        let _ends = Ends(&is_over);
        go_on("the first pairs");
        for _ in 0..kills() {
            let leader = etcd.leader();
            etcd.kill(leader);
            go_on("pairs without it");
            etcd.restart(leader);
            go_on("pairs with it");
        }
    });
}

/// Ends the threads of a test, also when it fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn candidates_and_jobs_outlast_the_leaders_of_etcd() {
    outlast_leaders(&Etcd::cluster());
}

#[test]
fn a_leader_that_stands_still_costs_no_exclusion_no_token_and_no_waiter() {
    let etcd = Etcd::cluster();
    let crowd = crowd(&etcd.url(), 4, false);
    let leader = etcd.leader();
    etcd.stop(leader);
    crowd.goes_on();
    etcd.cont(leader);
    crowd.goes_on();
    crowd.end();
}

#[test]
fn a_member_without_a_majority_grants_nothing() {
    let etcd = Etcd::cluster();
    // The leader takes longest to notice that it was deposed.
    let alone = etcd.leader();
    let ours = client(&etcd.url_of(alone));
    let guard = block_on(ours.mutex("x").expect("a name").lock()).expect("a free lock");
    let others: Vec<usize> = (0..3).filter(|at| *at != alone).collect();
    block_on(ours.ping()).expect("it has a majority");
    others.iter().for_each(|at| etcd.stop(*at));
    eventually("a check of the server names the reason", Duration::from_secs(30), || {
        block_on(ours.ping()).is_err_and(|error| said(&error).contains("etcd has no leader"))
    });
    let got = block_on(ours.mutex("y").expect("a name").try_lock_for(TTL * 2));
    assert!(!matches!(got, Ok(Some(_))), "one of three has granted a lock");
    eventually("its client knows that it may have lost", TTL * 2, || !guard.is_held());
    others.iter().for_each(|at| etcd.cont(*at));
    etcd.ready();
    let theirs = client(&etcd.url());
    for name in ["x", "y"] {
        let limit = Duration::from_secs(60);
        let got = block_on(theirs.mutex(name).expect("a name").try_lock_for(limit)).expect("an answer");
        assert!(got.expect("no client holds it").fence() > guard.fence());
    }
}

/// The member would keep a watch open that reports nothing.
#[test]
fn a_waiter_leaves_a_member_that_is_cut_from_the_others() {
    let etcd = Etcd::partitioned();
    let alone = (etcd.leader() + 1) % 3;
    let other = etcd.url_of(etcd.leader());
    let (_, place) = other.split_once("://").expect("a URL");
    let (holder, waits) = (client(&other), client(&format!("{},{place}", etcd.url_of(alone))));
    let guard = block_on(holder.mutex("x").expect("a name").lock()).expect("a free lock");
    let limit = Duration::from_secs(60);
    let waiter = {
        let mutex = waits.mutex("x").expect("a name");
        thread::spawn(move || block_on(mutex.try_lock_for(limit)))
    };
    let watches = || metric(&etcd, alone, "etcd_debugging_mvcc_watcher_total") > 0;
    eventually("it watches the lock", limit, watches);
    etcd.isolate(alone);
    block_on(guard.release()).expect("a release");
    let since = Instant::now();
    let next = waiter.join().expect("no panic").expect("an answer").expect("its turn");
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    block_on(next.release()).expect("a release");
}

/// etcd closes connections that send more than one keep-alive ping in 5 s.
#[test]
fn a_connection_without_requests_stays_open() {
    let etcd = Etcd::start();
    let proxy = Proxy::start(etcd.address());
    let options = || Options::new().ttl(Duration::from_secs(60));
    let client = || with(&format!("etcd://{}", proxy.address()), options());
    let (holder, waits, idle) = (with(&etcd.url(), options()), client(), client());
    let guard = block_on(holder.mutex("x").expect("a name").lock()).expect("a free lock");
    block_on(idle.ping()).expect("an answer");
    let waiter = {
        let mutex = waits.mutex("x").expect("a name");
        thread::spawn(move || block_on(mutex.lock()))
    };
    // With a ping every 2 s, etcd would close them after 8 s.
    thread::sleep(Duration::from_secs(11));
    let open: Vec<bool> = proxy.traffic().iter().map(|traffic| traffic.open).collect();
    assert_eq!(open, [true; 2]);
    block_on(guard.release()).expect("a release");
    let next = waiter.join().expect("no panic").expect("its turn");
    block_on(next.release()).expect("a release");
}

/// Requests without a connection wait for the one that dials.
#[test]
fn requests_that_begin_together_open_one_connection() {
    const TASKS: usize = 50;
    let etcd = Etcd::start();
    let proxy = Proxy::start(etcd.address());
    let locks = with(&format!("etcd://{}", proxy.address()), Options::new());
    let look = |task: usize| {
        let (locks, name) = (&locks, format!("x{task}"));
        async move { locks.inspect(name.as_str()).await.expect("an answer") }
    };
    block_on(join_all((0..TASKS).map(look)));
    assert_eq!(proxy.connections(), 1);
    proxy.reset();
    block_on(join_all((0..TASKS).map(look)));
    // One that the lost connection opened by itself, and the one that replaced it.
    assert!(proxy.connections() <= 3, "{} connections", proxy.connections());
}

/// What becomes of requests to the server before says nothing about the next one.
#[test]
fn a_request_that_fails_late_leaves_the_next_connection() {
    let etcd = Etcd::start();
    let (silent, next) = (Proxy::start(etcd.address()), Proxy::start(etcd.address()));
    let url = format!("etcd://{},{}", silent.address(), next.address());
    let runtime = Driver::start().expect("a thread");
    let store = store::etcd::open(Opening { url: &url, runtime, login: None }).expect("a store");
    let list = |within| block_on(store.list("", Cursor::default(), within));
    let (short, long) = (Duration::from_millis(600), Duration::from_secs(10));
    list(long).expect("an answer");
    silent.set(Fault::BlackHole);
    thread::scope(|scope| {
        let sent = || silent.traffic()[0].bytes_to_server;
        let (before, cut) = (sent(), scope.spawn(|| list(long)));
        eventually("it is sent", long, || sent() > before);
        let (before, unanswered) = (sent(), scope.spawn(|| list(3 * short)));
        eventually("it is sent", long, || sent() > before);
        list(short).expect_err("no answer");
        list(long).expect("an answer of the next server");
        unanswered.join().expect("no panic").expect_err("no answer");
        silent.reset();
        cut.join().expect("no panic").expect_err("a closed connection");
    });
    list(long).expect("an answer");
    assert_eq!((silent.connections(), next.connections()), (1, 1));
}

/// The sum of a member's metric over all labels.
fn metric(etcd: &Etcd, at: usize, name: &str) -> u64 {
    let metrics = etcd.get(at, "metrics").unwrap_or_default();
    let of = metrics.lines().filter(|line| line.starts_with(name));
    of.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[test]
fn a_further_ping_is_one_request() {
    let etcd = Etcd::start();
    let requests = || {
        let of =
            |method| metric(&etcd, 0, &format!("grpc_server_msg_received_total{{grpc_method=\"{method}\""));
        of("Range") + of("Status") + of("Txn")
    };
    let locks = client(&etcd.url());
    block_on(locks.ping()).expect("an answer");
    let before = requests();
    block_on(locks.ping()).expect("an answer");
    assert_eq!(requests() - before, 1);
}

/// Locks so many names at once, and frees them.
fn pairs(locks: &Locks, count: usize) {
    let all = (0..count).map(|at| locks.mutex(format!("x{at}")).expect("a name"));
    let guards = block_on(join_all(all.map(async |mutex| mutex.lock().await.expect("a free lock"))));
    let releases = guards.into_iter().map(async |guard| guard.release().await.expect("a release"));
    block_on(join_all(releases));
}

#[test]
fn tasks_with_locks_of_their_own_share_transactions() {
    const TASKS: usize = 100;
    let etcd = Etcd::start();
    let locks = client(&etcd.url());
    let txns = || metric(&etcd, 0, "grpc_server_msg_received_total{grpc_method=\"Txn\"");
    pairs(&locks, 1);
    let before = txns();
    pairs(&locks, 1);
    assert_eq!(txns() - before, 2, "a lone one leaves alone");
    let before = txns();
    pairs(&locks, TASKS);
    let count = txns() - before;
    assert!(count < TASKS as u64 / 2, "{count} transactions for {TASKS} pairs");
}

#[test]
fn transactions_that_are_refused_together_leave_alone() {
    let etcd = Etcd::with_operations(10);
    let locks = client(&etcd.url());
    pairs(&locks, 100);
    let refused = "grpc_server_handled_total{grpc_code=\"InvalidArgument\",grpc_method=\"Txn\"";
    // The number that leaves together is halved to 8.
    let count = metric(&etcd, 0, refused);
    assert!((1..10).contains(&count), "{count} were refused");
}

/// etcdctl uses etcd's own `concurrency.Election`.
#[test]
fn a_term_takes_no_more_requests_than_one_of_etcds_own_election() {
    let etcd = Etcd::start();
    let requests = || {
        let metrics = etcd.get(0, "metrics").expect("metrics");
        let of =
            |line: &&str| line.starts_with("grpc_server_handled_total{") && line.contains("etcdserverpb.KV");
        let counts =
            metrics.lines().filter(of).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        counts.sum::<u64>()
    };
    let before = requests();
    let mut theirs = Command::new("etcdctl");
    theirs
        .args(["--endpoints", &etcd.address().to_string(), "elect", "x", "payload"])
        .env("ETCDCTL_API", "3");
    let mut theirs = theirs.stdout(Stdio::piped()).spawn().expect("etcdctl");
    let mut said = BufReader::new(theirs.stdout.take().expect("a pipe"));
    (0..2).for_each(|_| assert_ne!(said.read_line(&mut String::new()).expect("a line"), 0));
    let interrupt = Command::new("kill").args(["-INT", &theirs.id().to_string()]).status();
    assert!(interrupt.expect("a signal").success() && theirs.wait().is_ok());
    // etcdctl reads its key once more, to print it.
    let theirs = requests() - before - 1;

    let options = Options::new().ttl(Duration::from_secs(60));
    let locks = Locks::open(&etcd.url()).and_then(|locks| locks.with(|_| options)).expect("a store");
    let election = locks.election("x", "payload").expect("a name");
    // The first term also creates the process's lease.
    block_on(block_on(election.campaign()).expect("a term").resign()).expect("it leads");
    let before = requests();
    let term = block_on(election.campaign()).expect("a term");
    let campaign = requests() - before;
    block_on(term.resign()).expect("it leads");
    let ours = requests() - before;
    println!("campaign: {campaign}, with the resignation {ours}; of etcd's own election {theirs}");
    assert!(campaign <= 2 && ours <= theirs, "campaign {campaign}, term {ours}, etcd's own {theirs}");
}

/// A leader is cut off from the other members while clients reach all of them. Its clients lose their holds
/// before others can get them.
pub(crate) fn a_cut_off_leader_costs_nothing(servers: &impl Ensemble) {
    let leader = servers.leader();
    let mut others = (0..3).filter(|at| *at != leader).map(|at| servers.url_of(at));
    let (first, second) = (others.next().expect("three"), others.next().expect("three"));
    let (_, second) = second.split_once("://").expect("a URL");
    let (ours, theirs) = (client(&servers.url_of(leader)), client(&format!("{first},{second}")));
    let crowd = crowd(&servers.url(), 4, false);
    crowd.goes_on();
    let guard = block_on(ours.mutex("x").expect("a name").lock()).expect("a free lock");
    thread::sleep(TTL);
    assert!(guard.is_held(), "it is renewed");
    servers.isolate(leader);
    let since = Instant::now();
    let asks = thread::scope(|scope| {
        let next = scope.spawn(|| {
            let limit = Duration::from_secs(60);
            let got = block_on(theirs.mutex("x").expect("a name").try_lock_for(limit)).expect("an answer");
            let got = got.expect("it is free when the lease is over");
            assert!(!guard.is_held(), "both hold");
            got
        });
        eventually("its holder knows of the loss", TTL, || !guard.is_held());
        let got = block_on(ours.mutex("y").expect("a name").try_lock());
        assert!(!matches!(got, Ok(Some(_))), "one of three has granted a lock");
        next.join().expect("no panic")
    });
    assert!(asks.fence() > guard.fence(), "{} after {}", asks.fence(), guard.fence());
    println!("the next held {:?} after the cut", since.elapsed());
    // Its clients continue on the other members.
    crowd.goes_on();
    servers.heal();
    crowd.goes_on();
    crowd.end();
    eventually("it grants locks again", Duration::from_secs(60), || {
        block_on(ours.mutex("y").expect("a name").try_lock()).is_ok_and(|got| got.is_some())
    });
}

#[test]
fn a_leader_that_is_cut_from_the_others_costs_no_exclusion_no_token_and_no_waiter() {
    a_cut_off_leader_costs_nothing(&Etcd::partitioned());
}

/// The revisions that a watch missed are compacted while its client is cut off.
#[test]
fn a_waiter_whose_watch_missed_what_was_compacted_has_its_turn() {
    let etcd = Etcd::start();
    let url = etcd.url();
    let proxy = Proxy::start(url.trim_start_matches("etcd://").parse().expect("an address"));
    let (holder, waits) = (client(&url), client(&format!("etcd://{}", proxy.address())));
    let compact = || {
        let said = etcd.post(0, "kv/range", r#"{"key":"AA=="}"#).expect("an answer");
        let (_, rest) = said.split_once("\"revision\":\"").expect("a revision");
        let revision = rest.split_once('"').expect("its end").0;
        let body = format!(r#"{{"revision":"{revision}","physical":true}}"#);
        let said = etcd.post(0, "kv/compaction", &body).expect("an answer");
        assert!(said.contains("header"), "{said}");
    };
    for fault in [Fault::None, Fault::BlackHole] {
        let guard = block_on(holder.mutex("x").expect("a name").lock()).expect("a free lock");
        let waiter = {
            let mutex = waits.mutex("x").expect("a name");
            thread::spawn(move || block_on(mutex.try_lock_for(Duration::from_secs(60))))
        };
        // Wherever it is in its wait, it must recover.
        eventually("it has asked", Duration::from_secs(10), || {
            proxy.traffic().iter().any(|traffic| traffic.bytes_to_client > 1_000)
        });
        compact();
        proxy.set(fault);
        block_on(guard.release()).expect("a release");
        for turn in 0..20 {
            let other = holder.mutex(format!("other{turn}")).expect("a name");
            drop(block_on(other.lock()).expect("a free lock"));
        }
        compact();
        proxy.set(Fault::None);
        let got = waiter.join().expect("no panic").expect("an answer");
        block_on(got.expect("its turn").release()).expect("a release");
    }
}

#[test]
fn a_full_etcd_is_named_and_holds_go_on() {
    let etcd = Etcd::with_quota(16 << 20);
    let locks = client(&etcd.url());
    let mutex = locks.mutex("x").expect("a name");
    let guard = block_on(mutex.lock()).expect("a free lock");
    let value = "A".repeat(1 << 20);
    eventually("it is full", Duration::from_secs(60), || {
        let put = format!(r#"{{"key":"AA==","value":"{value}"}}"#);
        etcd.post(0, "kv/put", &put).is_some_and(|said| said.contains("space exceeded"))
    });
    let error = block_on(locks.mutex("y").expect("a name").try_lock()).expect_err("it is full");
    let all = said(&error);
    assert!(error.is_refused() && all.contains("etcdctl alarm disarm") && !all.contains('\n'), "{all}");
    // Also those that leave together.
    let all = (0..50).map(|at| locks.mutex(format!("y{at}")).expect("a name"));
    let refused = block_on(join_all(all.map(async |mutex| mutex.try_lock().await)));
    assert!(
        refused.iter().all(|refused| refused.as_ref().is_err_and(tenure::Error::is_refused)),
        "{refused:?}"
    );
    // Renewals write nothing.
    thread::sleep(TTL * 2);
    assert!(guard.is_held());
    block_on(guard.verify()).expect("it is held");
    block_on(guard.release()).expect("a release frees space");
    assert!(block_on(client(&etcd.url()).inspect("x")).expect("an answer").is_none());
}

/// Opens the store of a URL.
type Open = fn(Opening<'_>) -> tenure::Result<Arc<dyn Store>>;

/// A listing of locks with many holders comes in pages of bounded size.
pub(crate) fn a_listing_of_long_locks_has_pages(url: &str, open: Open) {
    const LOCKS: usize = 90;
    const HOLDERS: usize = 100;
    // In an owner, each byte of this label takes three.
    let label = "\u{e9}".repeat(128);
    let patient = Duration::from_secs(120);
    let options = Options::new().ttl(Duration::from_secs(240)).patience(patient).op_timeout(patient);
    let locks = with(url, options.label(label));
    let names: Vec<String> = (0..LOCKS).map(|lock| format!("long{lock:02}")).collect();
    let mut permits = Vec::new();
    for name in &names {
        let semaphore = locks.semaphore(name, HOLDERS as u32).expect("a name");
        permits.extend(block_on(try_join_all((0..HOLDERS).map(|_| semaphore.acquire()))).expect("permits"));
    }
    let runtime = Driver::start().expect("a thread");
    let opening = Opening { url, runtime: Arc::<Driver>::clone(&runtime), login: None };
    let store = open(opening).expect("a store");
    let (mut listed, mut pages, mut next) = (Vec::new(), 0, Some(Cursor::default()));
    while let Some(from) = next {
        let page = block_on(store.list("long", from, patient)).expect("a page");
        listed.extend(page.locks.iter().map(|(name, found)| (name.to_string(), found.holders.len())));
        (pages, next) = (pages + 1, page.next);
    }
    runtime.stop();
    assert_eq!(listed, names.iter().map(|name| (name.clone(), HOLDERS)).collect::<Vec<_>>());
    assert!(pages > 1, "all are in one page");
    // One write for each lock instead of one for each permit.
    for name in &names {
        assert!(block_on(locks.force_release(name)).expect("an answer").is_some());
    }
    drop(permits);
}

#[test]
fn locks_of_etcd_that_exceed_one_reply_are_listed() {
    a_listing_of_long_locks_has_pages(&Etcd::start().url(), store::etcd::open);
}

/// Two clients take turns at a lock that is held for longer than a lease.
pub(crate) fn turns_with_renewals(ours: &Locks, theirs: &Locks) {
    let limit = Some(Duration::from_secs(60));
    for is_fair in [false, true] {
        let lock = |locks| take(locks, "x", is_fair, limit).expect("an answer").expect("a guard");
        let guard = lock(ours);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| lock(theirs));
            thread::sleep(TTL);
            assert!(guard.is_held(), "it is renewed");
            block_on(guard.release()).expect("a release");
            block_on(waiter.join().expect("no panic").release()).expect("a release");
        });
    }
}

/// These URLs lead to a one-line error that contains the hint.
pub(crate) fn no_connection_is_explained<const N: usize>(urls: [(String, &str); N]) {
    for (url, what) in urls {
        let options = Options::new().ttl(TTL).patience(Duration::from_secs(2));
        let error = take(&with(&url, options), "x", false, None).expect_err("no connection");
        let all = said(&error);
        assert!(all.contains(what) && !all.contains('\n'), "{url}: {all}");
    }
}

#[test]
fn locks_are_kept_over_tls_and_wrong_certificates_are_named() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (named, us) = (authority.certify("127.0.0.1"), authority.certify("us.example"));
    let etcd = Etcd::with_tls(&named, Some(&authority.ca()));
    let identity = format!("&cert={}&key={}", us.cert.display(), us.key.display());
    let url = |authority: &Authority, identity: &str| {
        format!("etcds://{}?ca={}{identity}", etcd.encrypted(), authority.ca().display())
    };
    let (ours, theirs) = (client(&url(&authority, &identity)), client(&url(&authority, &identity)));
    turns_with_renewals(&ours, &theirs);
    let plain = Etcd::start();
    let plain = plain.url().replace("etcd://", "etcds://");
    no_connection_is_explained([
        (url(&stranger, &identity), "ca=FILE"),
        (url(&authority, &identity).replace("127.0.0.1", "localhost"), "not valid for name"),
        (url(&authority, ""), "cert=FILE and key=FILE"),
        (format!("{plain}?ca={}", authority.ca().display()), "use TLS"),
        (format!("etcds://{}?ca=/nowhere", etcd.encrypted()), "/nowhere"),
    ]);
}

/// A client that is cut off loses its lock before the next client holds it, at most `slack` after the end of
/// the lease. Returns the client and its connection.
pub(crate) fn a_cut_off_client_loses(servers: &impl Ensemble, path: &str, slack: u64) -> (Locks, Proxy) {
    let proxy = Proxy::start(servers.address());
    let url = format!("{}{path}", servers.url());
    let near = url.replace(&servers.address().to_string(), &proxy.address().to_string());
    let (ours, theirs) = (client(&near), client(&url));
    let guard = block_on(ours.mutex("x").expect("a name").lock()).expect("a free lock");
    assert!(take(&theirs, "x", false, None).expect("an answer").is_none());
    proxy.set(Fault::BlackHole);
    let cut = Instant::now();
    let next = take(&theirs, "x", false, Some(Duration::from_secs(60)));
    let next = next.expect("an answer").expect("it is free when the lease is over");
    assert!(!guard.is_held(), "both hold");
    assert!(next.fence() > guard.fence());
    assert!(cut.elapsed() < TTL * 7 / 6 + Duration::from_secs(slack), "{:?}", cut.elapsed());
    block_on(next.release()).expect("a release");
    (ours, proxy)
}

#[test]
fn a_client_that_is_cut_off_knows_its_loss_before_the_next_holds() {
    // A sixth of the ttl, two seconds, and etcd's checking interval.
    drop(a_cut_off_client_loses(&Etcd::start(), "", 6));
}

#[test]
fn a_lock_outlives_a_restart_of_the_only_member() {
    let etcd = Etcd::start();
    let (ours, theirs) = (client(&etcd.url()), client(&etcd.url()));
    let guard = block_on(ours.mutex("x").expect("a name").lock()).expect("a free lock");
    etcd.kill(0);
    etcd.restart(0);
    eventually("it answers again", Duration::from_secs(30), || {
        block_on(theirs.mutex("x").expect("a name").try_lock())
            .is_ok_and(|got| got.is_none() || !guard.is_held())
    });
    assert!(guard.is_held(), "etcd was away for less than the lease");
    block_on(guard.release()).expect("a release");
}

#[test]
fn what_is_wrong_with_a_server_is_said_in_one_line() {
    let patience = Duration::from_millis(500);
    let options = Options::new().patience(patience);
    let dead =
        Locks::open("etcd://127.0.0.1:1").expect("a store").with(|_| options.clone()).expect("options");
    let error = block_on(dead.ping()).expect_err("no server");
    let all = said(&error);
    assert!(error.is_unreachable() && all.contains("127.0.0.1:1") && all.contains("refused"), "{all}");

    let etcd = Etcd::start();
    let post = |path: &str, body: &str| etcd.post(0, path, body).expect("an answer");
    post("auth/user/add", r#"{"name":"root","password":"secret"}"#);
    post("auth/user/add", r#"{"name":"app","password":"word"}"#);
    post("auth/role/add", r#"{"name":"root"}"#);
    post("auth/role/add", r#"{"name":"locks"}"#);
    // The prefix `app/`, up to `app0`, in base64.
    let permission =
        r#"{"name":"locks","perm":{"permType":"READWRITE","key":"YXBwLw==","range_end":"YXBwMA=="}}"#;
    post("auth/role/grant", permission);
    post("auth/user/grant", r#"{"user":"root","role":"root"}"#);
    post("auth/user/grant", r#"{"user":"app","role":"locks"}"#);
    post("auth/enable", "{}");

    let places = etcd.url().trim_start_matches("etcd://").to_owned();
    let lock = |login: &str, prefix: &str| {
        // etcd needs a second for a login on a busy machine.
        let options = Options::new().op_timeout(Duration::from_secs(10));
        let locks = with(&format!("etcd://{login}{places}{prefix}"), options);
        block_on(locks.mutex("x").expect("a name").try_lock()).map(|guard| guard.map(|guard| guard.fence()))
    };
    assert!(lock("app:word@", "/app").expect("its rights are enough").is_some());
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), "word\n").expect("written");
    let with_file = format!("/app?password-file={}", file.path().display());
    lock("app@", &with_file).expect("the login is the same");
    for (login, prefix, said) in [
        ("app:word@", "/other", "permission readwrite on the prefix other/"),
        ("app:wrong@", "/app", "is the user, or the password in the URL, right?"),
        ("", "/app", "it requires a user and a password"),
    ] {
        let error = lock(login, prefix).expect_err("no rights");
        let all = crate::common::said(&error);
        assert!(error.is_refused() && all.contains(said), "{login}{prefix}: {all}");
    }
}

/// A signed token names the state of the users that it was made in.
#[test]
fn a_token_from_before_a_change_of_users_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = [include_str!("mysql/login_key.pem"), include_str!("mysql/login_key.pub.pem")];
    let files = ["private.pem", "public.pem"].map(|name| folder.path().join(name));
    keys.iter().zip(&files).for_each(|(key, file)| fs::write(file, key).expect("a file"));
    let etcd = Etcd::with_signed_tokens(&files[0], &files[1]);
    let post = |token: &str, path: &str, body: &str| {
        let said = etcd.post_as(0, token, path, body).expect("an answer");
        assert!(!said.contains("error"), "{said}");
        said
    };
    post("", "auth/user/add", r#"{"name":"root","password":"secret"}"#);
    post("", "auth/role/add", r#"{"name":"root"}"#);
    post("", "auth/user/grant", r#"{"user":"root","role":"root"}"#);
    post("", "auth/enable", "{}");
    let said = post("", "auth/authenticate", r#"{"name":"root","password":"secret"}"#);
    let token = said.split("\"token\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a token");

    let url = etcd.url().replace("etcd://", "etcd://root:secret@");
    let locks = with(&url, Options::new().op_timeout(Duration::from_secs(10)));
    let guard = block_on(locks.mutex("held").expect("a name").lock()).expect("a free lock");
    post(token, "auth/user/add", r#"{"name":"other","password":"word"}"#);
    block_on(guard.verify()).expect("it is held");
    block_on(guard.release()).expect("a release");
    drop(block_on(locks.mutex("next").expect("a name").lock()).expect("a free lock"));
}

#[test]
fn a_login_where_there_are_no_users_is_said() {
    let etcd = Etcd::start();
    let places = etcd.url().trim_start_matches("etcd://").to_owned();
    let error = block_on(client(&format!("etcd://a:b@{places}")).ping()).expect_err("no users");
    let all = said(&error);
    assert!(all.contains("it has no users, and the URL names one"), "{all}");
}

/// Caches need a server clock, and members of a quorum must keep ballots.
pub(crate) fn caches_and_quorums_are_refused(url: &str) {
    let all = said(&client(url).cache("c").map(drop).expect_err("no clock"));
    assert!(all.contains("no common clock"), "{all}");
    let members = [(); 3].map(|()| Locks::open(url).expect("a store"));
    let all = said(&Locks::quorum(members).expect_err("no member"));
    assert!(all.contains("a quorum of their own"), "{all}");
}

#[test]
fn what_needs_a_servers_clock_or_a_member_is_refused_with_the_reason() {
    caches_and_quorums_are_refused(&Etcd::start().url());
}
