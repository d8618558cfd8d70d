//! The proxy affects connections exactly as configured.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "real sockets take real time")]
#![expect(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use tenure_testkit::proxy::{Direction, Fault, Proxy};
use tenure_testkit::servers::{Client, Server, Value, eventually};

const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(5);

const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n";

fn proxied() -> (Server, Proxy) {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    (server, proxy)
}

fn dial(proxy: &Proxy) -> Client {
    Client::dial(proxy.address()).unwrap()
}

/// Whether a new connection gets a reply.
fn answers(proxy: &Proxy) -> bool {
    Client::dial(proxy.address()).and_then(|mut client| client.command(&["PING"])).is_ok()
}

/// A server that only listens, a client, and a proxy in between.
fn wired() -> (TcpStream, TcpStream, Proxy) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap());
    let client = TcpStream::connect(proxy.address()).unwrap();
    let (server, _) = listener.accept().unwrap();
    for socket in [&client, &server] {
        socket.set_read_timeout(Some(LONG)).unwrap();
    }
    (client, server, proxy)
}

/// Everything received until the end of the connection.
fn all(mut socket: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn without_a_fault_all_passes_and_is_counted_by_connection() {
    let (_server, proxy) = proxied();
    let (mut first, mut second) = (dial(&proxy), dial(&proxy));
    first.send_bytes(SET).unwrap();
    assert_eq!(first.receive().unwrap(), "OK");
    let large = "x".repeat(3_000_000);
    assert_eq!(second.command(&["SET", "large", &large]).unwrap(), "OK");
    assert_eq!(second.command(&["GET", "large"]).unwrap(), large.as_str());

    let traffic = proxy.traffic();
    assert_eq!((traffic[0].bytes_to_server, traffic[0].writes_to_server), (SET.len() as u64, 1));
    assert_eq!((traffic[0].bytes_to_client, traffic[0].writes_to_client), (5, 1));
    assert!(traffic[0].open && traffic[1].bytes_to_client > 3_000_000);
    drop(first);
    eventually("the end passes", LONG, || !proxy.traffic()[0].open);
    assert!(proxy.traffic()[1].open && proxy.connections() == 2);
}

#[test]
fn a_connection_is_cut_after_exactly_n_bytes_to_the_server() {
    for n in 0..=SET.len() {
        let (mut client, server, proxy) = wired();
        proxy.set(Fault::CutAfterBytes(Direction::ToServer, n as u64));
        client.write_all(SET).unwrap();
        client.write_all(SET).unwrap_or_default(); // the connection may have ended before
        assert_eq!(all(&server), SET[..n]);
        assert_eq!(client.read(&mut [0; 9]).unwrap_or_default(), 0);
    }
}

#[test]
fn a_connection_is_cut_after_exactly_n_bytes_to_the_client() {
    for n in 0..=SET.len() {
        let (client, mut server, proxy) = wired();
        proxy.set(Fault::CutAfterBytes(Direction::ToClient, n as u64));
        server.write_all(SET).unwrap();
        server.write_all(SET).unwrap();
        assert_eq!(all(&client), SET[..n]);
        assert_eq!(all(&server), b"");
    }
}

#[test]
fn a_cut_counts_from_when_it_was_set_however_the_bytes_are_split() {
    let (mut client, server, proxy) = wired();
    client.write_all(SET).unwrap(); // passes before the next line
    proxy.set(Fault::CutAfterBytes(Direction::ToServer, 7));
    for byte in &SET[..8] {
        client.write_all(&[*byte]).unwrap_or_default();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(all(&server), [SET, &SET[..7]].concat());
}

#[test]
fn a_request_cut_behind_its_last_byte_is_executed_and_one_cut_before_it_is_not() {
    for (n, value) in [(SET.len(), Value::Bytes("value".into())), (SET.len() - 1, Value::Nil)] {
        let (server, proxy) = proxied();
        let mut client = dial(&proxy);
        proxy.set_on(1, Fault::CutAfterBytes(Direction::ToServer, n as u64));
        client.send_bytes(SET).unwrap();
        assert_eq!(client.receive().unwrap_err().kind(), ErrorKind::UnexpectedEof);
        eventually("the server ends its side", LONG, || server.info("clients")["connected_clients"] == "1");
        assert_eq!(server.command(&["GET", "key"]), value);
    }
}

#[test]
fn a_connection_is_cut_after_the_nth_reply_and_messages_are_none() {
    for n in 0..4_usize {
        let (server, proxy) = proxied();
        let mut client = dial(&proxy);
        client.command(&["HELLO", "3"]).unwrap();
        client.send(&["SUBSCRIBE", "news"]).unwrap();
        client.receive().unwrap();
        proxy.set(Fault::CutAfterReplies(n as u64));
        if n > 0 {
            assert_eq!(server.command(&["PUBLISH", "news", "hot"]), 1);
            assert!(matches!(client.receive().unwrap(), Value::Push(_)));
        }
        // One write, so that the replies come together.
        client.send_bytes(&b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n".repeat(5)).unwrap();
        for i in 0..n {
            assert_eq!(client.receive().unwrap(), i as i64 + 1);
        }
        assert_eq!(client.receive().unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(server.command(&["GET", "n"]).int(), 5);
    }
}

#[test]
fn a_fault_can_hit_the_second_connection_only() {
    let (_server, proxy) = proxied();
    proxy.set_on(2, Fault::CutAfterReplies(0));
    let mut clients: Vec<_> = (0..3).map(|_| dial(&proxy)).collect();
    let replies: Vec<_> = clients.iter_mut().map(|client| client.command(&["PING"]).is_ok()).collect();
    assert_eq!(replies, [true, false, true]);
    proxy.set_on(4, Fault::Refuse);
    assert!(!answers(&proxy) && answers(&proxy));
    proxy.reset_on(1);
    let replies: Vec<_> = clients.iter_mut().map(|client| client.command(&["PING"]).is_ok()).collect();
    assert_eq!(replies, [false, false, true]);
}

#[test]
fn in_a_black_hole_all_times_out_and_passes_late_when_it_is_lifted() {
    let (server, proxy) = proxied();
    let mut old = dial(&proxy).with_timeout(SHORT);
    old.command(&["PING"]).unwrap();
    proxy.set(Fault::BlackHole);
    let mut new = dial(&proxy).with_timeout(SHORT);
    for client in [&mut old, &mut new] {
        assert_eq!(client.command(&["INCR", "n"]).unwrap_err().kind(), ErrorKind::TimedOut);
    }
    assert_eq!(server.command(&["GET", "n"]), Value::Nil);
    proxy.set(Fault::None);
    eventually("both requests arrive late", LONG, || server.command(&["GET", "n"]) == "2");
    assert_eq!(new.with_timeout(LONG).receive().unwrap().int() + old.receive().unwrap().int(), 3);
}

#[test]
fn a_black_hole_hides_the_end_of_each_side_from_the_other() {
    let (server, proxy) = proxied();
    let mut client = dial(&proxy).with_timeout(SHORT);
    let gone = dial(&proxy);
    eventually("both are connected", LONG, || server.info("clients")["connected_clients"] == "3");
    proxy.set(Fault::BlackHole);
    drop(gone);
    std::thread::sleep(SHORT);
    assert_eq!(server.info("clients")["connected_clients"], "3");
    server.kill();
    assert_eq!(client.receive().unwrap_err().kind(), ErrorKind::TimedOut);
    proxy.set(Fault::None);
    assert_ne!(client.receive().unwrap_err().kind(), ErrorKind::TimedOut);
}

#[test]
fn one_way_can_be_held_a_request_is_executed_and_its_reply_comes_late() {
    let (server, proxy) = proxied();
    let mut client = dial(&proxy).with_timeout(SHORT);
    proxy.set(Fault::Hold(Direction::ToClient));
    assert_eq!(client.command(&["INCR", "n"]).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(server.command(&["GET", "n"]), "1");
    proxy.set(Fault::Hold(Direction::ToServer));
    assert_eq!(client.command(&["INCR", "n"]).unwrap(), 1); // the late reply to the first
    assert_eq!(server.command(&["GET", "n"]), "1");
}

#[test]
fn a_delay_is_a_latency_and_not_a_bottleneck() {
    let (_server, proxy) = proxied();
    let mut client = dial(&proxy);
    let delay = Duration::from_millis(50);
    proxy.set(Fault::Delay(delay));
    let start = Instant::now();
    for _ in 0..200 {
        client.send(&["PING"]).unwrap();
        std::thread::yield_now(); // many pieces
    }
    for i in 0..200 {
        client.receive().unwrap();
        assert!(i > 0 || start.elapsed() >= 2 * delay);
    }
    assert!(start.elapsed() < 40 * delay, "{:?}", start.elapsed()); // 2 would be ideal, 400 sequential
}

#[test]
fn new_connections_are_refused_and_the_others_go_on() {
    let (_server, proxy) = proxied();
    let mut client = dial(&proxy);
    client.command(&["PING"]).unwrap();
    proxy.set(Fault::Refuse);
    assert_eq!(Client::dial(proxy.address()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    client.command(&["PING"]).unwrap();
    proxy.set(Fault::None);
    assert!(answers(&proxy));
}

#[test]
fn a_reset_is_a_reset_for_both_sides() {
    let (mut client, mut server, proxy) = wired();
    proxy.reset();
    for side in [&mut client, &mut server] {
        assert_eq!(side.read(&mut [0; 9]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    assert!(!proxy.traffic()[0].open);
}

#[test]
fn behind_the_proxy_a_server_may_go_and_come_back() {
    let (server, proxy) = proxied();
    let mut client = dial(&proxy);
    client.command(&["PING"]).unwrap();
    server.kill();
    assert_eq!(client.receive().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert!(!answers(&proxy));
    server.restart();
    assert!(answers(&proxy));
}

#[test]
fn a_proxy_is_gone_with_its_handle() {
    let (_server, proxy) = proxied();
    let address = proxy.address();
    let mut client = dial(&proxy);
    client.command(&["PING"]).unwrap();
    drop(proxy);
    assert!(client.command(&["PING"]).is_err());
    assert!(TcpStream::connect(address).is_err());
}
