//! A request as its script gets it, and what the script said: for the simulation, which runs the
//! scripts itself.

use crate::messages::meant;
use crate::replies;
use crate::requests::{Keyspace, Publish, ScriptRequest};
use crate::resp::Value;
use tenure_core::protocol::{Answer, LockSpec, Notification, Op};

/// A script, and what it is run with.
#[derive(Debug)]
pub struct Scripted {
    /// Its text.
    pub text: &'static str,
    /// The keys that it may touch.
    pub keys: Vec<String>,
    /// Its arguments.
    pub args: Vec<String>,
}

impl Scripted {
    /// What a server in database 0 is asked.
    pub fn new(op: &Op) -> Self {
        let request = ScriptRequest::new(op, Keyspace { db: 0, publish: Publish::Plain, has_slots: false });
        let (lock, counter) = (request.keys.0.to_owned(), request.keys.1.map(Into::into));
        let keys = [Some(lock), counter].into_iter().flatten().collect();
        let args = request.args.into_iter().map(Into::into).collect();
        Self { text: request.script.text, keys, args }
    }
}

/// What a script's reply says.
///
/// # Errors
/// What is wrong with it, if it is malformed.
pub fn read(value: &Value, op: &Op) -> Result<Answer, &'static str> {
    replies::read(value, op).map(|read| read.answer)
}

/// What a script's message says to those who wait for a lock of this rule.
pub fn heard(message: &str, spec: LockSpec) -> Notification {
    meant(message, spec)
}
