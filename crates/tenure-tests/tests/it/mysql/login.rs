//! Logins of MySQL, on a server that does what its documentation says. `scripts/matrix` runs MySQL itself.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rsa::pkcs8::DecodePrivateKey;
use rsa::{Oaep, PrivateKey};
use sha1::Sha1;

use tenure::{Locks, Options, block_on};

use crate::common::said;

const NONCE: &[u8; 20] = b"abcdefghijklmnopqrst";
const OTHER_NONCE: &[u8; 20] = b"tsrqponmlkjihgfedcba";
/// `SHA256(p) XOR SHA256(SHA256(SHA256(p)) + NONCE)` of the password `word`, by Python's hashlib.
const SHA2: &str = "c876be776514aa42bf140a673bfe4fb34b84eb0e405f48171f74c510ba394d04";
/// `SHA1(p) XOR SHA1(OTHER_NONCE + SHA1(SHA1(p)))` of the same.
const NATIVE: &str = "cc81847ea83bf866cf00317c544c5b99622b0f7e";
const KEY: &str = include_str!("login_key.pub.pem");
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
    /// The account uses this plugin.
    Switch(&'static str),
}

/// A server for one connection after the other. The messages of each client, apart from the first.
fn serve(script: Script) -> (SocketAddr, mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (seen, messages) = mpsc::channel();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let _ = log_in(client, script, &seen);
        }
    });
    (address, messages)
}

pub(crate) fn greet(client: &mut TcpStream) -> io::Result<()> {
    let mut greeting = b"\x0a8.0.36\0\x01\0\0\0".to_vec();
    greeting.extend(&NONCE[..8]);
    // Without TLS: all other capabilities that count here.
    greeting.extend(b"\0\xff\xf7\x2d\x02\0\xff\xc1\x15\0\0\0\0\0\0\0\0\0\0");
    greeting.extend([&NONCE[8..], b"\0caching_sha2_password\0"].concat());
    send(client, 0, &greeting)
}

/// The next message of a client.
fn next(client: &mut TcpStream, seen: &mpsc::Sender<Vec<u8>>) -> io::Result<(u8, Vec<u8>)> {
    let (at, message) = receive(client)?;
    seen.send(message.clone()).expect("a test that reads");
    Ok((at, message))
}

/// Sends the key, and returns whether the reply is the password.
fn exchange(
    client: &mut TcpStream,
    at: u8,
    seen: &mpsc::Sender<Vec<u8>>,
    nonce: &[u8],
) -> io::Result<(u8, bool)> {
    send(client, at + 1, &[&[1], KEY.as_bytes()].concat())?;
    let (at, secret) = next(client, seen)?;
    Ok((at, opens(&secret, nonce)))
}

fn log_in(mut client: TcpStream, script: Script, seen: &mpsc::Sender<Vec<u8>>) -> io::Result<()> {
    greet(&mut client)?;
    let (at, response) = receive(&mut client)?;
    let (at, is_right) = match script {
        Script::Cached => {
            send(&mut client, at + 1, FAST)?;
            (at + 1, holds(&response, SHA2))
        }
        Script::Uncached => {
            send(&mut client, at + 1, FULL)?;
            let (at, asked) = next(&mut client, seen)?;
            if asked != [2] {
                return Err(io::ErrorKind::InvalidData.into());
            }
            exchange(&mut client, at, seen, NONCE)?
        }
        Script::Switch(plugin) => {
            let asked = [b"\xfe", plugin.as_bytes(), b"\0", &OTHER_NONCE[..], b"\0"].concat();
            send(&mut client, at + 1, &asked)?;
            match next(&mut client, seen)? {
                (at, asked) if asked == [1] => exchange(&mut client, at, seen, OTHER_NONCE)?,
                (at, proof) => (at, holds(&proof, NATIVE) || opens(&proof, OTHER_NONCE)),
            }
        }
    };
    if !is_right {
        return send(&mut client, at + 1, b"\xff\x15\x04#28000Access denied");
    }
    send(&mut client, at + 1, OK)?;
    loop {
        let (at, statement) = receive(&mut client)?;
        // The first statement of a store: an error that the test recognises.
        let is_store = statement.starts_with(b"\x03SELECT VERSION()");
        send(&mut client, at + 1, if is_store { b"\xff\x57\x04#HY000logged in" } else { OK })?;
    }
}

/// Whether this is the password `word`, encrypted for the server's key.
fn opens(secret: &[u8], nonce: &[u8]) -> bool {
    let key = PrivateKey::from_pkcs8_pem(include_str!("login_key.pem")).expect("a key");
    let opened = key.decrypt(Oaep::<Sha1>::new(), secret).unwrap_or_default();
    let password: Vec<u8> =
        opened.iter().zip(nonce.iter().cycle()).map(|(byte, nonce)| byte ^ nonce).collect();
    password == b"word\0"
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
fn refusal(address: SocketAddr, password: &str, terms: &str) -> String {
    let locks = Locks::open(&format!("mysql://me:{password}@{address}/app{terms}")).expect("a URL");
    let locks = locks.with(|_| Options::new().op_timeout(Duration::from_secs(5))).expect("options");
    said(&block_on(locks.ping()).expect_err("a script is no server"))
}

#[test]
fn passwords_are_proven_as_mysql_8_documents() {
    for script in [Script::Cached, Script::Switch("mysql_native_password")] {
        let (address, _messages) = serve(script);
        let text = refusal(address, "word", "");
        assert!(text.contains("logged in (1111)"), "{text}");
        let text = refusal(address, "sword", "");
        assert!(text.contains("Access denied (1045)"), "{text}");
    }
}

#[test]
fn a_password_without_tls_is_encrypted_with_the_key_of_the_server() {
    let file = std::env::temp_dir().join(format!("tenure-mysql-{}.pem", std::process::id()));
    // As MySQL writes it.
    std::fs::write(&file, format!("{KEY}\0")).expect("a file");
    let named = format!("?server-public-key={}", file.display());
    for (script, terms, messages) in [
        (Script::Uncached, "?allowPublicKeyRetrieval=true", 2),
        (Script::Switch("sha256_password"), "?allowPublicKeyRetrieval=true", 2),
        (Script::Switch("sha256_password"), &*named, 1),
    ] {
        let (address, seen) = serve(script);
        let text = refusal(address, "word", terms);
        assert!(text.contains("logged in (1111)"), "{terms}: {text}");
        assert_eq!(seen.try_iter().count(), messages, "{terms}");
        let text = refusal(address, "sword", terms);
        assert!(text.contains("Access denied (1045)"), "{terms}: {text}");
    }
    std::fs::remove_file(&file).expect("our file");
}

#[test]
fn a_password_is_not_sent_in_the_clear() {
    for (script, what) in [
        (
            Script::Uncached,
            "server-public-key=FILE with the server's RSA key, or allowPublicKeyRetrieval=true",
        ),
        (Script::Switch("sha256_password"), "sslmode=require"),
        (Script::Switch("mysql_clear_password"), "add sslmode=verify-full"),
        (Script::Switch("client_ed25519"), "got client_ed25519, expected caching_sha2_password"),
    ] {
        let (address, seen) = serve(script);
        let text = refusal(address, "word", "");
        assert!(text.contains(what) && !text.contains("word@"), "{text}");
        assert_eq!(seen.try_iter().count(), 0, "{what}");
    }
}

#[test]
fn a_server_whose_tls_somebody_hides_gets_no_login() {
    for (mode, is_refused) in
        [("require", true), ("verify-ca", true), ("verify-full", true), ("prefer", false)]
    {
        let (address, _messages) = serve(Script::Cached);
        let text = refusal(address, "word", &format!("?sslmode={mode}"));
        let expected = if is_refused { "it does not use TLS" } else { "logged in" };
        assert!(text.contains(expected), "{mode}: {text}");
    }
}
