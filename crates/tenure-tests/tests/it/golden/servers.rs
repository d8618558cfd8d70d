//! What servers held when their formats became number 1: later versions read and continue it, and write the same.
//!
//! `golden/1/STORE.txt` of the test kit has, for each state, when it was made in µs since 1970, what the server held
//! as a line of JSON for each key or row, and what a listing told. With `TENURE_WRITE_GOLDEN=1` the tests write it
//! anew, which is right only together with a new number.

use std::collections::BTreeSet;

use super::zookeeper::Nodes as ZooKeeperNodes;
use super::*;
use crate::quorum::nodes::Nodes as Members;
use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use tenure_testkit::servers::{Ensemble, Etcd, MariaDb, Postgres, Server, eventually};

/// States of files alone: what they are seen by, other stores keep elsewhere.
const OF_FILES: [&str; 2] = ["a mutex with waiters", "an upgradeable reader that waits to become the writer"];
const DAY_MS: u64 = 86_400_000;
/// The columns of the tables of locks. PostgreSQL has `awaited` too.
const COLUMNS: [&str; 11] = [
    "name",
    "whole",
    "version",
    "kind",
    "value",
    "ends",
    "fence",
    "serial",
    "record",
    "record_at",
    "record_ends",
];

/// A server whose data can be read and written without the library.
pub(super) trait Raw {
    /// Whether tokens are in its data. They are revisions of the server otherwise.
    const TOKENS: bool = true;

    fn start() -> Self;

    /// Whether it can be in this state.
    fn has(_state: &str) -> bool {
        true
    }

    /// The states that it can be in.
    fn numbers() -> impl Iterator<Item = usize> {
        let is_here = |state: &str| !OF_FILES.contains(&state) && Self::has(state);
        (0..STATES.len()).filter(move |number| is_here(STATES[*number]))
    }

    /// The URL of a store for the state of this number, which is empty.
    fn url(&self, number: usize) -> String;

    fn read(&self, number: usize) -> Vec<Value>;

    /// Into the store that [`url`](Self::url) names, which a client has used.
    fn write(&self, number: usize, line: &Value);
}

impl Raw for Server {
    fn start() -> Self {
        Self::start()
    }

    fn url(&self, _: usize) -> String {
        self.command(&["FLUSHALL"]);
        self.url()
    }

    fn read(&self, _: usize) -> Vec<Value> {
        let texts = |words: &[&str]| -> Vec<String> {
            match self.command(words) {
                list if words[0] == "GET" => vec![list.text().to_owned()],
                list => list.items().iter().map(|item| item.text().to_owned()).collect(),
            }
        };
        let mut keys = texts(&["KEYS", "*"]);
        keys.sort();
        let line = |key: String| {
            let kind = self.command(&["TYPE", &key]).text().to_owned();
            let value = match kind.as_str() {
                "string" => texts(&["GET", &key]),
                "hash" => texts(&["HGETALL", &key]),
                _ => texts(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]),
            };
            let ttl = u64::try_from(self.command(&["PTTL", &key]).int()).ok();
            let days = ttl.map(|ms| (ms + DAY_MS / 2) / DAY_MS);
            json!({ "key": key, "type": kind, "value": value, "days": days })
        };
        keys.into_iter().map(line).collect()
    }

    fn write(&self, _: usize, line: &Value) {
        let key = line["key"].as_str().expect("a key");
        let value: Vec<&str> =
            line["value"].as_array().expect("a value").iter().filter_map(Value::as_str).collect();
        let mut words = match line["type"].as_str() {
            Some("string") => vec!["SET", key],
            Some("hash") => vec!["HSET", key],
            _ => vec!["ZADD", key],
        };
        match line["type"] == "zset" {
            true => words.extend(value.chunks(2).flat_map(|pair| [pair[1], pair[0]])),
            false => words.extend(value),
        }
        self.command(&words);
        if let Some(days) = line["days"].as_u64() {
            self.command(&["PEXPIRE", key, &(days * DAY_MS + DAY_MS).to_string()]);
        }
    }
}

/// Rows as both SQL servers have them: `run` runs a statement, `json` is a function that makes an object, and `text`
/// one that makes text of bytes.
fn rows(run: impl Fn(&str) -> String, table: &str, json: &str, text: [&str; 2]) -> Vec<Value> {
    let [before, after] = text;
    let columns = COLUMNS.map(|name| match name {
        "name" | "whole" | "version" | "kind" | "value" | "record" => {
            format!("'{name}', {before}{name}{after}")
        }
        _ => format!("'{name}', {name}"),
    });
    let listed = run(&format!("SELECT {json}({}) FROM {table} ORDER BY name", columns.join(", ")));
    let read = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| hex(line));
    // Rows of connections, which end with them.
    listed
        .lines()
        .map(read)
        .filter(|line: &Value| !line["name"].as_str().is_some_and(|name| name.starts_with("\\!")))
        .collect()
}

/// JSON that was printed as hexadecimal digits.
fn hex(line: &str) -> Value {
    let (digits, _) = line.as_bytes().as_chunks::<2>();
    let byte =
        |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("digits");
    serde_json::from_slice(&digits.iter().map(byte).collect::<Vec<u8>>()).expect("JSON")
}

/// Writes such a row. `bytes` makes bytes of a text.
fn insert(run: impl Fn(&str) -> String, number: usize, line: &Value, bytes: [&str; 2]) {
    let table = format!("golden{number}.tenure_lock");
    if line["name"] == "" {
        run(&format!("DELETE FROM {table}"));
    }
    let value = |name: &str| match &line[name] {
        Value::Null => "NULL".to_owned(),
        Value::String(text) if name == "record" => {
            format!("{}'{}'{}", bytes[0], text.replace('\'', "''"), bytes[1])
        }
        Value::String(text) => format!("'{}'", text.replace('\'', "''")),
        number => number.to_string(),
    };
    run(&format!("INSERT INTO {table} ({}) VALUES ({})", COLUMNS.join(", "), COLUMNS.map(value).join(", ")));
}

impl Raw for Postgres {
    fn start() -> Self {
        Self::start()
    }

    fn url(&self, number: usize) -> String {
        self.url(&format!("golden{number}"))
    }

    fn read(&self, number: usize) -> Vec<Value> {
        let table = format!("golden{number}.tenure_lock");
        let record = |line: Value| match line["record"].as_str().and_then(|record| record.strip_prefix("\\x"))
        {
            Some(digits) => {
                let text =
                    self.run(&format!("SELECT to_json(convert_from(decode('{digits}', 'hex'), 'UTF8'))"));
                let mut line = line.clone();
                line["record"] = serde_json::from_str(&text).expect("JSON");
                line
            }
            None => line,
        };
        rows(|sql| self.run(sql), &table, "json_build_object", ["", ""]).into_iter().map(record).collect()
    }

    fn write(&self, number: usize, line: &Value) {
        insert(|sql| self.run(sql), number, line, ["convert_to(", ", 'UTF8')"]);
    }
}

impl Raw for MariaDb {
    fn start() -> Self {
        Self::start()
    }

    fn url(&self, number: usize) -> String {
        self.url(&format!("golden{number}"))
    }

    fn read(&self, number: usize) -> Vec<Value> {
        let run = |sql: &str| {
            self.run(&sql.replacen("JSON_OBJECT", "HEX(JSON_OBJECT", 1).replacen(") FROM", ")) FROM", 1))
        };
        rows(run, &format!("golden{number}.tenure_lock"), "JSON_OBJECT", ["CONVERT(", " USING utf8mb4)"])
    }

    fn write(&self, number: usize, line: &Value) {
        insert(|sql| self.run(&sql.replace('\\', "\\\\")), number, line, ["", ""]);
    }
}

/// A quorum of three servers, which hold the same.
impl Raw for Members {
    fn has(state: &str) -> bool {
        state.contains("a mutex") && state != "a mutex without a token" || state == "a detached mutex"
    }

    fn start() -> Self {
        Self::new(3)
    }

    fn url(&self, number: usize) -> String {
        self.iter().for_each(|server| drop(Raw::url(server, number)));
        Self::url(self)
    }

    /// A request is answered by two of the three, and the last may be later.
    fn read(&self, number: usize) -> Vec<Value> {
        let mut held = Vec::new();
        eventually("all hold the same", Duration::from_secs(20), || {
            held = self[0].read(number);
            self.iter().all(|server| server.read(number) == held)
        });
        held
    }

    fn write(&self, number: usize, line: &Value) {
        self.iter().for_each(|server| server.write(number, line));
    }
}

impl Raw for Etcd {
    const TOKENS: bool = false;

    fn has(state: &str) -> bool {
        !state.contains("cached")
    }

    fn start() -> Self {
        Self::start()
    }

    fn url(&self, _: usize) -> String {
        let all = json!({ "key": BASE64.encode([0]), "range_end": BASE64.encode([0]) });
        self.post(0, "kv/deleterange", &all.to_string()).expect("a reply");
        Ensemble::url(self)
    }

    fn read(&self, _: usize) -> Vec<Value> {
        let all = json!({ "key": BASE64.encode([0]), "range_end": BASE64.encode([0]) });
        let reply = json(&self.post(0, "kv/range", &all.to_string()).expect("a reply"));
        let text = |value: &Value| {
            let bytes = BASE64.decode(value.as_str().unwrap_or_default()).expect("base64");
            String::from_utf8(bytes).expect("text")
        };
        let line = |pair: &Value| json!({ "key": text(&pair["key"]), "value": text(&pair["value"]) });
        reply["kvs"].as_array().into_iter().flatten().map(line).collect()
    }

    fn write(&self, _: usize, line: &Value) {
        let text = |name: &str| BASE64.encode(line[name].as_str().expect("text"));
        let put = json!({ "key": text("key"), "value": text("value") });
        self.post(0, "kv/put", &put.to_string()).expect("a reply");
    }
}

pub(super) struct State {
    pub(super) name: String,
    made_us: u64,
    pub(super) held: Vec<String>,
    pub(super) listed: Vec<String>,
}

impl State {
    fn make(server: &impl Raw, number: usize) -> Self {
        let (name, url) = (STATES[number], server.url(number));
        let (_kept, locks) = states::make(name, &url);
        let made_us = unix_us();
        let held = server.read(number).iter().map(Value::to_string).collect();
        let listed = block_on(list(&locks)).expect("a list");
        let listed = listed.iter().map(|status| shown(status).to_string()).collect();
        Self { name: name.to_owned(), made_us, held, listed }
    }

    pub(super) fn all<S: Raw>(store: &str) -> Vec<Self> {
        let (mut all, text) = (Vec::<Self>::new(), fs::read_to_string(path(store)).expect("golden data"));
        for line in text.lines() {
            let (word, rest) = line.split_once(' ').expect("a word");
            match (word, all.last_mut()) {
                ("state", _) => {
                    let (made_us, name) = rest.split_once(' ').expect("a time");
                    let made_us = made_us.parse().expect("a time");
                    all.push(Self { name: name.to_owned(), made_us, held: Vec::new(), listed: Vec::new() });
                }
                ("held", Some(state)) => state.held.push(rest.to_owned()),
                ("told", Some(state)) => state.listed.push(rest.to_owned()),
                _ => panic!("not a line: {line}"),
            }
        }
        assert!(all.iter().map(|state| state.name.as_str()).eq(S::numbers().map(|number| STATES[number])));
        all
    }

    fn text(&self) -> String {
        let mut text = format!("state {} {}\n", self.made_us, self.name);
        self.held.iter().for_each(|line| text += &format!("held {line}\n"));
        self.listed.iter().for_each(|line| text += &format!("told {line}\n"));
        text
    }

    /// Without what differs from run to run.
    fn normal<S: Raw>(&self) -> Vec<String> {
        let told: Vec<Value> = self.listed.iter().map(|line| json(line)).collect();
        let holders = told.iter().flat_map(|status| status["holders"].as_array().expect("holders"));
        let tokens = holders.filter_map(|holder| holder["fence"].as_u64().filter(|_| S::TOKENS));
        let tokens: BTreeSet<u64> = tokens.collect();
        let all = told.iter().flat_map(|status| ["holders", "waiters"].map(|all| &status[all]));
        let all = all.flat_map(|all| all.as_array().expect("a list"));
        let mut owners: Vec<String> =
            all.filter_map(|one| one["owner"].as_str().map(str::to_owned)).collect();
        let is_time = |number: u64| {
            number.abs_diff(self.made_us) < 10 * YEAR_US
                || number.abs_diff(self.made_us / 1_000) < 10 * YEAR_US / 1_000
        };
        let mut normal = |word: &str| {
            if word.parse::<Owner>().is_ok() {
                let at = owners.iter().position(|known| known == word).unwrap_or_else(|| {
                    owners.push(word.to_owned());
                    owners.len() - 1
                });
                return format!("OWNER{at}");
            }
            let is_hex = word.bytes().all(|byte| byte.is_ascii_hexdigit());
            match whole(word).parse::<u64>() {
                Ok(number) if tokens.contains(&number) => {
                    format!("TOKEN{}", tokens.iter().position(|token| *token == number).expect("this one"))
                }
                // Weights of Redis. Counts of a read-write lock are below 2 to the 21st.
                Ok(number) if (WEIGHTS..WEIGHTS + (1 << 21)).contains(&number) => word.to_owned(),
                Ok(number) if number > 1 << 21 && is_time(number) => "TIME".to_owned(),
                // A lease, or the id of a client or of a hold, whose digits may all be decimal.
                Ok(number) if number > 1 << 21 => "NUMBER".to_owned(),
                _ if is_hex && (8..=16).contains(&word.len()) => "NUMBER".to_owned(),
                _ => word.to_owned(),
            }
        };
        let line = |line: &String| {
            let mut line = by_words(json(line), &mut normal);
            // A marker says the client's version.
            for (of, content) in [("key", "value"), ("path", "data")] {
                if line[of].as_str().is_some_and(|name| name.contains("lease/")) {
                    line[content] = "".into();
                }
            }
            // Places of waiters are in the order of their deadlines, which differs.
            if let Some(value) = line["value"].as_array_mut().filter(|value| value.len() > 2) {
                let mut pairs: Vec<_> =
                    value.chunks(2).map(|pair| [pair[0].to_string(), pair[1].to_string()]).collect();
                pairs.sort();
                *value = pairs.concat().into_iter().map(Value::from).collect();
            }
            let mut line = line.to_string();
            if !S::TOKENS && line.contains("/record/") {
                line = before_owners(&line);
            }
            match line.split_once(" v text NUMBER NUMBER ") {
                Some((before, after)) => {
                    let (_, after) = after.split_once(' ').expect("how long it took");
                    format!("{before} v text NUMBER NUMBER MS {after}")
                }
                None => line,
            }
        };
        self.held.iter().map(line).collect()
    }

    /// As if it had been made now: all its times, of which tokens are some, are later by as much.
    pub(super) fn of_now(&self) -> Self {
        let now_us = unix_us();
        let later_us = now_us - self.made_us;
        let mut moved = |word: &str| match (whole(word), whole(word).parse::<u64>()) {
            (us, Ok(number)) if us.len() == 16 && number < FUTURE => (number + later_us).to_string(),
            (ms, Ok(number)) if ms.len() == 13 => {
                word.replacen(ms, &(number + later_us / 1_000).to_string(), 1)
            }
            _ => word.to_owned(),
        };
        let mut all = |lines: &[String]| {
            lines.iter().map(|line| by_words(json(line), &mut moved).to_string()).collect()
        };
        Self { name: self.name.clone(), made_us: now_us, held: all(&self.held), listed: all(&self.listed) }
    }
}

const YEAR_US: u64 = 365 * 86_400_000_000;
/// What the scores of weights have in addition.
const WEIGHTS: u64 = 8_000_000_000_000_000;
/// Larger numbers are no times.
const FUTURE: u64 = 4_000_000_000_000_000;

pub(super) fn json(line: &str) -> Value {
    serde_json::from_str(line).expect("JSON")
}

/// The numbers before an owner in a record: a token, and in that of a job how often it was begun.
fn before_owners(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let is_owner = |at: usize| words.get(at).is_some_and(|word| word.starts_with("OWNER"));
    let is_number = |at: usize| words[at].bytes().all(|byte| byte.is_ascii_digit());
    let token = |at: usize| is_number(at) && (is_owner(at + 1) || is_owner(at + 2));
    (0..words.len()).map(|at| if token(at) { "TOKEN" } else { words[at] }).collect::<Vec<_>>().join(" ")
}

/// A number without its fraction, which is that of a client's marker.
fn whole(word: &str) -> &str {
    word.split_once('.').map_or(word, |(whole, _)| whole)
}

/// With other words, of which owners are some.
fn by_words(value: Value, replace: &mut impl FnMut(&str) -> String) -> Value {
    match value {
        Value::String(text) => text_by_words(&text, replace).into(),
        Value::Number(number) => {
            let text = replace(&number.to_string());
            text.parse::<u64>().map_or_else(|_| Value::String(text), Value::from)
        }
        Value::Array(all) => all.into_iter().map(|one| by_words(one, replace)).collect(),
        Value::Object(all) => all.into_iter().map(|(name, one)| (name, by_words(one, replace))).collect(),
        other => other,
    }
}

fn text_by_words(text: &str, replace: &mut impl FnMut(&str) -> String) -> String {
    let is_word = |char: char| char.is_ascii_alphanumeric() || "-_./:%@".contains(char);
    let mut replaced = String::new();
    for word in text.split_inclusive(|char| !is_word(char)) {
        let end = word.find(|char| !is_word(char)).unwrap_or(word.len());
        if word[..end].parse::<Owner>().is_ok() {
            replaced += &replace(&word[..end]);
        } else {
            for part in word[..end].split_inclusive([':', '/', '-']) {
                let number = part.trim_end_matches([':', '/', '-']);
                replaced += &part.replacen(number, &replace(number), 1);
            }
        }
        replaced += &word[end..];
    }
    replaced
}

fn is_written_as_before<S: Raw>(store: &str) {
    let server = S::start();
    if std::env::var_os("TENURE_WRITE_GOLDEN").is_some() {
        let text: String = S::numbers().map(|number| State::make(&server, number).text()).collect();
        return fs::write(path(store), text).expect("written");
    }
    for (number, golden) in S::numbers().zip(State::all::<S>(store)) {
        assert_eq!(State::make(&server, number).normal::<S>(), golden.normal::<S>(), "{}", golden.name);
    }
}

fn is_read_and_continued<S: Raw>(store: &str) {
    let server = S::start();
    for (number, golden) in State::all::<S>(store).into_iter().enumerate() {
        let golden = golden.of_now();
        let url = server.url(number);
        let locks = states::open(&url);
        block_on(locks.ping()).expect("a server"); // makes the table
        for line in &golden.held {
            server.write(number, &json(line));
        }
        block_on(go_on::<S>(&golden, &locks)).unwrap_or_else(|error| panic!("{}: {error}", golden.name));
    }
}

async fn go_on<S: Raw>(golden: &State, locks: &Locks) -> tenure::Result<()> {
    let state = golden.name.as_str();
    let statuses = list(locks).await?;
    let without_tokens = |mut status: Value| {
        let all = ["holders", "waiters"].map(|all| status[all].take());
        let without = |mut one: Value| {
            one.as_object_mut().expect("a holder").retain(|name, _| S::TOKENS || name != "fence");
            one
        };
        let all =
            all.map(|all| all.as_array().expect("a list").iter().cloned().map(without).collect::<Value>());
        [status["holders"], status["waiters"]] = all;
        status
    };
    let listed: Vec<_> = statuses.iter().map(|status| without_tokens(shown(status))).collect();
    assert_eq!(
        listed,
        golden.listed.iter().map(|line| without_tokens(json(line))).collect::<Vec<_>>(),
        "{state}"
    );
    read_uses(state, &golden.held.concat(), locks).await?;
    let mut last =
        statuses.iter().flat_map(|status| &status.holders).map(|holder| holder.fence).max().unwrap_or(0);
    for status in statuses {
        let name = status.name.as_str();
        if !status.holders.is_empty() {
            match async { locks.fair_mutex(name)?.try_lock().await }.await {
                Ok(guard) => assert!(guard.is_none(), "{state}"),
                Err(error) => assert!(error.is_mismatch() || error.is_unsupported(), "{state}: {error}"),
            }
        }
        while let Some(now) = locks.inspect(name).await?.filter(|now| !now.holders.is_empty()) {
            for one in now.holders.iter().chain(&now.waiters) {
                locks.force_release_owner(name, one.owner.as_ref().expect("an owner")).await?;
            }
        }
        let guard = match status.kind {
            Kind::Reentrant => locks.reentrant_mutex(name, &Owner::new("")?)?.try_lock().await?,
            Kind::Fair => locks.fair_mutex(name)?.try_lock().await?,
            Kind::Semaphore => locks.semaphore(name, status.permits.expect("permits"))?.try_acquire().await?,
            Kind::RwLock => locks.rwlock(name)?.try_write().await?.map(tenure::Guard::from),
            _ => locks.mutex(name)?.try_lock().await?,
        };
        let next = guard.expect(state).fence();
        assert!(next > last, "{state}: {next} after {last}");
        last = next;
    }
    Ok(())
}

#[test]
fn redis_is_written_as_before() {
    is_written_as_before::<Server>("redis");
}

#[test]
fn redis_of_before_is_read_and_continued() {
    is_read_and_continued::<Server>("redis");
}

#[test]
fn postgresql_is_written_as_before() {
    is_written_as_before::<Postgres>("postgresql");
}

#[test]
fn postgresql_of_before_is_read_and_continued() {
    is_read_and_continued::<Postgres>("postgresql");
}

#[test]
fn mysql_is_written_as_before() {
    is_written_as_before::<MariaDb>("mysql");
}

#[test]
fn mysql_of_before_is_read_and_continued() {
    is_read_and_continued::<MariaDb>("mysql");
}

#[test]
fn etcd_is_written_as_before() {
    is_written_as_before::<Etcd>("etcd");
}

#[test]
fn etcd_of_before_is_read_and_continued() {
    is_read_and_continued::<Etcd>("etcd");
}

#[test]
fn zookeeper_is_written_as_before() {
    is_written_as_before::<ZooKeeperNodes>("zookeeper");
}

#[test]
fn zookeeper_of_before_is_read_and_continued() {
    is_read_and_continued::<ZooKeeperNodes>("zookeeper");
}

#[test]
fn a_quorum_is_written_as_before() {
    is_written_as_before::<Members>("quorum");
}

#[test]
fn a_quorum_of_before_is_read_and_continued() {
    is_read_and_continued::<Members>("quorum");
}

/// A replication id, and the server's clock in ms since when the server has it.
#[test]
fn the_epoch_of_redis_is_written_and_read_as_before() {
    let server = Server::start();
    let locks = Locks::open(&format!("{}?restart-grace=30s", server.url())).expect("a store");
    let asked = || block_on(locks.mutex("m").expect("a name").try_lock()).expect("an answer");
    assert!(asked().is_none(), "a new server grants nothing");
    let id = server.info("replication")["master_replid"].clone();
    let epoch = server.command(&["GET", "tenure:epoch"]).text().to_owned();
    let since = epoch.strip_prefix(&format!("{id}:")).expect("its id").parse::<u64>().expect("a time");
    assert!(unix_us() / 1_000 - since < 60_000, "{epoch}");
    let days = server.command(&["PTTL", "tenure:epoch"]).int() as u64 / DAY_MS;
    assert!((15..=30).contains(&days), "{days}");
    server.command(&["SET", "tenure:epoch", &format!("{id}:{}", since - 31_000)]);
    assert!(asked().is_some(), "it has run for long");
}
