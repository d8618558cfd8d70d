//! Simulated servers beside real ones: statements in random order have the same results.
#![expect(clippy::disallowed_methods, reason = "a real server takes real time")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::{Connection, MySqlConnection};
use tenure::internals::protocol::record::Record;
use tenure::internals::protocol::{ExpiringValue, LockSpec, QueueSpec};
use tenure::internals::store::observe::Notes;
use tenure::internals::store::rows::{
    self, ChangeOutcome, ExpectedSession, LockKey, Row, RowChange, SessionCheck, SoleChange, SoleVerb,
    StatementError, StatementSession, WriteOutcome,
};
use tenure::internals::store::{mysql, postgres};
use tenure::internals::{Driver, Runtime};
use tenure::{LockName, Owner};
use tenure_testkit::setting;
use tenure_testkit::sim::rows::{Database, Mistake, Server, Transaction};
use tokio::sync::mpsc;
use tokio_postgres::Client;

use super::{SERVER, connect, on, schema};
use crate::common::session_of;
use crate::mysql as mariadb;

const NAMES: [&str; 4] = ["a", "b", "bb", "c"];
const OWNERS: [&str; 3] = [
    "o@h:1/00000000000000000000000000000000",
    "o@h:1/00000000000000000000000000000001",
    "o@h:1/00000000000000000000000000000002",
];
/// Rows of clients, and the name of a session that has ended.
const CLIENTS: [&str; 2] = ["\\!000000000a", "\\!000000000b"];
const GONE: &str = "tenure-0";
const LEASE_MS: i64 = 600_000;
const HOUR_US: i64 = 3_600_000_000;

/// A statement about the same rows on both servers.
#[derive(Clone, Debug)]
enum Ask {
    Change {
        verb: SoleVerb,
        changes: Vec<Sole>,
    },
    Read {
        names: Vec<usize>,
        with_records: bool,
    },
    Write {
        changes: Vec<Written>,
    },
    Await {
        names: Vec<usize>,
    },
    /// The row of a client names the session of the listening connection, or one that has ended.
    Name {
        client: usize,
        lives: bool,
    },
    Forget {
        client: usize,
        lives: bool,
    },
    List {
        prefix: &'static str,
        after: &'static str,
    },
    Sweep,
    CheckIn {
        name: usize,
        owner: usize,
    },
    CheckOut,
}

/// A change of a lock with at most one holder.
#[derive(Clone, Debug)]
struct Sole {
    name: usize,
    spec: LockSpec,
    owner: usize,
    ttl_ms: i64,
    before: Option<usize>,
    message: String,
}

#[derive(Clone, Debug)]
struct Written {
    name: usize,
    /// Based on the row as it was this many reads ago.
    seen: usize,
    ends_hold: bool,
    is_late: bool,
    /// A mutex, a fair mutex, or nothing; and its owner.
    lock: Option<(&'static str, usize)>,
    is_over: bool,
    /// Its token is two hours old.
    is_old: bool,
    record: Option<bool>,
    wake: &'static str,
    /// The client whose session it depends on, and the expectation: it lives, or has ended; or none.
    session: Option<(usize, Option<bool>)>,
}

/// A server, and what was read from it.
struct Side {
    session: Arc<dyn StatementSession>,
    listening: Arc<dyn StatementSession>,
    messages: mpsc::UnboundedReceiver<String>,
    /// All rows read, by name, newest last.
    seen: BTreeMap<String, Vec<Row>>,
    /// Tokens, and the serial numbers of each row, in the order of their first appearance.
    tokens: BTreeMap<i64, usize>,
    serials: BTreeMap<(String, i64), usize>,
    /// Open transactions, of the simulated server and of the real one.
    transaction: Option<Transaction>,
    is_open: bool,
    user: User,
}

enum User {
    Simulated(Server),
    Postgres(Client, String),
    Mysql(MySqlConnection, String),
}

impl Side {
    async fn new(server: &dyn rows::Server, user: User) -> Self {
        let (session, _) = session_of(server).await.expect("a server");
        let (listening, messages) = session_of(server).await.expect("a server");
        listening.listen().await.expect("it listens");
        let (seen, tokens, serials) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (transaction, is_open) = (None, false);
        Self { session, listening, messages, seen, tokens, serials, transaction, is_open, user }
    }

    /// A token, by the order of first appearance.
    fn token(&mut self, number: i64) -> String {
        let next = self.tokens.len();
        format!("t{}", self.tokens.entry(number).or_insert(next))
    }

    /// A row without the values that depend on the clock.
    fn shown(&mut self, row: &Row) -> String {
        let value = row.value.as_ref().map(|value| {
            let words = value.split_inclusive([' ', '\n', '#']).map(|word| {
                let (text, end) = word.split_at(word.trim_end_matches([' ', '\n', '#']).len());
                match text.parse::<i64>() {
                    Ok(number) if self.tokens.contains_key(&number) => self.token(number) + end,
                    Ok(number) if number > 1_000_000 => format!("later{end}"),
                    _ => word.to_owned(),
                }
            });
            words.collect::<String>()
        });
        let ends = row.ends_ms.filter(|_| row.version.is_some()).map(|ends| ends > row.clock_us / 1_000);
        let (fence, next) = (self.token(row.fence), self.serials.len());
        let serial = row.serial.map(|serial| *self.serials.entry((row.name.clone(), serial)).or_insert(next));
        let record =
            row.record.as_ref().map(|record| (record.bytes.clone(), record.at_us, record.ends_ms.is_some()));
        let Row { name, whole, version, kind, .. } = row;
        format!("{name} {whole:?} {version:?} {kind:?} {value:?} {ends:?} {fence} {serial:?} {record:?}")
    }

    fn client_key(&self, client: usize, lives: bool) -> LockKey {
        let session = if lives { self.listening.label() } else { GONE };
        LockKey { name: CLIENTS[client].into(), whole: Some(session.into()) }
    }

    fn change(&self, written: &Written) -> Option<(LockKey, RowChange)> {
        let key = key(written.name);
        let rows = self.seen.get(&key.name)?;
        let row = rows.iter().rev().nth(written.seen).or(rows.last())?;
        let now_ms = row.clock_us / 1_000;
        // Unique per row, even for rows read at the same time.
        let clock_us = row.clock_us + 1 + 1_000_000 * written.name as i64;
        let fence = if written.is_old { clock_us - 2 * HOUR_US } else { clock_us.max(row.fence + 1) };
        let ends_ms = match written.is_over || written.lock.is_none() {
            true => 1,
            false => now_ms + LEASE_MS,
        };
        let lock = written.lock.map(|(kind, owner)| match kind {
            "mutex" => (kind, format!("{}#{fence}", OWNERS[owner])),
            _ => (kind, format!("1 {fence}\n{fence} 1 {ends_ms} {}\n", OWNERS[owner])),
        });
        let value = Record { at_us: 17, value: Arc::from(&b"record"[..]) };
        let entry = |lives: bool| ExpiringValue {
            value: value.clone(),
            expires_ms: Some(if lives { (now_ms + LEASE_MS) as u64 } else { 1 }),
        };
        let change = RowChange {
            serial: row.serial,
            ends_hold: written.ends_hold,
            durable: !written.is_old,
            until_ms: if written.is_late { now_ms - 1 } else { now_ms + LEASE_MS } as u64,
            lock,
            ends_ms: ends_ms as u64,
            fence: fence as u64,
            record: written.record.map(|lives| Some(entry(lives)).filter(|_| !written.is_old)),
            wake: written
                .wake
                .lines()
                .map(|line| format!("{line} {}", key.name))
                .collect::<Vec<_>>()
                .join("\n"),
            sessions: written.session.iter().map(|(client, lives)| check(*client, *lives)).collect(),
            notes: Notes::default(),
        };
        Some((key, change))
    }

    /// The result of a statement, without the values that depend on the clock.
    #[expect(clippy::too_many_lines, reason = "a case for each statement")]
    async fn ask(&mut self, ask: &Ask) -> Result<String, StatementError> {
        let session = Arc::clone(&self.session);
        Ok(match ask {
            Ask::Change { verb, changes } => {
                let owner = |owner: usize| OWNERS[owner].parse::<Owner>().expect("an owner");
                let change = |sole: &Sole| SoleChange {
                    verb: *verb,
                    key: key(sole.name),
                    spec: sole.spec,
                    owner: owner(sole.owner),
                    hold: 1,
                    ttl_ms: sole.ttl_ms,
                    before: sole.before.map(owner),
                    message: sole.message.clone(),
                };
                let changes: Vec<SoleChange> = changes.iter().map(change).collect();
                let ChangeOutcome { tokens, failed } = session.change(&changes).await?;
                assert!(failed.is_empty(), "{failed:?}");
                let done = tokens.into_iter().map(|(name, token)| match verb {
                    // Not every server says the token of a hold that has ended.
                    SoleVerb::Release => (name, String::new()),
                    _ => (name, self.token(token)),
                });
                format!("{:?}", done.collect::<Vec<_>>())
            }
            Ask::Read { names, with_records } => {
                let names: Vec<String> = names.iter().map(|name| key(*name).name).collect();
                let mut rows = session.read(&names, *with_records).await?;
                rows.sort_by(|one, other| one.name.cmp(&other.name));
                let shown: Vec<String> = rows.iter().map(|row| self.shown(row)).collect();
                for row in rows {
                    self.seen.entry(row.name.clone()).or_default().push(row);
                }
                shown.join("\n")
            }
            Ask::Write { changes } => {
                let changes: Vec<_> = changes.iter().filter_map(|written| self.change(written)).collect();
                let WriteOutcome { written, refused, failed } = session.write(&changes).await?;
                assert!(failed.is_empty(), "{failed:?}");
                match refused.is_empty() {
                    true => format!("{written:?}"),
                    false => format!("{written:?} {refused:?}").replace(self.listening.label(), "ours"),
                }
            }
            Ask::Name { client, lives } => {
                let key = self.client_key(*client, *lives);
                format!("{:?}", session.note_listeners(&[key]).await?)
            }
            Ask::Forget { client, lives } => {
                let key = self.client_key(*client, *lives);
                format!("{:?}", session.forget_sessions(&[key]).await?)
            }
            Ask::Await { names } => {
                let keys: Vec<LockKey> = names.iter().map(|name| key(*name)).collect();
                format!("{:?}", session.note_listeners(&keys).await?)
            }
            Ask::List { prefix, after } => {
                let rows = session.list(prefix, after).await?;
                rows.iter().map(|row| self.shown(row)).collect::<Vec<_>>().join("\n")
            }
            Ask::Sweep => format!("{:?}", session.sweep("").await?),
            Ask::CheckIn { name, owner } => {
                let key = key(*name);
                let rows = session.read(std::slice::from_ref(&key.name), false).await?;
                let (fence, owner) = (rows[0].fence, OWNERS[*owner]);
                self.token(fence);
                self.is_open = match &mut self.user {
                    User::Simulated(simulated) => {
                        self.transaction = simulated.check_in(&key.name, owner, fence as u64);
                        self.transaction.is_some()
                    }
                    User::Mysql(client, database) => {
                        run(client, "BEGIN").await;
                        let (lock, by) = (LockName::new(&key.name), owner.parse::<Owner>());
                        let (lock, by) = (lock.expect("a name"), by.expect("an owner"));
                        let sql = tenure::mysql::check_sql(database, &lock, &by, fence as u64);
                        let is_held =
                            !sqlx::raw_sql(&sql).fetch_all(&mut *client).await.expect("rows").is_empty();
                        if !is_held {
                            run(client, "ROLLBACK").await;
                        }
                        is_held
                    }
                    User::Postgres(client, sql) => {
                        client.batch_execute("BEGIN").await.expect("a transaction");
                        let is_held = client.query(sql, &[&key.name, &owner, &fence]).await.is_ok();
                        if !is_held {
                            client.batch_execute("ROLLBACK").await.expect("an end");
                        }
                        is_held
                    }
                };
                self.is_open.to_string()
            }
            Ask::CheckOut => {
                self.transaction = None;
                match &mut self.user {
                    User::Postgres(client, _) => client.batch_execute("ROLLBACK").await.expect("an end"),
                    User::Mysql(client, _) => run(client, "ROLLBACK").await,
                    User::Simulated(_) => {}
                }
                self.is_open = false;
                String::new()
            }
        })
    }
}

fn check(client: usize, lives: Option<bool>) -> SessionCheck {
    let expects = match lives {
        Some(true) => ExpectedSession::Lives,
        Some(false) => ExpectedSession::Ended(GONE.into()),
        None => ExpectedSession::Any,
    };
    SessionCheck { client: CLIENTS[client].into(), expects }
}

async fn run(client: &mut MySqlConnection, sql: &str) {
    sqlx::raw_sql(sql).execute(client).await.expect("an answer");
}

fn key(name: usize) -> LockKey {
    LockKey { name: NAMES[name].into(), whole: (name == 3).then(|| "all of it".into()) }
}

/// Generates statements.
struct Asks {
    random: u64,
    count: usize,
    is_open: bool,
}

impl Asks {
    fn below(&mut self, count: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.random >> 33) % count as u64) as usize
    }

    fn names(&mut self) -> Vec<usize> {
        let of = 1 + self.below(15);
        (0..NAMES.len()).filter(|name| of >> name & 1 == 1).collect()
    }

    fn written(&mut self, name: usize) -> Written {
        Written {
            name,
            seen: usize::from(self.below(6) == 0),
            ends_hold: self.below(2) == 0,
            is_late: self.below(8) == 0,
            lock: [None, Some("mutex"), Some("fair mutex")][self.below(3)].map(|kind| (kind, self.below(2))),
            is_over: self.below(4) == 0,
            is_old: self.below(4) == 0,
            record: [None, Some(false), Some(true)][self.below(6).min(2)].filter(|_| self.below(2) == 0),
            wake: ["", ".heard", "!said", ".heard\n!said"][self.below(4)],
            session: (self.below(3) == 0)
                .then(|| (self.below(2), [None, Some(false), Some(true)][self.below(3)])),
        }
    }

    fn sole(&mut self, name: usize, verb: SoleVerb) -> Sole {
        let owner = self.below(2);
        let permits = LockSpec::Queue(QueueSpec::permits(5, 2));
        let specs = [LockSpec::Mutex, LockSpec::Mutex, LockSpec::Reentrant, permits];
        let (spec, is_handed) = (specs[self.below(4)], verb == SoleVerb::Acquire && self.below(3) == 0);
        let before = (is_handed && spec == LockSpec::Mutex).then_some(1 - owner);
        let ttl_ms = if verb == SoleVerb::Acquire && self.below(5) == 0 { -1_000 } else { LEASE_MS };
        let message = match self.below(4) > 0 {
            true => format!("release {}", self.count),
            false => String::new(),
        };
        let message = if before.is_some() { format!("hand-over {}", self.count) } else { message };
        Sole { name, spec, owner, ttl_ms, before, message }
    }

    fn next(&mut self) -> Ask {
        self.count += 1;
        let (name, owner) = (self.below(NAMES.len()), self.below(2));
        match self.below(46) {
            0..=19 => {
                let verb = [SoleVerb::Acquire, SoleVerb::Release, SoleVerb::Renew][self.below(3)];
                let names = self.names();
                Ask::Change { verb, changes: names.into_iter().map(|name| self.sole(name, verb)).collect() }
            }
            20..=23 => Ask::Read { names: self.names(), with_records: self.below(2) == 0 },
            24..=31 => {
                let names = self.names();
                Ask::Write { changes: names.into_iter().map(|name| self.written(name)).collect() }
            }
            // Nobody listens to the other two.
            32 => Ask::Await { names: vec![2 + name % 2] },
            33..=34 => {
                let (prefix, after) = (["", "b", "c", "x"][self.below(4)], ["", "a", "b"][self.below(3)]);
                Ask::List { prefix, after }
            }
            35..=36 => Ask::Sweep,
            37..=40 => Ask::Name { client: owner, lives: self.below(2) == 0 },
            41 => Ask::Forget { client: owner, lives: self.below(2) == 0 },
            _ if self.is_open => Ask::CheckOut,
            _ => Ask::CheckIn { name, owner },
        }
    }
}

/// Sends the same statements in random order to a real server and a simulated one.
async fn compare(sides: &mut [Side; 2], has_listeners: bool) {
    let mut asks = Asks { random: 5, count: 0, is_open: false };
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let all = Ask::Read { names: (0..NAMES.len()).collect(), with_records: true };
    for _ in 0..setting("TENURE_OPERATIONS").unwrap_or(600) {
        let ask = asks.next();
        let asked = match &ask {
            Ask::Await { .. } | Ask::Name { .. } | Ask::Forget { .. } if !has_listeners => continue,
            // A change is based on a fresh read.
            Ask::Write { .. } | Ask::CheckIn { .. } => vec![&all, &ask],
            _ => vec![&ask],
        };
        for ask in asked {
            let mut said = Vec::new();
            for side in &mut *sides {
                said.push(side.ask(ask).await.unwrap_or_else(|failed| panic!("{ask:?}: {failed:?}")));
            }
            assert_eq!(said[0], said[1], "{ask:?}, statement {}", asks.count);
            let sort = match &ask {
                Ask::Change { verb, .. } => format!("{verb:?}"),
                ask => format!("{ask:?}").split(' ').next().unwrap_or_default().to_owned(),
            };
            let is_done = !matches!(&*said[0], "None" | "false" | "[]" | "{}");
            *counts.entry(format!("{sort} {is_done}")).or_default() += 1;
        }
        asks.is_open = sides[0].is_open;
    }
    let is_covered = |sort: &str| counts.get(sort).is_some_and(|count| *count > 2);
    let sorts = ["Acquire", "Release", "Renew", "Write", "CheckIn"];
    let mut both = sorts.iter().flat_map(|sort| [format!("{sort} true"), format!("{sort} false")]);
    assert!(both.all(|sort| is_covered(&sort)), "{counts:?}");
}

#[test]
fn simulated_mysql_answers_as_mariadb() {
    on(async {
        let (database, url) = mariadb::database();
        let driver = Driver::start().expect("a thread") as Arc<dyn Runtime>;
        let real = mysql::server(&url, Arc::clone(&driver)).expect("a URL");
        let simulated = Server::new(driver, Mistake::Nothing, Database::Mysql, 500);
        let client = MySqlConnection::connect(&url).await.expect("a connection");
        let mut sides = [
            Side::new(&*real, User::Mysql(client, database)).await,
            Side::new(&simulated, User::Simulated(simulated.clone())).await,
        ];
        compare(&mut sides, false).await;
    });
}

#[test]
fn simulated_postgresql_answers_as_a_real_one() {
    on(async {
        let schema = schema();
        let driver = Driver::start().expect("a thread") as Arc<dyn Runtime>;
        let real = postgres::server(&SERVER.url(&schema), Arc::clone(&driver)).expect("a URL");
        let simulated = Server::new(driver, Mistake::Nothing, Database::Postgres, 500);
        let sql = tenure::postgres::check_sql(Some(&schema));
        let mut sides = [
            Side::new(&*real, User::Postgres(connect(&SERVER).await, sql)).await,
            Side::new(&simulated, User::Simulated(simulated.clone())).await,
        ];
        compare(&mut sides, true).await;
        let all = Ask::Read { names: (0..NAMES.len()).collect(), with_records: true };
        let mut heard = Vec::new();
        for side in &mut sides {
            let mut messages: Vec<String> = Vec::new();
            // The last statement is of this sort.
            let (message, spec) = (String::new(), LockSpec::Mutex);
            let last = Sole { name: 0, spec, owner: 0, ttl_ms: LEASE_MS, before: None, message };
            let last = Ask::Change { verb: SoleVerb::Acquire, changes: vec![last] };
            side.ask(&Ask::CheckOut).await.expect("an end");
            side.ask(&last).await.expect("an answer");
            side.ask(&all).await.expect("rows");
            let end = Written {
                name: 0,
                seen: 0,
                ends_hold: true,
                is_late: false,
                lock: None,
                is_over: true,
                is_old: false,
                record: None,
                wake: "!the end",
                session: None,
            };
            side.ask(&Ask::Write { changes: vec![end] }).await.expect("an answer");
            while messages.last().is_none_or(|message| !message.starts_with("!the end")) {
                let message = tokio::time::timeout(Duration::from_secs(20), side.messages.recv());
                messages.push(message.await.expect("a message in time").expect("a message"));
            }
            messages.sort();
            heard.push(messages);
        }
        assert_eq!(heard[0], heard[1]);
        assert!(heard[0].len() > 30, "{} messages", heard[0].len());
    });
}
