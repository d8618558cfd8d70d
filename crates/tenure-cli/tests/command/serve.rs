//! `tenure serve`: metrics, JSON and the page, by HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::Value;

use crate::env::{Running, TestEnv};

/// Starts it at a free port; returns its address too.
fn serve(env: &TestEnv, options: &[&str]) -> (Running, String) {
    let running =
        env.start(env.tenure([&["serve", "--listen", "127.0.0.1:0", "--every", "50ms"], options].concat()));
    running.eventually("it listens", || running.stdout().ends_with('\n'));
    let said = running.stdout();
    let at = said.trim().strip_prefix("listening at http://").expect("an address").trim_end_matches('/');
    (running, at.to_owned())
}

/// The status, the headers and the body of an answer.
fn ask(at: &str, line: &str, host: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(at).expect("a connection");
    write!(stream, "{line} HTTP/1.1\r\nHost: {host}\r\n\r\n").expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, head.to_owned(), body.to_owned())
}

fn get(at: &str, path: &str) -> String {
    let (status, _, body) = ask(at, &format!("GET {path}"), at);
    assert_eq!(status, 200, "{path}: {body}");
    body
}

#[test]
fn metrics_and_json_tell_the_locks_their_waiters_and_their_history() {
    let env = TestEnv::new();
    let held = env.start_script(&["--fair", "--ttl", "1h"], "queue", "READY; exec sleep 100");
    let waiter = env.start(env.tenure_run_command(["--fair", "queue", "--", "sleep", "100"]));
    let (server, at) = serve(&env, &[]);
    let has = |line: &str| get(&at, "/metrics").lines().any(|one| one == line);
    server.eventually("all is told", || has("tenure_lock_waiters{lock=\"queue\"} 1"));
    for line in ["tenure_up 1", "tenure_locks{kind=\"fair mutex\"} 1", "tenure_handoffs_total 0"] {
        assert!(has(line), "{line}: {}", get(&at, "/metrics"));
    }
    // Each line is a comment, or a name with a number.
    for line in get(&at, "/metrics").lines().filter(|line| !line.starts_with("# ")) {
        let (name, value) = line.rsplit_once(' ').expect("a value");
        assert!(name.starts_with("tenure_") && value.parse::<f64>().is_ok(), "{line}");
    }
    held.signal(Signal::TERM);
    held.wait().exits_with(143);
    server.eventually("the hand-over is shown", || has("tenure_handoffs_total 1"));
    let told: Value = serde_json::from_str(&get(&at, "/locks.json")).expect("JSON");
    let lock = &told["locks"][0];
    assert_eq!((&lock["name"], &lock["waiting"]), (&"queue".into(), &0.into()), "{told}");
    assert_eq!(lock["history"].as_array().map(Vec::len), Some(2), "{told}");
    drop(waiter);
    server.signal(Signal::TERM);
    server.wait().exits_with(143).says_nothing();
}

#[test]
fn it_is_read_only_for_this_machine_and_its_page_loads_nothing() {
    let env = TestEnv::new();
    let _held = env.start_script(&[], "x", "READY; exec sleep 100");
    let (_server, at) = serve(&env, &[]);
    let port = at.rsplit(':').next().expect("a port");
    let page = get(&at, "/");
    for loads in ["http:", "https:", "<link", "src=", "innerHTML", "@import"] {
        assert!(!page.contains(loads), "{loads}");
    }
    let (_, head, _) = ask(&at, "GET /", &at);
    assert!(head.to_ascii_lowercase().contains("content-security-policy: default-src 'none'"), "{head}");
    for method in ["POST", "DELETE", "PUT"] {
        assert_eq!(ask(&at, &format!("{method} /locks.json"), &at).0, 405, "{method}");
    }
    assert_eq!(ask(&at, "GET /other", &at).0, 404);
    assert_eq!(ask(&at, "GET /metrics", &format!("localhost:{port}")).0, 200);
    assert_eq!(ask(&at, "GET /metrics", &format!("evil.example:{port}")).0, 403);
    env.run(env.tenure(["serve", "--listen", &at])).exits_with(125).says(&at);
    env.run(env.tenure(["serve", "--listen", "everywhere"])).exits_with(64).says("--listen");
}

#[test]
fn a_store_that_is_away_is_told_and_asked_again() {
    let env = TestEnv::new();
    let _held = env.start_script(&["--ttl", "1h"], "x", "READY; exec sleep 100");
    let (server, at) = serve(&env, &[]);
    let has = |line: &str| get(&at, "/metrics").lines().any(|one| one == line);
    server.eventually("it is up", || has("tenure_up 1"));
    let guard = env.silence_the_store();
    server.eventually("it is away", || has("tenure_up 0"));
    drop(guard);
    server.eventually("it is back", || has("tenure_up 1"));
}

/// What a browser shows at this address after the page's scripts have run.
fn browser(env: &TestEnv, url: &str) -> String {
    let mut browser = env.program("chromium-headless-shell");
    browser.env("HOME", env.path("browser"));
    browser.args(["--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom"]);
    browser.arg(format!("--user-data-dir={}", env.path("browser").display())).arg(url);
    let shown = env.run(browser);
    assert_eq!(shown.code(), Some(0), "scripts/install-test-needs installs it: {shown:?}");
    shown.stdout
}

#[test]
fn a_browser_shows_the_locks_and_the_history_of_the_one_in_the_address() {
    let env = TestEnv::new();
    let markup = "<b>deploy</b> 50%";
    let _held = env.start_script(&["--ttl", "1h"], markup, "READY; exec sleep 100");
    let queue = env.start_script(&["--fair", "--ttl", "1h"], "queue", "READY; exec sleep 100");
    let _waiter = env.start(env.tenure_run_command(["--fair", "queue", "--", "sleep", "100"]));
    let (server, at) = serve(&env, &[]);
    server.eventually("both are told", || {
        let told = get(&at, "/metrics");
        told.contains("tenure_lock_waiters{lock=\"queue\"} 1") && told.contains("50%")
    });
    let page = browser(&env, &format!("http://{at}/"));
    assert!(page.contains(": 2 locks, 0.0 hand-overs/s</p>"), "{page}");
    // A name is text, and a link to its history.
    let name = "<td><a href=\"#%3Cb%3Edeploy%3C%2Fb%3E%2050%25\">&lt;b&gt;deploy&lt;/b&gt; 50%</a></td>";
    assert!(page.contains(&format!("{name}<td>mutex</td><td>-</td><td>0</td>")), "{page}");
    assert!(
        page.contains("<a href=\"#queue\">queue</a></td><td>fair mutex</td><td>-</td><td>1</td>"),
        "{page}"
    );
    assert!(page.contains("<meter max=") && page.contains("<td>alice@"), "{page}");
    assert!(page.contains("<h2 id=\"title\"></h2>") && !page.contains("<li>"), "{page}");

    queue.signal(Signal::TERM);
    queue.wait().exits_with(143);
    server.eventually("the hand-over is shown", || get(&at, "/metrics").contains("tenure_handoffs_total 1"));
    let page = browser(&env, &format!("http://{at}/#queue"));
    assert!(page.contains("<h2 id=\"title\">History of queue</h2>"), "{page}");
    assert_eq!(page.matches("<li>").count(), 2, "{page}");
    let page = browser(&env, &format!("http://{at}/#%3Cb%3Edeploy%3C%2Fb%3E%2050%25"));
    assert!(page.contains("History of &lt;b&gt;deploy&lt;/b&gt; 50%</h2>"), "{page}");
    assert_eq!(page.matches("<li>").count(), 1, "{page}");

    let guard = env.silence_the_store();
    server.eventually("it is away", || get(&at, "/metrics").lines().any(|line| line == "tenure_up 0"));
    let page = browser(&env, &format!("http://{at}/"));
    assert!(page.contains("<p id=\"state\" class=\"trouble\">") && page.contains("queue</a>"), "{page}");
    drop(guard);
}
