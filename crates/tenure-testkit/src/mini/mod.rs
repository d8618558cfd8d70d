//! A Redis server small enough to simulate: the types and commands that the scripts use, and the actual text of the scripts in
//! the Lua that a server runs.
//!
//! It has no network and no clock of its own; whoever asks says what time it is. `tests/mini.rs` holds it against a real server.

mod commands;
mod data;
mod lua;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use data::Database;

/// What a command or a script answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing there.
    Nil,
    /// A number.
    Int(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// Several answers.
    Array(Vec<Self>),
    /// Such as `OK`.
    Status(String),
    /// An error, its code first.
    Error(String),
}

impl Value {
    fn text(text: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(text.into())
    }

    fn ok() -> Self {
        Self::Status("OK".into())
    }
}

/// A server. Clones are the same one.
#[derive(Clone)]
pub struct Mini {
    lua: Arc<lua::Scripts>,
    database: Arc<Mutex<Database>>,
}

impl Default for Mini {
    fn default() -> Self {
        Self::new()
    }
}

impl Mini {
    /// An empty server.
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

    /// Carries out a command.
    pub fn command(&self, words: &[&[u8]]) -> Value {
        self.database().run(words)
    }

    /// Runs a script, and says which messages it has sent: channel and text.
    pub fn script(&self, text: &str, keys: &[&str], args: &[&str]) -> (Value, Vec<(String, String)>) {
        let value = self.lua.run(text, keys, args);
        (value, std::mem::take(&mut self.database().published))
    }

    /// All keys, as they would be shown if asked for now: with what is left to each in ms, −1 if it has no end.
    pub fn keys(&self) -> Vec<(String, i64)> {
        let keys: Vec<Vec<u8>> = self.database().keys.keys().cloned().collect();
        let left = |key: &[u8]| match self.command(&[b"PTTL", key]) {
            Value::Int(left) => left,
            other => panic!("no number: {other:?}"),
        };
        let keys = keys.iter().map(|key| (String::from_utf8_lossy(key).into_owned(), left(key)));
        keys.filter(|(_, left)| *left != -2).collect()
    }

    /// Forgets everything.
    pub fn forget(&self) {
        self.database().keys.clear();
    }
}

impl fmt::Debug for Mini {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mini").field("keys", &self.database().keys.len()).finish_non_exhaustive()
    }
}
