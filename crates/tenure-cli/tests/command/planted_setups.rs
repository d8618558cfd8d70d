//! `tenure doctor` on set-ups that take more than a setting: each is created on real servers, and found.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use tenure_testkit::servers::{Cluster, Server, eventually};

use crate::doctor::{checks, finds, found, good, set, told};
use crate::env::{SOON, TestEnv};

#[test]
fn a_save_that_failed_is_found() {
    let (env, server) = (TestEnv::new(), Server::start_with(good().set("enable-protected-configs", "yes")));
    let directory = env.path("data");
    std::fs::create_dir(&directory).expect("a directory");
    set(&server, "dir", &directory.display().to_string());
    std::fs::remove_dir(&directory).expect("it is empty");
    server.command(&["SET", "x", "1", "PX", "600000"]);
    server.command(&["BGSAVE"]);
    eventually("the save has failed", SOON, || server.info("persistence")["rdb_last_bgsave_status"] == "err");
    assert!(found(&env, &server.url(), &[]).contains("save"));
    // A later success removes the finding.
    set(&server, "dir", &env.path(".").display().to_string());
    server.command(&["BGSAVE"]);
    eventually("the save is done", SOON, || server.info("persistence")["rdb_last_bgsave_status"] == "ok");
    assert_eq!(found(&env, &server.url(), &[]), checks([]));
}

#[test]
fn keys_that_were_evicted_are_found_after_the_policy_was_mended() {
    let (env, server) = (TestEnv::new(), Server::start_with(good()));
    set(&server, "maxmemory-policy", "allkeys-lru");
    let used: u64 = server.info("memory")["used_memory"].parse().expect("a number");
    set(&server, "maxmemory", &(used + 200_000).to_string());
    let value = "x".repeat(10_000);
    for number in 0..60 {
        server.command(&["SET", &format!("cache:{number}"), &value, "PX", "600000"]);
    }
    set(&server, "maxmemory", "0");
    set(&server, "maxmemory-policy", "noeviction");
    assert_eq!(found(&env, &server.url(), &[]), checks(["evicted"]));
    server.command(&["CONFIG", "RESETSTAT"]);
    assert_eq!(found(&env, &server.url(), &[]), checks([]));
}

/// Hands each client that connects to this port to `each`.
fn listen(each: impl FnMut(TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(each));
    port
}

/// Passes on what one side sends until it ends.
fn pass(mut from: TcpStream, mut to: TcpStream) {
    thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// A relay to a server that replaces the version in its replies.
fn with_version(server: &Server, from: String, to: String) -> u16 {
    assert_eq!(from.len(), to.len(), "lengths stand before texts");
    let at = server.address();
    listen(move |mut client| {
        let mut server = TcpStream::connect(at).expect("the server");
        pass(client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
        let (from, to) = (from.clone(), to.clone());
        thread::spawn(move || {
            let mut bytes = vec![0; 1 << 18];
            while let Ok(length @ 1..) = server.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..length]).replace(&from, &to);
                if client.write_all(text.as_bytes()).is_err() {
                    break;
                }
            }
            let _ = client.shutdown(Shutdown::Both);
        });
    })
}

#[test]
fn an_old_version_is_found() {
    let (env, server) = (TestEnv::new(), Server::start_with(good()));
    let info = server.info("server");
    let field = if info.contains_key("valkey_version") { "valkey_version" } else { "redis_version" };
    let version = &info[field];
    // Of the same length, and too old.
    let old: String = version.chars().map(|char| if char.is_ascii_digit() { '1' } else { char }).collect();
    let port = with_version(&server, format!("{field}:{version}"), format!("{field}:{old}"));
    assert_eq!(found(&env, &format!("redis://127.0.0.1:{port}"), &[]), checks(["version"]));
    assert_eq!(found(&env, &server.url(), &[]), checks([]));
}

#[test]
fn a_server_that_is_named_twice_in_a_quorum_is_found() {
    let env = TestEnv::new();
    let servers: [Server; 2] = Server::several();
    let [first, second] = [&servers[0], &servers[1]].map(Server::address);
    let url = format!("redis-quorum://{first},localhost:{},{second}", first.port());
    let told = told(&env, &url, &[]);
    assert!(finds(&told, "members", "same server"), "{told}");
}

#[test]
fn slots_without_a_node_and_masters_without_a_replica_are_found() {
    let env = TestEnv::new();
    let cluster = Cluster::start_with(&good().set("min-replicas-to-write", "1"));
    assert_eq!(found(&env, &cluster.url(), &[]), checks([]));
    let slot = cluster.slot("x").to_string();
    for node in cluster.nodes() {
        let _ = node.try_command(&["CLUSTER", "DELSLOTS", &slot]);
    }
    assert!(found(&env, &cluster.url(), &[]).contains("coverage"));

    let alone = Cluster::without_replicas();
    let findings = found(&env, &alone.url(), &[]);
    assert!(findings.contains("replicas"), "{findings:?}");
}

/// Distributes connections among these servers in turn, like a balancer.
fn balancer(servers: [SocketAddr; 2]) -> u16 {
    let mut turns = servers.into_iter().cycle();
    listen(move |client| {
        let server = turns.next().and_then(|at| TcpStream::connect(at).ok()).expect("the server");
        pass(client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
        pass(server, client);
    })
}

#[test]
fn several_servers_behind_one_address_are_found_and_one_is_a_note() {
    let env = TestEnv::new();
    let servers = [good(), good()].map(Server::start_with);
    let [first, second] = [&servers[0], &servers[1]].map(Server::address);
    let url = |port: u16| format!("redis://127.0.0.1:{port}");
    let told_of = |port: u16| told(&env, &url(port), &[]);
    let port = balancer([first, second]);
    let told = told_of(port);
    assert!(finds(&told, "proxy", "several servers"), "{told}");
    // A plain relay costs no lock.
    let told = told_of(balancer([first, first]));
    assert_eq!(told["findings"], serde_json::json!([]), "{told}");
    assert!(
        told["notes"][0]["check"] == "proxy" && told["notes"].as_array().map(Vec::len) == Some(1),
        "{told}"
    );
    // There is no relay to the server itself, under either kind of address.
    for url in [url(first.port()), format!("redis://localhost:{}", first.port()), servers[0].unix_url()] {
        assert_eq!(self::told(&env, &url, &[])["notes"], serde_json::json!([]), "{url}");
    }
}

/// Distributes the requests of one connection over two, in turn; those of a login go to both.
fn multiplexer(server: &Server) -> u16 {
    let at = server.address();
    listen(move |mut client| {
        thread::spawn(move || {
            let mut servers = [at, at].map(|at| TcpStream::connect(at).expect("the server"));
            let mut bytes = vec![0; 1 << 16];
            for turn in 0.. {
                let Ok(length @ 1..) = client.read(&mut bytes) else { break };
                let is_login = bytes[..length].windows(5).any(|word| word == b"HELLO");
                let asked = if is_login { 0..2 } else { turn % 2..turn % 2 + 1 };
                let mut answer = Vec::new();
                for server in &mut servers[asked] {
                    server.write_all(&bytes[..length]).expect("a request");
                    answer = answer_of(server);
                }
                if client.write_all(&answer).is_err() {
                    break;
                }
            }
        });
    })
}

/// What a server sends until it pauses.
fn answer_of(server: &mut TcpStream) -> Vec<u8> {
    let (mut answer, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
    server.set_read_timeout(Some(Duration::from_secs(2))).expect("a limit");
    while let Ok(length @ 1..) = server.read(&mut bytes) {
        answer.extend(&bytes[..length]);
        server.set_read_timeout(Some(Duration::from_millis(5))).expect("a limit");
    }
    answer
}

#[test]
fn a_proxy_that_shares_connections_is_found() {
    let (env, server) = (TestEnv::new(), Server::start_with(good()));
    let port = multiplexer(&server);
    let told = told(&env, &format!("redis://127.0.0.1:{port}"), &["--ttl", "1h"]);
    assert!(finds(&told, "proxy", "one connection"), "{told}");
}
