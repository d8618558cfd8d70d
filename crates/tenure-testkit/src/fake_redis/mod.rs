//! A fake Redis server: the commands that the scripts use, the real scripts in Lua 5.1, and sessions that log
//! in, subscribe and kill each other.
//!
//! [`Keyspace`] is the data, with a clock that the caller sets; `tests/kit/fake_redis.rs` compares it with a
//! real server. [`FakeRedis`] listens on a port. [`crate::sim_transport`] connects simulated processes to one
//! in virtual time.
//!
//! | module | what it holds |
//! |---|---|
//! | `commands` | the commands, with a real server's errors |
//! | `data` | keys, types and expiry |
//! | `lua` | the script interpreter |
//! | `port` | the server on a port, in real time |
//! | `server` | sessions, and the mutex script as its Rust twin |

mod commands;
mod data;
mod lua;
mod port;
pub(crate) mod server;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use data::Database;
use redis::{Value, parse_redis_value};

pub use port::FakeRedis;

fn text(text: impl Into<Vec<u8>>) -> Value {
    Value::BulkString(text.into())
}

/// An error reply; its text starts with the code.
fn error(text: &str) -> Value {
    let line = format!("-{}\r\n", text.replace(['\r', '\n'], " "));
    parse_redis_value(line.as_bytes()).expect("an error is one line")
}

/// An error as on the wire: the code, then the details.
pub(crate) fn message(error: &redis::ServerError) -> String {
    match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    }
}

/// The keys of a server, with its commands and scripts. Clones share them.
#[derive(Clone)]
pub struct Keyspace {
    lua: Arc<lua::Scripts>,
    database: Arc<Mutex<Database>>,
}

impl Default for Keyspace {
    fn default() -> Self {
        Self::new()
    }
}

impl Keyspace {
    /// An empty keyspace.
    pub fn new() -> Self {
        let database: Arc<Mutex<Database>> = Arc::default();
        Self { lua: Arc::new(lua::Scripts::new(&database)), database }
    }

    fn database(&self) -> MutexGuard<'_, Database> {
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the clock, in microseconds since 1970.
    pub fn set_clock(&self, unix_us: u64) {
        self.database().now_us = unix_us;
    }

    /// Sets the run id, and the channel suffixes whose messages reach no subscriber.
    pub fn set_unheard(&self, run_id: &str, unheard: impl IntoIterator<Item = String>) {
        let mut database = self.database();
        run_id.clone_into(&mut database.run_id);
        database.unheard = unheard.into_iter().collect();
    }

    /// Runs a command.
    pub fn command(&self, words: &[&[u8]]) -> Value {
        self.database().run(words)
    }

    /// Runs a script. Returns its reply and the messages that it published: channel and text.
    pub fn script(&self, text: &str, keys: &[&str], args: &[&str]) -> (Value, Vec<(String, String)>) {
        let value = self.lua.run(text, keys, args);
        (value, std::mem::take(&mut self.database().published))
    }

    /// All keys that have not expired, with their remaining TTL in ms, or −1 without one.
    pub fn keys(&self) -> Vec<(String, i64)> {
        let keys: Vec<Vec<u8>> = self.database().keys.keys().cloned().collect();
        let left = |key: &[u8]| match self.command(&[b"PTTL", key]) {
            Value::Int(left) => left,
            other => panic!("no number: {other:?}"),
        };
        let keys = keys.iter().map(|key| (String::from_utf8_lossy(key).into_owned(), left(key)));
        keys.filter(|(_, left)| *left != -2).collect()
    }

    /// Deletes all keys.
    pub fn forget(&self) {
        self.database().keys.clear();
    }
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyspace").field("keys", &self.database().keys.len()).finish_non_exhaustive()
    }
}
