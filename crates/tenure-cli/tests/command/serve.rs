//! `tenure serve`: metrics, JSON and the page, by HTTP.

use std::collections::VecDeque;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tenure_testkit::servers::{Config, Server};

use crate::env::{Running, TestEnv, ms, now};

/// Starts it on a free port; also returns its address.
pub(crate) fn serve(env: &TestEnv, options: &[&str]) -> (Running, String) {
    let running =
        env.start(env.tenure([&["serve", "--listen", "127.0.0.1:0", "--every", "50ms"], options].concat()));
    running.eventually("it listens", || running.stdout().ends_with('\n'));
    let said = running.stdout();
    let at = said.trim().strip_prefix("listening at http://").expect("an address").trim_end_matches('/');
    (running, at.to_owned())
}

/// The status, the headers and the body of a response.
fn ask(at: &str, line: &str, host: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(at).expect("a connection");
    write!(stream, "{line} HTTP/1.1\r\nHost: {host}\r\n\r\n").expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, head.to_owned(), body.to_owned())
}

pub(crate) fn get(at: &str, path: &str) -> String {
    let (status, _, body) = ask(at, &format!("GET {path}"), at);
    assert_eq!(status, 200, "{path}: {body}");
    body
}

#[test]
fn clients_that_ask_nothing_keep_no_others_waiting() {
    let env = TestEnv::shared();
    let (_server, at) = serve(&env, &[]);
    let idle: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(&at).expect("a connection")).collect();
    env.within(ms(5_000), || {
        let metrics = get(&at, "/metrics");
        assert!(metrics.contains("tenure_locks{kind=\"mutex\"} 0"), "{metrics}");
        env.run(env.tenure(["--version"]))
    });
    drop(idle);
}

#[test]
fn metrics_and_json_tell_the_locks_their_waiters_and_their_history() {
    let env = TestEnv::shared();
    let held = env.start_script(&["--fair", "--ttl", "1h"], "queue", "READY; exec sleep 100");
    let waiter = env.start(env.tenure_run_command(["--fair", "queue", "--", "sleep", "100"]));
    let (server, at) = serve(&env, &[]);
    let has = |line: &str| get(&at, "/metrics").lines().any(|one| one == line);
    server.eventually("all is shown", || has("tenure_lock_waiters{lock=\"queue\"} 1"));
    for line in ["tenure_up 1", "tenure_locks{kind=\"fair mutex\"} 1", "tenure_observed_handovers_total 0"] {
        assert!(has(line), "{line}: {}", get(&at, "/metrics"));
    }
    // Each line is a comment, or a name with a number, and the book has each name.
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../book/operate/monitoring.md");
    let page = fs::read_to_string(page).expect("the page");
    for line in get(&at, "/metrics").lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            assert!(name.starts_with("tenure_") && value.parse::<f64>().is_ok(), "{line}");
            continue;
        };
        let name = comment.split(' ').nth(1).expect("a name");
        assert!(page.contains(&format!("`{name}`")), "monitoring.md lacks {name}");
    }
    held.signal(Signal::TERM);
    held.wait().exits_with(143);
    server.eventually("the hand-over is shown", || has("tenure_observed_handovers_total 1"));
    let told: Value = serde_json::from_str(&get(&at, "/locks.json")).expect("JSON");
    let lock = &told["locks"][0];
    assert_eq!((&lock["name"], &lock["waiting"]), (&"queue".into(), &0.into()), "{told}");
    let holds = lock["holds"].as_array().expect("holds");
    assert_eq!(
        (holds.len(), &holds[0]["end"], holds[1]["end"].is_string()),
        (2, &Value::Null, true),
        "{told}"
    );
    assert_eq!(lock["waits"].as_array().and_then(|waits| waits[0]["waiting"].as_u64()), Some(1), "{told}");
    let after = told["looked_ms"].as_u64().expect("a time");
    let news: Value = serde_json::from_str(&get(&at, &format!("/locks.json?after={after}"))).expect("JSON");
    assert_eq!(news["locks"][0]["holds"], Value::Array(vec![]), "{news}");
    drop(waiter);
    server.signal(Signal::TERM);
    server.wait().exits_with(143).says_nothing();
}

#[test]
fn it_is_read_only_for_this_machine_and_its_page_loads_nothing() {
    let env = TestEnv::shared();
    let _held = env.start_script(&[], "x", "READY; exec sleep 100");
    let (_server, at) = serve(&env, &[]);
    let port = at.rsplit(':').next().expect("a port");
    let parts =
        ["/", "/page.css", "/page.js"].map(|path| get(&at, path).replace("http://www.w3.org/2000/svg", ""));
    for loads in ["http:", "https:", "\"//", "url(", "@import", "innerHTML", "eval(", "style=", "onclick="] {
        let found = parts.iter().flat_map(|part| part.lines()).find(|line| line.contains(loads));
        assert_eq!(found, None, "{loads}");
    }
    let (_, head, _) = ask(&at, "GET /", &at);
    let policy = "content-security-policy: default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';";
    assert!(head.to_ascii_lowercase().contains(policy) && !head.contains("unsafe"), "{head}");
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
    let env = TestEnv::shared();
    let _held = env.start_script(&["--ttl", "1h"], "x", "READY; exec sleep 100");
    let (server, at) = serve(&env, &[]);
    let has = |line: &str| get(&at, "/metrics").lines().any(|one| one == line);
    server.eventually("it is up", || has("tenure_up 1"));
    let guard = env.silence_the_store();
    server.eventually("it is away", || has("tenure_up 0"));
    drop(guard);
    server.eventually("it is back", || has("tenure_up 1"));
}

#[test]
fn a_store_that_hangs_is_told_at_once_and_asked_soon_after() {
    let (env, store) = (TestEnv::new(), Server::start());
    let url = store.url();
    env.tenure_run(["--store", &url, "x", "true"]).exits_with(0);
    let (server, at) = serve(&env, &["--store", &url]);
    let has = |line: &str| get(&at, "/metrics").lines().any(|one| one == line);
    server.eventually("it is up", || has("tenure_up 1"));
    store.stop();
    let stopped = now();
    server.eventually("it is away", || has("tenure_up 0"));
    let told: Value = serde_json::from_str(&get(&at, "/locks.json")).expect("JSON");
    assert!(told["trouble"].as_str().is_some_and(|why| why.contains("no answer")), "{told}");
    let list = env.start(env.tenure(["list", "--store", &url, "--watch=100ms"]));
    list.eventually("it hangs for a while", || now() - stopped > Duration::from_secs(5));
    store.cont();
    server.eventually("it is back", || has("tenure_up 1"));
    // Not fifty times as long as the store was silent.
    let looked =
        || serde_json::from_str::<Value>(&get(&at, "/locks.json")).expect("JSON")["looked_ms"].as_u64();
    let first = looked();
    server.eventually("it is asked again", || looked() > first);
    let told: Value = serde_json::from_str(&get(&at, "/locks.json")).expect("JSON");
    assert!(told["every_ms"].as_u64() <= Some(1_000), "{told}");
}

#[test]
fn the_versions_that_are_connected_are_shown_or_said_to_be_unknown() {
    let (env, store) = (TestEnv::new(), Server::start());
    let mut later = TcpStream::connect(store.address()).expect("a connection");
    later.write_all(b"CLIENT SETNAME tenure-99.0.0\r\n").expect("a request");
    later.read_exact(&mut [0; 5]).expect("an answer");
    let (server, at) = serve(&env, &["--store", &store.url()]);
    let has = |line: &str| get(&at, "/metrics").lines().any(|one| one == line);
    server.eventually("both are shown", || has("tenure_connections{version=\"99.0.0\"} 1"));
    let told: Value = serde_json::from_str(&get(&at, "/locks.json")).expect("JSON");
    assert!(told["versions"]["connected"][tenure::VERSION].as_u64() >= Some(1), "{told}");
    assert_eq!(told["versions"]["others"], Value::from(vec!["99.0.0"]), "{told}");
    assert_shows(&browser(&env, &format!("http://{at}/")), &["99.0.0 (1)", "class=\"trouble\""]);
    let locks = format!("file:{}", env.path("locks").display());
    env.tenure_run(["--store", &locks, "x", "true"]).exits_with(0);
    let (_server, at) = serve(&env, &["--store", &locks]);
    assert_shows(&browser(&env, &format!("http://{at}/")), &["versions connected: unknown"]);
    assert!(!get(&at, "/metrics").contains("tenure_connections{"));
}

/// A browser that opens this address.
fn chromium(env: &TestEnv, options: &[&str], url: &str) -> Command {
    let mut browser = env.program("chromium-headless-shell");
    browser.env("HOME", env.path("browser")).args(["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
    browser.arg(format!("--user-data-dir={}", env.path("browser").display())).args(options).arg(url);
    browser
}

/// The page at this address after its scripts have run.
fn browser(env: &TestEnv, url: &str) -> String {
    let shown = env.run(chromium(env, &["--virtual-time-budget=3000", "--dump-dom"], url));
    assert_eq!(shown.code(), Some(0), "scripts/install-test-needs installs it: {shown:?}");
    shown.stdout
}

fn lock_told(at: &str, name: &str) -> Value {
    let told: Value = serde_json::from_str(&get(at, "/locks.json")).expect("JSON");
    told["locks"]
        .as_array()
        .and_then(|all| all.iter().find(|lock| lock["name"] == name).cloned())
        .unwrap_or_default()
}

#[track_caller]
fn assert_shows(page: &str, words: &[&str]) {
    for words in words {
        assert!(page.contains(words), "{words}\n{page}");
    }
}

#[test]
fn the_page_shows_holds_waits_hand_overs_and_losses() {
    let env = TestEnv::shared();
    let queue = env.start_script(&["--fair", "--ttl", "1h"], "queue", "READY; exec sleep 100");
    let _waiter = env.start(env.tenure_run_command(["--fair", "queue", "--", "sleep", "100"]));
    let (server, at) = serve(&env, &[]);
    let page_of = |key: &str| browser(&env, &format!("http://{at}/#{key}"));
    server.eventually("the waiter is shown", || lock_told(&at, "queue")["waiting"] == 1);
    let page = page_of("");
    assert_shows(&page, &[">live, every ", "href=\"#lock%2Fqueue\"", ">1 waiting<", "longest ", ">alice@"]);
    assert_shows(&page, &["In 10 minutes 1 hold, 0 hand-overs, 0 leases expired, at most 1 waiting."]);
    let page = page_of("lock%2Fqueue");
    assert_shows(
        &page,
        &["<h2>queue</h2>", "Held by 1<", "Waiting, next first: 1<", ">tenure stop -- queue</code>"],
    );

    queue.signal(Signal::TERM);
    queue.wait().exits_with(143);
    server.eventually("the hand-over is shown", || {
        get(&at, "/metrics").contains("tenure_observed_handovers_total 1")
    });
    assert_shows(
        &page_of("lock%2Fqueue"),
        &["In 10 minutes 2 holds", "Nobody waits<", "<span class=\"end\">holds</span>"],
    );

    // Not renewed.
    let forget = || env.run(env.tenure(["acquire", "--ttl", "6s", "forgotten"])).exits_with(0);
    forget();
    server.eventually("it expires", || {
        let end = lock_told(&at, "forgotten")["holds"][0]["end"].clone();
        // On a busy machine there may be no refresh in the second half of the lease.
        if end == "released" {
            forget();
        }
        end == "lease expired"
    });
    assert_shows(
        &page_of(""),
        &["<dd class=\"lost\">", " expired, at most 0 waiting.", "<li class=\"row free\">"],
    );
    assert_shows(&page_of("lock%2Fforgotten"), &["<h2>forgotten</h2>", "free for ", "✕ lease expired<"]);

    let guard = env.silence_the_store();
    server.eventually("it is away", || get(&at, "/metrics").lines().any(|line| line == "tenure_up 0"));
    assert_shows(&page_of(""), &["<p id=\"state\" role=\"status\" class=\"trouble\">", "#lock%2Fqueue"]);
    drop(guard);
}

/// The commands on a page of one lock.
fn commands(page: &str) -> Vec<String> {
    let codes = page.split("<code>").skip(1).map(|rest| rest.split("</code>").next().unwrap_or_default());
    codes.map(|code| code.replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&")).collect()
}

#[test]
fn the_commands_of_the_page_reach_its_store_and_end_no_later_hold() {
    let server = Server::start_with(Config::new().password("hush"));
    let address = server.address();
    let (configured, flagged) = (TestEnv::shared(), TestEnv::new());
    let store = format!("redis://:hush@{address}/1");
    let cases = [
        (&configured, &[][..], vec![], false),
        (&flagged, &["--store", &store][..], vec![format!("redis://{address}/1")], true),
    ];
    for (env, flags, expected, lacks_login) in cases {
        let options = [flags, &["--ttl", "1h"]].concat();
        let held = env.start_script(&options, "x y", "READY; exec sleep 100");
        let (serving, at) = serve(env, flags);
        let told = || serde_json::from_str::<Value>(&get(&at, "/locks.json")).expect("JSON");
        serving.eventually("it is shown", || lock_told(&at, "x y")["held"] == 1);
        let all = told();
        let named = all["flags"].as_array().expect("flags").iter().filter(|flag| *flag != "--store");
        let named: Vec<_> = named.filter_map(Value::as_str).collect();
        assert_eq!(
            (named, &all["lacks_login"]),
            (expected.iter().map(String::as_str).collect(), &lacks_login.into())
        );
        let page = browser(env, &format!("http://{at}/#lock%2Fx%20y"));
        assert!(!page.contains("hush") && page.contains("Add the login") == lacks_login, "{page}");
        let commands = commands(&page);
        let token = lock_told(&at, "x y")["holders"][0]["token"].to_string();
        assert!(commands[2].contains(&format!("--force --token {token} ")), "{commands:?}");
        let command = commands[2].replace("tenure ", &format!("{} ", crate::env::BINARY));
        let command = command.replace("redis://", "redis://:hush@");
        let mut shell = env.program("sh");
        shell.args(["-c", &command]);
        env.run(shell).exits_with(0);
        held.wait().exits_with(79);
    }
}

#[test]
fn names_and_labels_are_text_on_the_page_and_words_in_its_commands() {
    let env = TestEnv::shared();
    let markup = "\"><script>document.title='taken'</script>";
    let _held = env.start_script(&["--ttl", "1h", "--label", markup], markup, "READY; exec sleep 100");
    let _odd = env.start_script(&["--ttl", "1h"], "it's\n50%", "READY; exec sleep 100");
    let (server, at) = serve(&env, &[]);
    server.eventually("both are shown", || get(&at, "/metrics").contains("tenure_locks{kind=\"mutex\"} 2"));
    let address = "#lock%2F%22%3E%3Cscript%3Edocument.title%3D'taken'%3C%2Fscript%3E";
    let text = "\"&gt;&lt;script&gt;document.title='taken'&lt;/script&gt;";
    let page = browser(&env, &format!("http://{at}/"));
    assert_shows(
        &page,
        &["<title>tenure</title>", "title=\"&quot;&gt;&lt;script", &format!("\"{text}\"</span>"), address],
    );
    // Long names differ at their ends.
    assert_shows(&page, &["=</span><span class=\"tail\">'taken'&lt;/script&gt;</span></a>"]);
    let page = browser(&env, &format!("http://{at}/{address}"));
    let command = "-- '\"&gt;&lt;script&gt;document.title='\\''taken'\\''&lt;/script&gt;'</code>";
    assert_shows(&page, &["<title>tenure</title>", &format!("<h2>{text}</h2>"), command]);
    let page = browser(&env, &format!("http://{at}/#lock%2Fit's%0A50%25"));
    assert_shows(&page, &["<h2>it's\n50%</h2>", "-- $'it\\'s\\u000a50%'</code>"]);
}

#[test]
fn jobs_and_elections_that_cannot_be_read_are_unknown_and_not_absent() {
    let env = TestEnv::shared();
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "app", "on", ">pw", "allkeys", "allchannels", "+@all"]);
    let url = server.url().replace("redis://", "redis://app:pw@");
    let script = "touch leads; exec sleep 100";
    let leader = env.start(env.tenure(["elect", "--store", &server.url(), "api", "-c", script]));
    leader.eventually("it leads", || env.path("leads").exists());
    env.tenure_run(["--store", &server.url(), "--once-per", "1h", "report", "true"]).exits_with(0);
    let asked = ["--job", "report", "--job", "never", "--election", "nobody", "--store", &url];
    let (serving, at) = serve(&env, &asked);
    let has = |line: &str| get(&at, "/metrics").lines().any(|known| known == line);
    serving.eventually("they are read", || has("tenure_uses_up 1"));
    for line in [
        "tenure_job_recorded{name=\"report\"} 1",
        "tenure_job_recorded{name=\"never\"} 0",
        "tenure_election_has_leader{election=\"api\"} 1",
        "tenure_election_has_leader{election=\"nobody\"} 0",
    ] {
        assert!(has(line), "{line}: {}", get(&at, "/metrics"));
    }

    // Locks of other names only.
    server.command(&["ACL", "SETUSER", "app", "resetkeys", "~orders*"]);
    serving.eventually("they are unknown", || has("tenure_uses_up 0"));
    let metrics = get(&at, "/metrics");
    assert!(has("tenure_up 1") && !metrics.contains("tenure_job_recorded{"), "{metrics}");
    assert!(!metrics.contains("tenure_election_has_leader{"), "{metrics}");
    let told: Value = serde_json::from_str(&get(&at, "/locks.json")).expect("JSON");
    let led = told["elections"].as_array().expect("elections").iter().find(|one| one["name"] == "api");
    // Nobody knows that the term has ended.
    assert_eq!(led.expect("the election")["holds"][0]["to_ms"], Value::Null, "{told}");
    assert!(told["uses_trouble"].as_str().expect("a reason").contains("NOPERM"), "{told}");
    assert_shows(&browser(&env, &format!("http://{at}/#job%2Freport")), &["<h2>report</h2>", "unknown"]);
    let status = |more: &[&str]| {
        env.run(env.tenure([&["status", "--store", &url], more, &["orders"]].concat())).exits_with(1).stdout
    };
    assert!(status(&[]).contains("election and job of this name: unknown: "), "{}", status(&[]));
    let told: Value = serde_json::from_str(&status(&["--json"])).expect("JSON");
    assert!(told["uses_trouble"].as_str().expect("a reason").contains("NOPERM"), "{told}");

    server.command(&["ACL", "SETUSER", "app", "allkeys"]);
    serving.eventually("they are read again", || has("tenure_job_recorded{name=\"report\"} 1"));
}

#[test]
fn leaders_and_jobs_are_shown_with_their_next_window() {
    let env = TestEnv::shared();
    let elect = ["elect", "--payload", "host-1:80", "api", "--", "sleep", "100"];
    let _leader = env.start(env.tenure(elect));
    env.run(env.tenure(["run", "--once-per", "1h", "report", "--", "true"])).exits_with(0);
    env.run(env.tenure(["run", "--once-per", "20h", "broken", "-c", "exit 3"])).exits_with(3);
    // Found in the store, except for one that has not run.
    let (server, at) = serve(&env, &["--job", "other"]);
    let told = || serde_json::from_str::<Value>(&get(&at, "/locks.json")).expect("JSON");
    server.eventually("the leader is shown", || told()["elections"][0]["held"] == 1);
    assert_eq!(
        (&told()["jobs"][0]["runs"][0]["code"], &told()["jobs"][1]["last"], &told()["jobs"][2]["name"]),
        (&3.into(), &Value::Null, &"report".into())
    );
    let page = browser(&env, &format!("http://{at}/"));
    assert_shows(&page, &["No lock is held", "<main id=\"uses\" hidden=\"\">"]);
    let page = browser(&env, &format!("http://{at}/#uses"));
    assert_shows(
        &page,
        &["#election%2Fapi", ", host-1:80</span>", "✓ done", "next window, from ", "no run is recorded"],
    );
    // A failure opens its window again.
    assert_shows(
        &page,
        &["✕ failed", ": exit status: 3", "now</span><small class=\"cut\">its window is open again<"],
    );
    let page = browser(&env, &format!("http://{at}/#job%2Fbroken"));
    let facts = ["<dt>Cause</dt><dd>exit status: 3</dd>", "<dt>Last success</dt><dd>none is known</dd>"];
    assert_shows(
        &page,
        &[&facts[..], &["now: its window is open again", ">tenure jobs -- broken<", ", code 3</span>"]]
            .concat(),
    );
    let page = browser(&env, &format!("http://{at}/#job%2Freport"));
    assert_shows(&page, &["<h2>report</h2>", "✓ done", " ago</dd><dt>May run</dt><dd>in "]);
    let page = browser(&env, &format!("http://{at}/#election%2Fapi"));
    assert_shows(&page, &[">Leader<", "host-1:80, token ", "tenure stop --election -- api"]);
}

#[test]
fn a_history_survives_a_restart() {
    let env = TestEnv::shared();
    let held = env.start_script(&["--ttl", "1h"], "x", "READY; exec sleep 100");
    let state = env.path("state").display().to_string();
    let histories = |at: &str| lock_told(at, "x")["holds"].as_array().expect("holds").len();
    let (first, at) = serve(&env, &["--state", &state]);
    first.eventually("it is shown", || histories(&at) == 1);
    held.signal(Signal::TERM);
    held.wait().exits_with(143);
    first.eventually("its end is shown", || lock_told(&at, "x")["holds"][0]["end"].is_string());
    let told = lock_told(&at, "x")["holds"].clone();
    first.signal(Signal::TERM);
    first.wait().exits_with(143).says_nothing();
    let (_second, at) = serve(&env, &["--state", &state]);
    assert_eq!(lock_told(&at, "x")["holds"], told);
    // Of another store, or something else.
    let options = ["serve", "--listen", "127.0.0.1:0", "--state", &state];
    env.run(env.tenure([&options[..], &["--prefix", "other:"]].concat()))
        .exits_with(64)
        .says("is the history of");
    fs::write(&state, "x").expect("a file");
    env.run(env.tenure(options)).exits_with(64).says("remove it");
    let nowhere = env.path("no/state").display().to_string();
    env.run(env.tenure(["serve", "--listen", "127.0.0.1:0", "--state", &nowhere]))
        .exits_with(125)
        .says("cannot write");
}

#[test]
fn a_browser_draws_the_page_in_light_and_dark_wide_and_narrow() {
    let env = TestEnv::shared();
    let _held: Vec<_> = ["deploy", "report", "transcode"]
        .map(|name| env.start_script(&["--fair"], name, "READY; exec sleep 100"))
        .into();
    let _waiter = env.start(env.tenure_run_command(["--fair", "report", "--", "sleep", "100"]));
    let (server, at) = serve(&env, &[]);
    server.eventually("the waiter is shown", || lock_told(&at, "report")["waiting"] == 1);
    let mut pictures = Vec::new();
    for (name, key, size, scheme) in [
        ("light", "", "1280,720", 1),
        ("dark", "", "1280,720", 0),
        ("narrow", "", "400,900", 1),
        ("lock", "lock%2Freport", "1280,900", 0),
    ] {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("serve-{name}.png"));
        let _ = fs::remove_file(&file);
        let options = [
            "--virtual-time-budget=3000",
            &format!("--window-size={size}"),
            &format!("--blink-settings=preferredColorScheme={scheme}"),
            &format!("--screenshot={}", file.display()),
        ];
        let drawn = env.run(chromium(&env, &options, &format!("http://{at}/#{key}")));
        assert_eq!(drawn.code(), Some(0), "{drawn:?}");
        // The console reports a refused style or script.
        assert!(!drawn.stderr.contains("Refused"), "{drawn:?}");
        pictures.push(fs::read(file).expect("a picture"));
    }
    assert!(pictures.iter().all(|picture| picture.starts_with(b"\x89PNG") && picture.len() > 10_000));
    assert_ne!(pictures[0], pictures[1], "the scheme of the system changes the page");
}

/// A process and its descendants with their CPU time, which Linux counts in hundredths of a second.
fn family(root: Pid) -> Vec<(Pid, Duration)> {
    let all: Vec<(Pid, Pid, Duration)> = fs::read_dir("/proc")
        .expect("processes")
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let pid = Pid::from_raw(path.file_name()?.to_str()?.parse().ok()?)?;
            let stat = fs::read_to_string(path.join("stat")).ok()?;
            let fields: Vec<_> = stat.rsplit_once(") ")?.1.split(' ').collect();
            let ticks = fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?;
            Some((pid, Pid::from_raw(fields[1].parse().ok()?)?, Duration::from_millis(ticks * 10)))
        })
        .collect();
    let mut family = Vec::new();
    let mut next = vec![root];
    while let Some(one) = next.pop() {
        next.extend(all.iter().filter(|(_, parent, _)| *parent == one).map(|(pid, ..)| *pid));
        family.extend(all.iter().filter(|(pid, ..)| *pid == one).map(|(pid, _, time)| (*pid, *time)));
    }
    family
}

fn processor_time(root: Pid) -> Duration {
    family(root).into_iter().map(|(_, time)| time).sum()
}

#[test]
#[ignore = "measures for three minutes"]
fn the_page_of_500_locks_with_50_changes_a_second_costs_little() {
    let (env, store) = (TestEnv::new(), Server::start());
    let locks = tenure::Locks::open(&store.url()).expect("a store");
    let held = |number: usize| {
        let mutex = locks.mutex(format!("job:{number:03}")).expect("a name");
        tenure::block_on(mutex.lock()).expect("a lock")
    };
    let mut guards: VecDeque<_> = (0..500).map(|number| (number, held(number))).collect();
    let mut change = || {
        let (number, guard) = guards.pop_front().expect("a guard");
        tenure::block_on(guard.release()).expect("it is held");
        guards.push_back((number, held(number)));
    };
    let mut command = env.tenure(["serve", "--listen", "127.0.0.1:0", "--store", &store.url()]);
    command.args(["--every", "5s"]);
    let server = env.start(command);
    server.eventually("it listens", || server.stdout().ends_with('\n'));
    let url = server.stdout().trim().replace("listening at ", "");
    let page = env.start(chromium(&env, &["--remote-debugging-port=0", "--window-size=1400,1000"], &url));
    // The first minute fills the time lines.
    let mut measured = Vec::new();
    for seconds in [60, 120] {
        let before = [page.pid(), server.pid()].map(processor_time);
        let start = now();
        for number in 1..=seconds * 50 {
            change();
            sleep((start + Duration::from_millis(20) * number).saturating_sub(now()));
        }
        let took = now() - start;
        let after = [page.pid(), server.pid()].map(processor_time);
        let share = |at: usize| (after[at] - before[at]).as_secs_f64() / took.as_secs_f64() * 100.0;
        measured.push((seconds * 50, took, share(0), share(1)));
    }
    // The browser is started by a script, which it would outlive.
    for (pid, _) in family(page.pid()) {
        let _ = kill_process(pid, Signal::KILL);
    }
    eprintln!("changes, time, page in % of a core, server in % of a core: {measured:?}");
    let (_, _, of_page, of_server) = measured[1];
    assert!(of_page > 0.0 && of_page < 5.0 && of_server < 5.0, "{measured:?}");
}
