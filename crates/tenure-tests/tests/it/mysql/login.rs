//! Logins of MySQL 8, which is not there to be run, on a server that does what its documentation says.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use tenure::{Locks, Options, block_on};

use crate::common::said;

const NONCE: &[u8; 20] = b"abcdefghijklmnopqrst";
const OTHER_NONCE: &[u8; 20] = b"tsrqponmlkjihgfedcba";
/// `SHA256(p) XOR SHA256(SHA256(SHA256(p)) + NONCE)` of the password `word`, by Python's hashlib.
const SHA2: &str = "c876be776514aa42bf140a673bfe4fb34b84eb0e405f48171f74c510ba394d04";
/// `SHA1(p) XOR SHA1(OTHER_NONCE + SHA1(SHA1(p)))` of the same.
const NATIVE: &str = "cc81847ea83bf866cf00317c544c5b99622b0f7e";
const FAST: &[u8] = &[1, 3];
const FULL: &[u8] = &[1, 4];
pub(super) const OK: &[u8] = &[0, 0, 0, 2, 0, 0, 0];

/// How the server continues after the first proof.
#[derive(Clone, Copy, PartialEq)]
enum Script {
    /// It has the password's hash in its cache.
    Cached,
    /// It has not.
    Uncached,
    /// The account uses `mysql_native_password`.
    Switch,
}

/// A server for one connection after the other.
fn serve(script: Script) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let _ = log_in(client, script);
        }
    });
    address
}

pub(super) fn greet(client: &mut TcpStream) -> io::Result<()> {
    let mut greeting = b"\x0a8.0.36\0\x01\0\0\0".to_vec();
    greeting.extend(&NONCE[..8]);
    // Without TLS: all other capabilities that count here.
    greeting.extend(b"\0\xff\xf7\x2d\x02\0\xff\xc1\x15\0\0\0\0\0\0\0\0\0\0");
    greeting.extend([&NONCE[8..], b"\0caching_sha2_password\0"].concat());
    send(client, 0, &greeting)
}

fn log_in(mut client: TcpStream, script: Script) -> io::Result<()> {
    greet(&mut client)?;
    let (mut at, response) = receive(&mut client)?;
    let mut is_right = holds(&response, SHA2);
    match script {
        Script::Cached => send(&mut client, at + 1, FAST)?,
        Script::Uncached => {
            send(&mut client, at + 1, FULL)?;
            receive(&mut client)?;
        }
        Script::Switch => {
            let plugin = b"\xfemysql_native_password\0";
            send(&mut client, at + 1, &[plugin, &OTHER_NONCE[..], b"\0"].concat())?;
            let response;
            (at, response) = receive(&mut client)?;
            is_right = holds(&response, NATIVE);
        }
    }
    let next = if script == Script::Switch { at + 1 } else { at + 2 };
    if !is_right {
        return send(&mut client, next, b"\xff\x15\x04#28000Access denied");
    }
    send(&mut client, next, OK)?;
    loop {
        let (at, statement) = receive(&mut client)?;
        // The first statement of a store: an error that the test recognises.
        let is_store = statement.starts_with(b"\x03SELECT VERSION()");
        send(&mut client, at + 1, if is_store { b"\xff\x57\x04#HY000logged in" } else { OK })?;
    }
}

fn holds(message: &[u8], hex: &str) -> bool {
    let shown: String = message.iter().map(|byte| format!("{byte:02x}")).collect();
    shown.contains(hex)
}

pub(super) fn send(client: &mut TcpStream, sequence: u8, message: &[u8]) -> io::Result<()> {
    let len = (message.len() as u32).to_le_bytes();
    client.write_all(&[&len[..3], &[sequence], message].concat())
}

pub(super) fn receive(client: &mut TcpStream) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 4];
    client.read_exact(&mut head)?;
    let mut message = vec![0; usize::from(head[0]) + 256 * usize::from(head[1])];
    client.read_exact(&mut message)?;
    Ok((head[3], message))
}

/// What a store says there.
fn refusal(address: SocketAddr, password: &str) -> String {
    let locks = Locks::open(&format!("mysql://me:{password}@{address}/app")).expect("a URL");
    let locks = locks.with(|_| Options::new().op_timeout(Duration::from_secs(5))).expect("options");
    said(&block_on(locks.ping()).expect_err("a script is no server"))
}

#[test]
fn passwords_are_proven_as_mysql_8_documents() {
    for script in [Script::Cached, Script::Switch] {
        let address = serve(script);
        let text = refusal(address, "word");
        assert!(text.contains("logged in (1111)"), "{text}");
        let text = refusal(address, "sword");
        assert!(text.contains("Access denied (1045)"), "{text}");
    }
}

#[test]
fn a_password_is_not_sent_in_the_clear() {
    let text = refusal(serve(Script::Uncached), "word");
    assert!(text.contains("for TLS, add ?sslmode=verify-full to the URL"), "{text}");
}
