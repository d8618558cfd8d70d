//! Namespaces: a user with rights on its own keys alone needs no others, and two namespaces share nothing.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::future::join;
use tenure::internals::protocol::{LockSpec, Notification};
use tenure::internals::store::{Purpose, Topic};
use tenure::{Change, LockName, Locks, Options, Owner, block_on};
use tenure_testkit::asker::Asker;
use tenure_testkit::servers::{Cluster, Config, Ensemble, Etcd, Postgres, Server, ZooKeeper, eventually};

use crate::acl::{KINDS, allow, denied, rights, use_kind_of};
use crate::quorum::nodes::age;

const SOON: Duration = Duration::from_secs(20);
const HOUR: Duration = Duration::from_secs(3_600);

fn client(url: &str) -> Locks {
    Locks::open(url).expect(url).with(|_| Options::new().op_timeout(SOON)).expect("options")
}

/// The names of a client's locks that begin with this.
async fn listed(locks: &Locks, begin: &str) -> Vec<String> {
    let (mut names, mut listing) = (Vec::new(), locks.list(begin).expect("a prefix"));
    while let Some(status) = listing.next().await.expect("an answer") {
        names.push(status.name.to_string());
    }
    names.sort();
    names.dedup();
    names
}

/// Every kind of lock, and all that is done with names, but for caches.
fn use_everything(url: &str) {
    let (ours, theirs) = (client(url), client(url));
    for kind in KINDS {
        use_kind_of(kind, &ours, &theirs, SOON / 10)
            .unwrap_or_else(|error| panic!("{url}: {kind}: {error:?}"));
    }
    block_on(async {
        let fill = ours.fill("table").expect("a name");
        let filled = fill.run(async || Ok::<Option<u8>, Infallible>(None), async |_| Ok(1));
        assert_eq!(filled.await.expect("an answer"), Ok(1));

        let job = |locks: &Locks| locks.once_per("job", HOUR).expect("a name");
        job(&ours).run(async |_| Ok::<_, Infallible>(())).await.expect("an answer");
        assert!(job(&theirs).last().await.expect("an answer").is_some());

        let election = ours.election("leader", "a").expect("a name");
        let mut observer = theirs.election("leader", "").expect("a name").observe();
        let (term, first) = join(election.campaign(), observer.next()).await;
        assert!(matches!(first.expect("a change"), Change::Elected(leader) if leader.payload == "a"));
        term.expect("a term").resign().await.expect("it leads");
        assert!(matches!(observer.next().await.expect("a change"), Change::Resigned(_)));

        let held = ours.mutex("held").expect("a name").lock().await.expect("a lock");
        let asked = theirs.request_stop("held", "now").await.expect("an answer").expect("it is held");
        assert_eq!(asked.name.as_str(), "held");
        assert_eq!(ours.stop_requested(&held).await.expect("an answer").reason, "now");
        assert_eq!(listed(&theirs, "").await.iter().filter(|name| *name == "held").count(), 1);
        let ended = theirs.force_release("held").await.expect("an answer").expect("it was held");
        assert_eq!(ended.name.as_str(), "held");
    });
}

fn use_caches(url: &str) {
    let (ours, theirs) = (client(url), client(url));
    block_on(async {
        let (ours, theirs) = (ours.cache("c").expect("a name"), theirs.cache("c").expect("a name"));
        let value = ours.get_or_compute(HOUR, async || Ok::<_, Infallible>("v".to_owned()));
        assert_eq!(value.await.expect("an answer").expect("a value"), "v");
        assert_eq!(theirs.get::<String>().await.expect("an answer").as_deref(), Some("v"));
        theirs.invalidate().await.expect("an answer");
    });
}

/// Uses the same names in two namespaces at once.
fn share_nothing(urls: [&str; 2]) {
    let [one, other] = urls.map(client);
    block_on(async {
        let held = one.mutex("x").expect("a name").lock().await.expect("a lock");
        let theirs = other.mutex("x").expect("a name").try_lock().await.expect("an answer");
        theirs.expect("it is free there").release().await.expect("a release");
        assert!(other.inspect("x").await.expect("an answer").is_none());
        assert!(other.force_release("x").await.expect("an answer").is_none());
        assert!(other.request_stop("x", "").await.expect("an answer").is_none());
        held.verify().await.expect("still held");

        let me = Owner::new("me").expect("an owner");
        let reentrant = |locks: &Locks| locks.reentrant_mutex("r", &me).expect("a name");
        let _r = reentrant(&one).lock().await.expect("a lock");
        reentrant(&other).lock().await.expect("a lock").release().await.expect("a release");
        let _f = one.fair_mutex("f").expect("a name").lock().await.expect("a lock");
        let fair = other.fair_mutex("f").expect("a name").try_lock().await.expect("an answer");
        drop(fair.expect("it is free there"));
        other.flush().await.expect("released");
        // Another kind, and another number of permits.
        let _s = one.semaphore("s", 1).expect("a name").acquire().await.expect("a permit");
        let permit = other.semaphore("s", 2).expect("a name").acquire_many(2).await.expect("permits");
        permit.release().await.expect("a release");
        let writer = other.rwlock("r").expect("a name").write().await.expect("a lock");
        assert_eq!(
            (listed(&one, "").await, listed(&other, "").await),
            (names(["f", "r", "s", "x"]), names(["r"]))
        );
        drop(writer);

        let elections = [&one, &other].map(|locks| locks.election("e", locks.url()).expect("a name"));
        let terms = [elections[0].campaign().await, elections[1].campaign().await];
        for (election, locks) in elections.iter().zip([&one, &other]) {
            let leader = election.leader().await.expect("an answer").expect("it leads");
            assert_eq!(leader.payload, locks.url());
        }
        drop(terms);
        for locks in [&one, &other] {
            let job = locks.once_per("j", HOUR).expect("a name");
            assert_eq!(job.last().await.expect("an answer"), None, "{}", locks.url());
            job.run(async |_| Ok::<_, Infallible>(())).await.expect("an answer");
        }
    });
}

fn names<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).into()
}

/// The commands of these lines of the page, without their keys and channels.
fn commands() -> Vec<&'static str> {
    let lines =
        ["always", "mutex", "reentrant", "queue", "others", "list", "wake", "waits", "fast", "old", "quorum"];
    rights(&[&lines[..], &["sentinel", "cluster"]].concat())
        .into_iter()
        .filter(|right| right.starts_with('+'))
        .collect()
}

const OWN: [&str; 2] = ["~app:*", "&app:*"];

/// The URL with the login of the user `app`, and its namespace.
fn as_app(url: &str) -> String {
    let separator = if url.contains('?') { '&' } else { '?' };
    url.replacen("://", "://app:pw@", 1) + &format!("{separator}namespace=app:")
}

#[test]
fn a_user_of_one_prefix_uses_everything_on_redis() {
    let server = Server::start();
    allow(&server, &[&commands()[..], &OWN].concat());
    let url = as_app(&server.url());
    use_everything(&url);
    use_caches(&url);
    assert_eq!(denied(&server), [""; 0]);
    let keys = server.command(&["KEYS", "*"]);
    assert!(keys.items().iter().all(|key| key.text().starts_with("app:")), "{keys:?}");
    assert!(server.has("app:tenure:fence"));
    // A prefix alone does not do.
    let plain = Locks::open(&url.replace("?namespace=app:", "")).expect("a store");
    let plain = plain.with(|options| options.prefix("app:")).expect("options");
    let refused =
        block_on(plain.mutex("x").expect("a name").try_lock()).expect_err("no right to the counter");
    assert!(refused.is_refused(), "{refused}");
}

#[test]
fn a_user_of_one_prefix_has_confirmed_locks_and_a_grace() {
    let master = Server::start();
    let replica = Config::new().set("replicaof", &format!("127.0.0.1 {}", master.address().port()));
    let _replica = Server::start_with(replica);
    eventually("the replica follows", SOON, || master.info("replication")["connected_slaves"] == "1");
    allow(&master, &[&commands()[..], &OWN, &["+wait"]].concat());
    let url = as_app(&format!("{}?acks=1&restart-grace=50ms", master.url()));
    let locks = Locks::open(&url).expect("a store");
    let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a lock");
    block_on(guard.release()).expect("a release");
    assert_eq!(denied(&master), [""; 0]);
    assert!(master.has("app:tenure:epoch"));
}

#[test]
fn a_user_of_one_prefix_uses_everything_on_a_cluster() {
    let cluster = Cluster::without_replicas();
    for node in cluster.nodes() {
        allow(node, &[&commands()[..], &OWN].concat());
    }
    let url = as_app(&cluster.url());
    use_everything(&url);
    use_caches(&url);
    let mut counters = 0;
    for node in cluster.nodes() {
        assert_eq!(denied(node), [""; 0]);
        let keys = node.command(&["KEYS", "*"]);
        assert!(keys.items().iter().all(|key| key.text().starts_with("app:")), "{keys:?}");
        counters += keys.items().iter().filter(|key| key.text().starts_with("app:tenure:fence:{")).count();
    }
    assert!(counters > 1);
}

#[test]
fn a_user_of_one_prefix_locks_on_a_quorum() {
    let servers = [(); 3].map(|()| Server::with_clock());
    for server in &servers {
        // A member that started within the ttl does not vote.
        age(server, Config::new());
        allow(server, &[&commands()[..], &OWN].concat());
    }
    let hosts = servers.each_ref().map(|server| server.address().to_string()).join(",");
    let [ours, theirs] = ["app:", "app:other:"].map(|name| {
        Locks::open(&format!("redis-quorum://app:pw@{hosts}?namespace={name}")).expect("a store")
    });
    block_on(async {
        let guard = ours.mutex("x").expect("a name").lock().await.expect("a lock");
        let other = theirs.mutex("x").expect("a name").try_lock().await.expect("an answer");
        other.expect("it is free there").release().await.expect("a release");
        guard.release().await.expect("a release");
    });
    for server in &servers {
        assert_eq!(denied(server), [""; 0]);
    }
}

#[test]
fn two_namespaces_of_a_server_share_nothing() {
    let server = Server::start();
    let urls = ["a:", "b:"].map(|namespace| format!("{}?namespace={namespace}", server.url()));
    share_nothing([&urls[0], &urls[1]]);
    assert!(server.has("a:tenure:fence") && server.has("b:tenure:fence") && !server.has("tenure:fence"));
}

#[test]
fn two_namespaces_of_a_cluster_share_nothing() {
    let cluster = Cluster::without_replicas();
    let urls = ["a:", "b:"].map(|namespace| format!("{}?namespace={namespace}", cluster.url()));
    share_nothing([&urls[0], &urls[1]]);
}

#[test]
fn a_release_in_one_namespace_is_not_heard_in_another() {
    let server = Server::start();
    let [ours, theirs] = ["a:", "b:"].map(|name| Asker::new(&format!("{}?namespace={name}", server.url())));
    let name = LockName::new("x").expect("a name");
    let listening = ours.store.subscribe(Topic::new(&name, LockSpec::Mutex, Purpose::Watch), SOON);
    let mut heard = block_on(listening).expect("a subscription");
    for url in ["b:", "a:"].map(|name| format!("{}?namespace={name}", server.url())) {
        let locks = client(&url).with(|options| options.label(&url[url.len() - 2..])).expect("options");
        let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a lock");
        block_on(guard.release()).expect("a release");
    }
    drop(theirs);
    match block_on(heard.next()).expect("a message") {
        Notification::Free { by: Some(by) } => assert_eq!(by.label(), "a:"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn other_programs_lock_with_the_full_key() {
    let server = Server::start();
    let locks = client(&format!("{}?namespace=app:", server.url()));
    let mutex = locks.mutex("x").expect("a name");
    let reentrant = locks.reentrant_mutex("r", &Owner::new("me").expect("an owner")).expect("a name");
    // As redis-py's Lock and Redisson's RLock take them.
    let redis_py = || server.command(&["SET", "app:x", "token", "NX", "PX", "60000"]) == "OK";
    let redisson = || server.command(&["EXISTS", "app:r"]).int() == 0;
    let held = block_on(mutex.lock()).expect("a lock");
    let also = block_on(reentrant.lock()).expect("a lock");
    assert!(!redis_py() && !redisson());
    block_on(held.release()).expect("a release");
    block_on(also.release()).expect("a release");
    assert!(redis_py() && redisson());
    server.command(&["HINCRBY", "app:r", "550e8400-e29b-41d4-a716-446655440000:51", "1"]);
    assert!(block_on(mutex.try_lock()).expect("an answer").is_none());
    assert!(block_on(reentrant.try_lock()).expect("an answer").is_none());
    // Without a prefix, a listing has the locks of tenure only.
    assert_eq!([block_on(listed(&locks, "")), block_on(listed(&locks, "x"))], [names([]), names(["x"])]);
}

#[test]
fn a_role_uses_everything_in_a_schema_of_its_own() {
    let postgres = Postgres::start();
    postgres.run(
        "CREATE ROLE app LOGIN; CREATE SCHEMA app AUTHORIZATION app; REVOKE ALL ON SCHEMA public FROM PUBLIC",
    );
    let url = |role: &str, schema: &str| postgres.url_as(role, schema).replace("schema=", "namespace=");
    use_everything(&url("app", "app"));
    use_caches(&url("app", "app"));
    share_nothing([&url("postgres", "a"), &url("postgres", "b")]);
}

#[test]
fn a_role_uses_everything_below_its_own_prefix_of_etcd() {
    let etcd = Etcd::start();
    share_nothing([&format!("{}?namespace=a/", etcd.url()), &format!("{}?namespace=b/", etcd.url())]);
    let post = |path: &str, body: &str| etcd.post(0, path, body).expect("an answer");
    post("auth/user/add", r#"{"name":"root","password":"secret"}"#);
    post("auth/user/add", r#"{"name":"app","password":"pw"}"#);
    post("auth/role/add", r#"{"name":"root"}"#);
    post("auth/role/add", r#"{"name":"app"}"#);
    // The prefix `app:`, to before `app;`, in base64.
    let own = r#"{"name":"app","perm":{"permType":"READWRITE","key":"YXBwOg==","range_end":"YXBwOw=="}}"#;
    post("auth/role/grant", own);
    post("auth/user/grant", r#"{"user":"root","role":"root"}"#);
    post("auth/user/grant", r#"{"user":"app","role":"app"}"#);
    post("auth/enable", "{}");
    use_everything(&as_app(&etcd.url()));
}

#[test]
fn a_login_uses_everything_below_its_own_node_of_zookeeper() {
    let server: ZooKeeper = crate::zookeeper::warmed();
    let url = |namespace: &str| format!("{}?namespace={namespace}", server.url());
    share_nothing([&url("a"), &url("b")]);
    // The node of the namespace is made by the first client, for its login alone.
    let own = as_app(&server.url());
    use_everything(&own);
    let strange = client(&own.replace("app:pw@", "other:pw@"));
    let refused = block_on(strange.mutex("x").expect("a name").try_lock()).expect_err("no rights");
    assert!(refused.is_refused(), "{refused}");
}

#[test]
fn directories_and_memory_have_other_names_instead() {
    for url in ["file:/tmp/x?namespace=app:", "memory:x?namespace=app:"] {
        let error = Locks::open(url).expect_err(url);
        assert!(error.is_invalid() && error.to_string().contains("another directory"), "{error}");
    }
}
