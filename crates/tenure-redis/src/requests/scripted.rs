//! A request as its script sees it, and the script's reply: for simulations that run the scripts themselves.

use crate::messages::meant;
use crate::replies;
use crate::requests::script::ScriptRequest;
use crate::requests::{Keyspace, Publish};
use crate::resp::Value;
use tenure_core::protocol::{Answer, LockSpec, Notification, Op};

/// A script and its input.
#[derive(Debug)]
pub struct Scripted {
    /// The script's text.
    pub text: &'static str,
    /// `KEYS`: all keys that the script may access.
    pub keys: Vec<String>,
    /// `ARGV`.
    pub args: Vec<String>,
}

impl Scripted {
    /// The request for `op` on a server with database 0 and plain Pub/Sub.
    pub fn new(op: &Op) -> Self {
        let request = ScriptRequest::new(
            op,
            Keyspace { db: 0, publish: Publish::Plain, has_slots: false, namespace: 0 },
        );
        let (lock, counter) = (request.keys.0.to_owned(), request.keys.1.map(Into::into));
        let keys = [Some(lock), counter].into_iter().flatten().collect();
        let args = request.args.into_iter().map(Into::into).collect();
        Self { text: request.script.text, keys, args }
    }
}

/// Parses a script's reply to `op`.
///
/// # Errors
/// What is wrong with a malformed reply.
pub fn read(value: &Value, op: &Op) -> Result<Answer, &'static str> {
    replies::read(value, op).map(|read| read.answer)
}

/// The notification that a script's message carries for waiters of this rule.
pub fn heard(message: &str, spec: LockSpec) -> Notification {
    meant(message, spec)
}
