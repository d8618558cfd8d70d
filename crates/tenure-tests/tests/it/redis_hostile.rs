//! Servers that send garbage: one clear line for each, and bounded memory.
#![expect(clippy::disallowed_methods, reason = "tests against real servers measure real time")]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use tenure_testkit::asker::Asker;

/// How much more memory a hostile server may cost than an idle one.
const MEMORY_KIB: u64 = 2 * 1024;
const WITHIN: Duration = Duration::from_millis(400);

/// The garbage: a beginning, and an endless continuation.
#[derive(Clone, Copy)]
struct Hostile {
    what: &'static str,
    begins: &'static str,
    /// Repetitions of the beginning.
    times: usize,
    goes_on: &'static str,
    pause: Duration,
    /// The client's error in response to its login, and to its request.
    at_login: &'static str,
    at_request: &'static str,
}

const ALL: [Hostile; 9] = [
    garbage("a bulk of 2 GB", "$2147483648\r\n", 1, "x", "too long", "too long"),
    garbage("200,000 levels", "*1\r\n", 1, "*1\r\n", "too deep", "too deep"),
    garbage("an endless line", "+", 1, "x", "a line without an end", "a line without an end"),
    garbage(
        "a list of two billion",
        "*2000000000\r\n",
        1,
        ":1\r\n",
        "list that is too long",
        "list that is too long",
    ),
    garbage("50 replies for one", "+OK\r\n", 50, "", "an unsolicited reply", "neither list nor string"),
    garbage("pushes", ">1\r\n+x\r\n", 1, ">1\r\n+x\r\n", "without subscriptions", "without subscriptions"),
    Hostile {
        pause: Duration::from_millis(500),
        ..garbage("a byte each half second", "$99\r\n", 1, "x", "has not answered the login", "in time")
    },
    garbage(
        "HTTP",
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        1,
        "",
        "does not speak the Redis protocol",
        "begins no value",
    ),
    garbage(
        "TLS",
        "\u{15}\u{3}\u{3}\0\u{2}\u{2}F",
        1,
        "",
        "does not speak the Redis protocol",
        "begins no value",
    ),
];

const fn garbage(
    what: &'static str,
    begins: &'static str,
    times: usize,
    goes_on: &'static str,
    at_login: &'static str,
    at_request: &'static str,
) -> Hostile {
    Hostile { what, begins, times, goes_on, pause: Duration::ZERO, at_login, at_request }
}

/// Serves connections. A `polite` server sends garbage only in reply to scripts.
fn serve(hostile: Hostile, polite: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.expect("a connection");
            thread::spawn(move || {
                // Until the client closes the connection.
                let _ = play(stream, hostile, polite);
            });
        }
    });
    address
}

fn play(mut stream: TcpStream, hostile: Hostile, polite: bool) -> std::io::Result<()> {
    let mut bytes = [0; 8 * 1024];
    loop {
        let read = stream.read(&mut bytes)?;
        let asked = String::from_utf8_lossy(&bytes[..read]);
        if read == 0 {
            return Ok(());
        }
        if !polite || asked.contains("EVAL") {
            break;
        }
        let commands = asked.lines().filter(|line| line.starts_with('*')).count();
        let reply = if commands == 1 { "+OK\r\n" } else { "-ERR no such right\r\n" };
        stream.write_all(reply.repeat(commands).as_bytes())?;
    }
    stream.write_all(hostile.begins.repeat(hostile.times).as_bytes())?;
    let piece =
        if hostile.pause.is_zero() { hostile.goes_on.repeat(1024) } else { hostile.goes_on.to_owned() };
    while !piece.is_empty() {
        thread::sleep(hostile.pause);
        stream.write_all(piece.as_bytes())?;
    }
    stream.read(&mut bytes).map(drop)
}

/// A line of this process's status, in KiB.
fn kib(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find(|line| line.starts_with(name)).expect("a line about memory");
    line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number")
}

fn ask(hostile: Hostile, polite: bool) -> String {
    let asker = Asker::new(&format!("redis://{}", serve(hostile, polite))).within(WITHIN);
    let said = asker.acquire("x").expect_err("nothing is granted").to_string();
    asker.driver.stop();
    said
}

/// Runs a test in a separate process, whose memory can be measured.
pub(crate) fn alone(name: &str, test: impl FnOnce()) {
    if std::env::var_os("TENURE_HOSTILE").is_some() {
        return test();
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", name, "--nocapture"]).env("TENURE_HOSTILE", "1");
    let output = command.output().expect("a process");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
}

/// How much more memory this process has meanwhile, at most, in KiB.
pub(crate) fn memory<T>(ask: impl FnOnce() -> T) -> (T, u64) {
    // Resets the peak.
    fs::write("/proc/self/clear_refs", "5").expect("Linux lets a process do that");
    let idle = kib("VmRSS:");
    let said = ask();
    (said, kib("VmHWM:").saturating_sub(idle))
}

#[test]
fn garbage_costs_one_clear_line_and_no_memory() {
    alone("redis_hostile::garbage_costs_one_clear_line_and_no_memory", || {
        let (warm, _) = (ask(ALL[0], true), ask(ALL[0], false));
        println!("{warm}");
        for (hostile, polite) in ALL.into_iter().flat_map(|hostile| [(hostile, false), (hostile, true)]) {
            let (said, more) = memory(|| ask(hostile, polite));
            let expected = if polite { hostile.at_request } else { hostile.at_login };
            println!("{}: {more} KiB: {said}", hostile.what);
            assert!(said.contains(expected) && !said.contains('\n'), "{}: {said:?}", hostile.what);
            assert!(more <= MEMORY_KIB, "{}: {more} KiB", hostile.what);
        }
    });
}
