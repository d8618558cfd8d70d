//! The scripts themselves, on a small server beside the machines in Rust: what a schedule asks,
//! both are asked.

use redis::Value;
use tenure::LockName;
use tenure::internals::protocol::{Answer, Listening, LockSpec, Notification, Now, Op};
use tenure::internals::store::Client;
use tenure::internals::store::redis::scripted::{Scripted, heard, read};
use tenure::internals::store::redis::{ServerError, Value as Reply};

use crate::fake_redis::Keyspace;
use crate::servers::message;

thread_local! {
    /// To make one takes longer than a schedule.
    static KEYSPACE: Keyspace = Keyspace::new();
}

/// Who hears what a server says.
#[derive(Clone, Debug, Default)]
pub struct Audience {
    /// How often the server has started.
    pub starts: u16,
    /// The clients that do not hear when they are called.
    pub unreached: Vec<Client>,
}

impl Audience {
    /// What a place says whose client listens at this server.
    pub fn station(&self) -> Option<Listening> {
        Listening::new(self.starts % 1024 * 4 + 1)
    }
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
    pub fn run(&self, now: Now, op: &Op, audience: &Audience) -> (Value, Vec<(String, String)>) {
        self.0.set_clock(now.unix_us);
        let unreached = audience.unreached.iter().map(|client| format!(":{client}"));
        self.0.set_unheard(&format!("{:03x}", audience.starts % 1024 * 4), unreached);
        let Scripted { text, keys, args } = Scripted::new(op);
        let (keys, args): (Vec<&str>, Vec<&str>) =
            (keys.iter().map(String::as_str).collect(), args.iter().map(String::as_str).collect());
        self.0.script(text, &keys, &args)
    }

    /// Runs the script that answers `op`, which is to say what its twin has said.
    ///
    /// # Errors
    /// In what the two differ.
    pub fn compare(
        &self,
        now: Now,
        op: &Op,
        audience: &Audience,
        said: &(Answer, Option<Notification>),
    ) -> Result<(), String> {
        let (value, messages) = self.run(now, op, audience);
        let answer = read(&reply(value.clone()), op);
        let wakes: Vec<_> = messages.iter().map(|(_, message)| heard(message, op.spec)).collect();
        let is_same_wake = match op.spec {
            // In Redisson's words, which do not say whose hold it was.
            LockSpec::Reentrant => wakes.len() < 2 && wakes.is_empty() == said.1.is_none(),
            LockSpec::Mutex => wakes.len() < 2 && wakes.first() == said.1.as_ref(),
            LockSpec::Queue(_) => in_one(&messages, wakes, &audience.unreached, said.1.as_ref()) == said.1,
        };
        if is_same_wake && answer.as_ref() == Ok(&said.0) {
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

/// The messages of a queue, each to one client, as the machine says them to all. It does not say
/// what was said for nothing, to a client that does not hear.
fn in_one(
    messages: &[(String, String)],
    wakes: Vec<Notification>,
    unreached: &[Client],
    said: Option<&Notification>,
) -> Option<Notification> {
    let known: &[u64] = match said {
        Some(Notification::Granted { tickets }) => tickets,
        _ => &[],
    };
    let mut numbers = Vec::new();
    for ((channel, _), wake) in messages.iter().zip(wakes) {
        let is_heard = !unreached.iter().any(|client| channel.ends_with(&format!(":{client}")));
        if let Notification::Granted { tickets } = wake {
            numbers.extend(tickets.into_iter().filter(|ticket| is_heard || known.contains(ticket)));
        }
    }
    numbers.sort_unstable();
    (!numbers.is_empty()).then_some(Notification::Granted { tickets: numbers })
}

/// What a client reads of a script's reply.
fn reply(value: Value) -> Reply {
    match value {
        Value::Int(int) => Reply::Int(int),
        Value::BulkString(bytes) => Reply::BulkString(bytes),
        Value::SimpleString(text) => Reply::SimpleString(text),
        Value::Okay => Reply::SimpleString("OK".into()),
        Value::ServerError(error) => Reply::ServerError(ServerError::new(message(&error))),
        Value::Array(values) => Reply::Array(values.into_iter().map(reply).collect()),
        _ => Reply::Nil,
    }
}

impl Default for Scripts {
    fn default() -> Self {
        Self::new()
    }
}
