//! Locks on a real server with TLS, and the errors when client and server disagree.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests against real servers measure real time"
)]

use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tenure::{Guard, Locks, Owner, block_on};
use tenure_testkit::asker::{Asker, held, not_sent, refusal};
use tenure_testkit::conformance::{Case, Fixture, Flavour, exclusion, guard, lease};
use tenure_testkit::servers::{Authority, Cluster, Config, Server, eventually, with_query};
use tenure_testkit::timed::in_time;

/// A server with a certificate for 127.0.0.1, which requires no client certificate.
fn server(authority: &Authority) -> Server {
    Server::start_with(
        Config::new().tls(authority, &authority.certify("127.0.0.1")).set("tls-auth-clients", "no"),
    )
}

fn trusting(url: &str, authority: &Authority) -> String {
    format!("{url}?ca={}", authority.ca().display())
}

#[test]
fn locks_of_every_kind_are_kept_over_tls() {
    let authority = Authority::new();
    let server = server(&authority);
    let run = |db: usize, flavour, case: for<'a> fn(&'a Fixture) -> Case<'a>| {
        let url = trusting(&format!("{}/{db}", server.url()), &authority);
        let open = move || Locks::open(&url).expect("a store");
        block_on(case(&Fixture::in_real_time(open).with(flavour)));
    };
    std::thread::scope(|threads| {
        for (db, flavour) in
            [Flavour::Mutex, Flavour::Fair, Flavour::Write, Flavour::Reentrant].into_iter().enumerate()
        {
            let run = &run;
            threads.spawn(move || {
                run(db, flavour, |fixture| {
                    Box::pin(exclusion::a_waiter_of_another_client_is_woken_by_the_release(fixture))
                });
                run(db, flavour, |fixture| {
                    Box::pin(lease::a_lease_is_renewed_for_as_long_as_its_guard_lives(fixture))
                });
                run(db, flavour, |fixture| Box::pin(guard::tokens_grow_from_grant_to_grant(fixture)));
            });
        }
    });
    // Nothing bypassed the encryption, because there is no other port.
    assert!(server.info_commandstats().contains_key("evalsha"));
}

#[test]
fn a_lost_connection_is_made_anew_over_tls() {
    let authority = Authority::new();
    let server = server(&authority);
    let asker = Asker::new(&trusting(&server.url(), &authority));
    assert!(held(&asker.acquire("x")));
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually("the lock is renewed", Duration::from_secs(5), || held(&asker.renew("x")));
}

/// Like a managed service: no plain port, and nodes with names in certificates and announcements.
#[test]
fn a_tls_cluster_keeps_locks_of_every_kind_through_a_slot_move_and_a_failover() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (named, us) = (authority.certify("localhost"), authority.certify("us.example"));
    let nodes = Config::new()
        .tls(&authority, &named)
        .set("tls-cluster", "yes")
        .set("tls-replication", "yes")
        .set("cluster-announce-hostname", "localhost")
        .set("cluster-preferred-endpoint-type", "hostname");
    let cluster = Cluster::start_with(&nodes).calm();
    let seeds = cluster.url().replace("127.0.0.1", "localhost");
    assert!(seeds.starts_with("rediss-cluster://"));
    let identity = format!("&cert={}&key={}", us.cert.display(), us.key.display());
    let open = |url: &str| Locks::open(&format!("{url}{identity}")).expect("a store");
    let (holders, waiters) = (open(&trusting(&seeds, &authority)), open(&trusting(&seeds, &authority)));
    let acked = open(&with_query(&trusting(&seeds, &authority), "acks=1"));
    let (one, other) = (Owner::new("one").expect("an owner"), Owner::new("other").expect("an owner"));
    let acquire = |locks: &Locks, owner: &Owner, kind: &str, name: &str| {
        let asked = async {
            match kind {
                "mutex" => locks.mutex(name)?.lock().await,
                "reentrant" => locks.reentrant_mutex(name, owner)?.lock().await,
                "fair" => locks.fair_mutex(name)?.lock().await,
                "writer" => locks.rwlock(name)?.write().await.map(Guard::from),
                _ => locks.semaphore(name, 1)?.acquire().await,
            }
        };
        block_on(asked).unwrap_or_else(|error| panic!("{kind}: {error:?}"))
    };
    for (shard, kind) in ["mutex", "reentrant", "fair", "writer", "permit"].into_iter().enumerate() {
        let (from, to) = (shard % 3, (shard + 1) % 3);
        let name = cluster.key_at(from, kind);
        let guard = acquire(&acked, &one, kind, &name);
        std::thread::scope(|threads| {
            let guard = guard;
            let waiter = threads.spawn(|| acquire(&waiters, &other, kind, &name));
            cluster.move_slot(cluster.slot(&name), from, to);
            block_on(guard.verify()).expect("it has moved with its slot");
            let token = guard.fence();
            block_on(guard.release()).expect("a release");
            assert!(waiter.join().expect("no panic").fence() > token);
        });
    }
    let name = cluster.key_at(0, "k");
    let guard = acquire(&holders, &one, "mutex", &name);
    cluster.fail_over(0);
    cluster.settles();
    eventually("it is held on", Duration::from_secs(10), || block_on(guard.verify()).is_ok());

    for (url, why) in
        [(trusting(&seeds, &stranger), "ca=FILE"), (trusting(&cluster.url(), &authority), "localhost")]
    {
        let error =
            block_on(Locks::connect(&format!("{url}{identity}"))).expect_err("another authority, or name");
        let said = std::error::Error::source(&error).expect("a cause").to_string();
        assert!(error.is_refused() && said.contains(why), "{url}: {error}: {said}");
    }
}

#[test]
fn a_server_of_an_authority_that_nobody_trusts_is_refused() {
    let authority = Authority::new();
    let server = server(&authority);
    let started = Instant::now();
    let other = Authority::new();
    let why = refusal(Asker::new(&trusting(&server.url(), &other)).acquire("x"));
    assert!(why.contains("UnknownIssuer") && why.contains("ca=FILE"), "{why}");
    // The system's authorities have not signed it either.
    let why = refusal(Asker::new(&server.url()).acquire("x"));
    assert!(why.contains("ca=FILE"), "{why}");
    in_time(started.elapsed(), Duration::from_secs(5));
    assert_eq!(server.command(&["DBSIZE"]).int(), 0);
}

#[test]
fn a_server_that_is_certified_as_somebody_else_is_refused() {
    let authority = Authority::new();
    let elsewhere = authority.certify("redis.example");
    let server = Server::start_with(Config::new().tls(&authority, &elsewhere).set("tls-auth-clients", "no"));
    let why = refusal(Asker::new(&trusting(&server.url(), &authority)).acquire("x"));
    assert!(why.contains("127.0.0.1") && why.contains("redis.example"), "{why}");
}

#[test]
fn a_server_that_wants_to_know_who_we_are_is_told() {
    let authority = Authority::new();
    let (here, us) = (authority.certify("127.0.0.1"), authority.certify("us.example"));
    let other = Authority::new();
    let stranger = other.certify("us.example");
    for versions in ["TLSv1.2", "TLSv1.3"] {
        let config = Config::new().tls(&authority, &here).set("tls-protocols", versions);
        let server = Server::start_with(config);
        let url = trusting(&server.url(), &authority);
        let why = refusal(Asker::new(&url).acquire("x"));
        assert!(why.contains("cert=FILE and key=FILE"), "{versions}: {why}");
        let named = |cert: &std::path::Path, key: &std::path::Path| {
            Asker::new(&format!("{url}&cert={}&key={}", cert.display(), key.display())).acquire("x")
        };
        let why = refusal(named(&stranger.cert, &stranger.key));
        assert!(why.contains("rejects ours"), "{versions}: {why}");
        let why = not_sent(named(&us.cert, &here.key));
        assert!(why.contains("key="), "{versions}: {why}");
        assert!(held(&named(&us.cert, &us.key)), "{versions}");
    }
}

#[test]
fn files_that_are_none_are_named() {
    let authority = Authority::new();
    let server = server(&authority);
    let us = authority.certify("us.example");
    let url = trusting(&server.url(), &authority);
    let (gone, key) = (authority.dir().join("gone.pem"), us.key.display());
    for (url, what) in [
        (format!("{}?ca={}", server.url(), gone.display()), "ca="),
        (format!("{}?ca={key}", server.url()), "no certificate"),
        (format!("{url}&cert={}&key={key}", gone.display()), "cert="),
        (format!("{url}&cert={}&key={}", us.cert.display(), gone.display()), "key="),
    ] {
        let why = not_sent(Asker::new(&url).within(Duration::from_secs(1)).acquire("x"));
        assert!(why.contains(what) && why.contains(".pem"), "{url}: {why}");
    }
}

#[test]
fn a_waiter_outlasts_files_that_are_half_written() {
    let authority = Authority::new();
    let us = authority.certify("us.example");
    let server = Server::start_with(Config::new().tls(&authority, &authority.certify("127.0.0.1")));
    let url = |ca: &Path, cert: &Path, key: &Path| {
        format!("{}?ca={}&cert={}&key={}", server.url(), ca.display(), cert.display(), key.display())
    };
    let holder = Locks::open(&url(&authority.ca(), &us.cert, &us.key)).expect("a store");
    for (name, file) in [("ca", &authority.ca()), ("cert", &us.cert), ("key", &us.key)] {
        let (whole, copy) =
            (std::fs::read(file).expect("a file"), authority.dir().join(format!("copy-{name}.pem")));
        std::fs::write(&copy, &whole).expect("a file");
        let of = |known: &str, file: &PathBuf| if known == name { copy.clone() } else { file.clone() };
        let url = url(&of("ca", &authority.ca()), &of("cert", &us.cert), &of("key", &us.key));
        let waiter = Locks::open(&url).expect("a store");
        let guard = block_on(holder.mutex(name).expect("a name").lock()).expect("free");
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| block_on(waiter.mutex(name).expect("a name").lock()));
            let waiting =
                || block_on(holder.inspect(name)).is_ok_and(|it| it.is_some_and(|it| it.waiting > Some(0)));
            eventually("it waits", Duration::from_secs(10), waiting);
            std::fs::write(&copy, &whole[..whole.len() / 2]).expect("a file");
            for kind in ["normal", "pubsub"] {
                server.command(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
            }
            // Several attempts to connect fail meanwhile.
            std::thread::sleep(Duration::from_secs(2));
            assert!(!waits.is_finished(), "{name}: it did not outlast the file");
            std::fs::write(&copy, &whole).expect("a file");
            block_on(guard.release()).expect("it is held");
            let granted = waits.join().expect("no panic").unwrap_or_else(|error| panic!("{name}: {error:?}"));
            block_on(granted.release()).expect("it is held");
        });
    }
}

#[test]
fn a_renewed_certificate_is_read_by_the_next_connection() {
    let (old, new) = (Authority::new(), Authority::new());
    let server = server(&new);
    let ca = old.dir().join("trusted.pem");
    std::fs::copy(old.ca(), &ca).expect("a file");
    let asker = Asker::new(&format!("{}?ca={}", server.url(), ca.display()));
    refusal(asker.acquire("x"));
    std::fs::copy(new.ca(), &ca).expect("a file");
    assert!(held(&asker.acquire("x")));
}

#[test]
fn a_server_that_does_not_speak_tls_is_named() {
    let server = Server::start();
    let url = server.url().replace("redis://", "rediss://");
    let authority = Authority::new();
    let url = trusting(&url, &authority);
    // The server waits for the end of a line, or complains about the line it found.
    let why = match Asker::new(&url).acquire("x") {
        Err(failure) => failure.to_string(),
        Ok(answer) => panic!("answered: {answer:?}"),
    };
    assert!(why.contains("TLS") && why.contains("redis://"), "{why}");
}

#[test]
fn a_server_that_speaks_tls_to_one_who_does_not_is_named() {
    let authority = Authority::new();
    let server = server(&authority);
    let url = server.url().replace("rediss://", "redis://");
    let started = Instant::now();
    let why = not_sent(Asker::new(&url).within(Duration::from_millis(500)).acquire("x"));
    assert!(why.contains("rediss://"), "{why}");
    in_time(started.elapsed(), Duration::from_secs(5));
}

#[test]
fn a_handshake_that_is_never_answered_ends_and_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("rediss://{}", listener.local_addr().expect("an address"));
    let authority = Authority::new();
    let url = trusting(&url, &authority);
    // A client with a shorter timeout than that of a dial gets the error too.
    let locks =
        Locks::open(&url).expect("a store").with(|options| options.op_timeout(Duration::from_millis(300)));
    let locks = locks.expect("options");
    let started = Instant::now();
    let error = block_on(locks.mutex("x").expect("a name").try_lock()).expect_err("nobody answers");
    let why = std::error::Error::source(&error).expect("a cause").to_string();
    assert!(error.is_unreachable() && why.contains("TLS handshake"), "{error}: {why}");
    in_time(started.elapsed(), Duration::from_secs(5));
    // The dial is aborted: the other side sees the connection end.
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let mut hello = Vec::new();
    stream.read_to_end(&mut hello).expect("the connection ends");
    assert_eq!(hello.first(), Some(&0x16), "it began with a handshake");
}
