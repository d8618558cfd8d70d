//! The scripts themselves, on a small server beside the machines in Rust: what a schedule asks,
//! both are asked.

use redis::Value;
use tenure::LockName;
use tenure::internals::protocol::{Answer, LockSpec, Notification, Now, Op};
use tenure::internals::store::redis::scripted::{Scripted, heard, read};

use crate::fake_redis::Keyspace;

thread_local! {
    /// To make one takes longer than a schedule.
    static KEYSPACE: Keyspace = Keyspace::new();
}

/// A small server that runs the scripts.
#[derive(Debug)]
pub struct Scripts(Keyspace);

impl Scripts {
    /// An empty one; there is one at a time on a thread.
    pub fn new() -> Self {
        let keyspace = KEYSPACE.with(Keyspace::clone);
        keyspace.forget();
        Self(keyspace)
    }

    /// Runs the script that answers `op`.
    pub fn run(&self, now: Now, op: &Op) -> (Value, Vec<(String, String)>) {
        self.0.set_clock(now.unix_us);
        let Scripted { text, keys, args } = Scripted::new(op);
        let (keys, args): (Vec<&str>, Vec<&str>) =
            (keys.iter().map(String::as_str).collect(), args.iter().map(String::as_str).collect());
        self.0.script(text, &keys, &args)
    }

    /// Runs the script that answers `op`, which is to say what its twin has said.
    ///
    /// # Errors
    /// In what the two differ.
    pub fn compare(&self, now: Now, op: &Op, said: &(Answer, Option<Notification>)) -> Result<(), String> {
        let (value, messages) = self.run(now, op);
        let answer = read(&value, op);
        let wake = messages.first().map(|(_, message)| heard(message, op.rule));
        let is_same_wake = match op.rule {
            // In Redisson's words, which do not say whose hold it was.
            LockSpec::Reentrant => wake.is_some() == said.1.is_some(),
            _ => wake == said.1,
        };
        if messages.len() < 2 && is_same_wake && answer.as_ref() == Ok(&said.0) {
            return Ok(());
        }
        Err(format!("{op:?}: in Rust {said:?}, as a script {answer:?} ({value:?}) and {messages:?}"))
    }

    /// A command beside the scripts.
    pub fn command(&self, now: Now, words: &[&str]) {
        self.0.set_clock(now.unix_us);
        self.0.command(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
    }

    /// What is kept, with what is left of it in ms, −1 if it has no end.
    pub fn keys(&self, now: Now) -> Vec<(String, i64)> {
        self.0.set_clock(now.unix_us);
        self.0.keys()
    }

    /// An operator deletes a lock's key.
    pub fn delete(&self, name: &LockName) {
        self.0.command(&[b"DEL", name.as_str().as_bytes()]);
    }

    /// The counter of tokens is evicted, and the ballot of a lock.
    pub fn evict_counter(&self, name: &LockName) {
        let ballot = format!("tenure:ballot:{{{}}}", name.as_str());
        self.0.command(&[b"DEL", b"tenure:fence", ballot.as_bytes()]);
    }

    /// Starts again with nothing.
    pub fn forget(&self) {
        self.0.forget();
    }
}

impl Default for Scripts {
    fn default() -> Self {
        Self::new()
    }
}
