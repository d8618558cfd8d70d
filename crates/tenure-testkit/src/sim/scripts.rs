//! The real scripts on a fake server, compared with their Rust twins: both get every request of a schedule.

use redis::Value;
use tenure::LockName;
use tenure::internals::protocol::{Answer, Listening, LockSpec, Notification, Now, Op, Verb};
use tenure::internals::store::Client;
use tenure::internals::store::redis::scripted::{Scripted, heard, read};
use tenure::internals::store::redis::{ServerError, Value as Reply};

use crate::fake_redis::{Keyspace, message};

thread_local! {
    /// Shared, because creating one takes longer than a schedule.
    static KEYSPACE: Keyspace = Keyspace::new();
}

/// Who receives a server's messages.
#[derive(Clone, Debug, Default)]
pub struct Audience {
    /// Number of restarts of the server.
    pub starts: u16,
    /// Clients that cannot be notified of grants.
    pub unreached: Vec<Client>,
}

impl Audience {
    /// The listening state of a client that is subscribed on this server.
    pub fn station(&self) -> Option<Listening> {
        Listening::new(self.starts % 1024 * 4 + 1)
    }
}

/// A fake server that runs the scripts.
#[derive(Debug)]
pub struct Scripts(Keyspace);

impl Scripts {
    /// An empty server. At most one at a time per thread.
    pub fn new() -> Self {
        let keyspace = KEYSPACE.with(Keyspace::clone);
        keyspace.forget();
        Self(keyspace)
    }

    /// Runs the script for `op`.
    pub fn run(&self, now: Now, op: &Op, audience: &Audience) -> (Value, Vec<(String, String)>) {
        self.0.set_clock(now.unix_us);
        let unreached = audience.unreached.iter().map(|client| format!(":{client}"));
        self.0.set_unheard(&format!("{:03x}", audience.starts % 1024 * 4), unreached);
        let Scripted { text, keys, args } = Scripted::new(op);
        let (keys, args): (Vec<&str>, Vec<&str>) =
            (keys.iter().map(String::as_str).collect(), args.iter().map(String::as_str).collect());
        self.0.script(text, &keys, &args)
    }

    /// Runs the script for `op`, which must agree with its twin.
    ///
    /// # Errors
    /// The difference between the two.
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
            // Redisson's messages do not name the owner of the released hold.
            LockSpec::Reentrant => wakes.len() < 2 && wakes.is_empty() == said.1.is_none(),
            LockSpec::Mutex => wakes.len() < 2 && wakes.first() == said.1.as_ref(),
            LockSpec::Queue(_) => in_one(&messages, wakes, &audience.unreached, said.1.as_ref()) == said.1,
        };
        if is_same_wake && answer.as_ref() == Ok(&said.0) {
            return Ok(());
        }
        Err(format!("{op:?}: in Rust {said:?}, as a script {answer:?} ({value:?}) and {messages:?}"))
    }

    /// Runs the plain commands of an acquisition.
    pub fn acquire_plainly(&self, now: Now, op: &Op) {
        let Verb::Acquire { ttl_ms, .. } = op.verb else { return };
        let alone = match op.spec {
            LockSpec::Queue(queue) => format!("#1:{}:{}+{}", queue.kind, queue.capacity, queue.weight),
            LockSpec::Mutex | LockSpec::Reentrant => String::new(),
        };
        let value = format!("{}{alone}", op.owner);
        self.command(now, &["SET", op.name.as_str(), &value, "NX", "PX", &ttl_ms.to_string()]);
        self.command(now, &["INCR", "tenure:fence"]);
    }

    /// Runs a command outside the scripts.
    pub fn command(&self, now: Now, words: &[&str]) {
        self.0.set_clock(now.unix_us);
        self.0.command(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
    }

    /// All keys with their remaining TTL in ms, or −1 without one.
    pub fn keys(&self, now: Now) -> Vec<(String, i64)> {
        self.0.set_clock(now.unix_us);
        self.0.keys()
    }

    /// Deletes a lock's key, as an operator would.
    pub fn delete(&self, name: &LockName) {
        self.0.command(&[b"DEL", name.as_str().as_bytes()]);
    }

    /// Evicts the token counter and a lock's ballot.
    pub fn evict_counter(&self, name: &LockName) {
        let ballot = format!("tenure:ballot:{{{}}}", name.as_str());
        self.0.command(&[b"DEL", b"tenure:fence", ballot.as_bytes()]);
    }

    /// Restarts without data.
    pub fn forget(&self) {
        self.0.forget();
    }
}

/// Merges a queue's messages, one per client, into the single notification that the Rust machine returns.
/// Leaves out those sent in vain to clients that do not listen.
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

/// Converts a script's reply to what a client reads.
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
