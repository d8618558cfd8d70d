//! Servers that send garbage after the login: one clear line for each, and bounded memory.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use tenure::internals::Driver;
use tenure::internals::store::mysql::server;
use tenure::internals::store::rows::SoleVerb;

use super::login::{OK, greet, receive, send};
use super::rows::{change, new_row};
use crate::common::session_of;
use crate::postgres::on;
use crate::redis_hostile::{alone, memory};

/// A reply to a statement.
#[derive(Clone, Copy)]
struct Hostile {
    what: &'static str,
    begins: &'static [&'static [u8]],
    /// The packet that is sent again and again.
    goes_on: fn() -> Vec<u8>,
    says: &'static str,
    /// How much more memory it may cost than a proper reply.
    memory_kib: u64,
}

/// Less than a packet of 16 MB, and with the copies of the servers, which are in this process.
const SHORT: u64 = 8 * 1024;
const PACKET: u64 = 96 * 1024;
/// The rows of a query, and twice the longest while it grows.
const ROWS: u64 = 512 * 1024;

const HUGE: &[u8] = &[0xfe, 0, 0, 0, 0, 0, 0, 0, 0x10];
const END: &[u8] = &[0xfe, 0, 0, 0, 0];
const MALFORMED: &str = "does not follow the MySQL protocol";
const TOO_LONG: &str = "its reply is too long for any request";

const ALL: [Hostile; 5] = [
    garbage("2^60 columns", &[HUGE], || b"c".repeat(100), MALFORMED, SHORT),
    garbage("a value of 2^60 bytes", &[&[1], b"c", END], || HUGE.to_vec(), MALFORMED, SHORT),
    garbage("packets of 16 MB", &[], || vec![b'x'; 0xff_ffff], TOO_LONG, PACKET),
    garbage("a row of packets of 16 MB", &[&[1], b"c", END], || vec![b'x'; 0xff_ffff], TOO_LONG, ROWS),
    garbage("endless rows", &[&[1], b"c", END], || vec![0xfa; 0xfb], "has not answered about itself", ROWS),
];

const fn garbage(
    what: &'static str,
    begins: &'static [&'static [u8]],
    goes_on: fn() -> Vec<u8>,
    says: &'static str,
    memory_kib: u64,
) -> Hostile {
    Hostile { what, begins, goes_on, says, memory_kib }
}

/// Serves connections. A polite server sends garbage only in reply to an acquire.
fn serve(hostile: Hostile, is_polite: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            // Until the client closes the connection.
            thread::spawn(move || play(client, hostile, is_polite));
        }
    });
    address
}

fn play(mut client: TcpStream, hostile: Hostile, is_polite: bool) -> io::Result<()> {
    greet(&mut client)?;
    let (at, _) = receive(&mut client)?;
    send(&mut client, at + 1, OK)?;
    loop {
        let (_, statement) = receive(&mut client)?;
        let mut reply: Vec<&[u8]> = match &statement {
            sql if sql.starts_with(b"\x03SET") => vec![OK],
            sql if is_polite && sql.starts_with(b"\x03SELECT") => about_itself(),
            _ => hostile.begins.to_vec(),
        };
        let is_hostile = reply == hostile.begins;
        let piece = (hostile.goes_on)();
        let mut sequence = 1;
        loop {
            for packet in reply.drain(..) {
                send(&mut client, sequence, packet)?;
                sequence = sequence.wrapping_add(1);
            }
            if !is_hostile {
                break;
            }
            reply.push(&piece);
        }
    }
}

/// What a server tells that is asked about itself.
fn about_itself() -> Vec<&'static [u8]> {
    let row = b"\x068.0.36\x010\x011\x010\x011\x0816777216\x010\x012\x011";
    [&[&[9][..]][..], &[&b"c"[..]; 9], &[END, row, END]].concat()
}

/// MariaDB with innodb_snapshot_isolation, and any server whose table of row locks is full.
#[test]
fn an_error_that_undoes_a_transaction_takes_back_the_rows_before_it() {
    for code in [1020_u16, 1206, 1213] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || undo(listener.accept()?.0, code));
        let driver = Driver::start().expect("a thread");
        on(async {
            let url = format!("mysql://me@{address}/app");
            let server = server(&url, Arc::clone(&driver) as _).expect("a URL");
            let (session, _) = session_of(&*server).await.expect("a connection");
            let outcome = session.write(&["a", "b"].map(new_row)).await;
            assert!(outcome.expect("an answer").written.is_empty(), "{code}");
        });
        driver.stop();
    }
}

/// Answers that each first change is made, and that the server undoes each second one with its transaction.
fn undo(mut client: TcpStream, code: u16) -> io::Result<()> {
    greet(&mut client)?;
    let (at, _) = receive(&mut client)?;
    send(&mut client, at + 1, OK)?;
    let (error, mut is_second) = ([&[0xff], &code.to_le_bytes()[..], b"#HY000it is undone"].concat(), false);
    loop {
        let (_, statement) = receive(&mut client)?;
        let reply: Vec<&[u8]> = match &statement[1..] {
            sql if sql.starts_with(b"SELECT") => about_itself(),
            sql if [&b"SET"[..], b"BEGIN", b"COMMIT"].iter().any(|word| sql.starts_with(word)) => vec![OK],
            _ if std::mem::replace(&mut is_second, true) => vec![&error],
            _ => vec![&[0, 1, 7, 2, 0, 0, 0]],
        };
        for (at, packet) in (1..).zip(reply) {
            send(&mut client, at, packet)?;
        }
    }
}

/// What a store says there.
fn ask(hostile: Hostile, is_polite: bool) -> String {
    let (driver, mut said) = (Driver::start().expect("a thread"), None);
    let url = format!("mysql://me@{}/app", serve(hostile, is_polite));
    on(async {
        let server = server(&url, Arc::clone(&driver) as _).expect("a URL");
        said = Some(match session_of(&*server).await {
            Err(failure) => failure.to_string(),
            Ok((session, _)) => {
                let acquired = change(&session, SoleVerb::Acquire, "x").await;
                acquired.expect_err("garbage is no grant").failure.to_string()
            }
        });
    });
    driver.stop();
    said.expect("a line")
}

#[test]
fn garbage_after_the_login_costs_one_clear_line_and_bounded_memory() {
    alone("mysql::hostile::garbage_after_the_login_costs_one_clear_line_and_bounded_memory", || {
        ask(ALL[0], true);
        for hostile in ALL {
            // An acquire has no timeout here.
            let ends = hostile.what != "endless rows";
            for is_polite in [false, true].into_iter().filter(|is_polite| ends || !is_polite) {
                let (said, more) = memory(|| ask(hostile, is_polite));
                println!("{}: {more} KiB: {said}", hostile.what);
                assert!(said.contains(hostile.says) && !said.contains('\n'), "{}: {said:?}", hostile.what);
                assert!(more <= hostile.memory_kib, "{}: {more} KiB", hostile.what);
            }
        }
    });
}
