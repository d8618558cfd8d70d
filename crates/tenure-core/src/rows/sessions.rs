//! Passes waiters whose session has ended.
//!
//! While a client waits, its listening connection holds an advisory lock, and a row names that session. A
//! write that grants the lock to other clients, or leaves it blocked by one, looks at their sessions. If one
//! has ended, nothing is written and the requests run again, now passing the waiter. A place without such
//! a row ends with its lease alone, and so does every hold.

use std::collections::{BTreeMap, BTreeSet};

use super::names::client_row;
use crate::owner::{Client, Owner};
use crate::planted::{Bug, planted};
use crate::protocol::queue::Ticket;
use crate::protocol::{Data, Listening, State, end};

/// The sessions that have ended, by the row of their client. A session that has ended never lives again: the
/// next one of its client has another name.
pub type EndedSessions = BTreeMap<String, String>;

/// What is known of the sessions of a lock's waiters while its requests run.
#[derive(Default)]
pub(super) struct KnownSessions {
    /// Those that a write found ended.
    pub(super) ended: EndedSessions,
    /// How many further ones the next write looks at.
    pub(super) looks: usize,
}

/// Marks a ticket of a client whose session has ended.
const ENDED: Option<Listening> = Listening::new(1);
/// Further waiters looked at once one was found ended: at first, and at most. Each takes a lock of the
/// server until the statement ends.
pub(super) const LOOKS: [usize; 2] = [64, 256];

/// What a write expects of the session of a client that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectedSession {
    /// It has not ended, as far as the server can tell.
    Lives,
    /// It is this one, which has ended.
    Ended(String),
    /// No expectation. If another one fails, the result reports whether the session has ended.
    Any,
}

/// A session that a write looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionCheck {
    /// The row that names the client's session, if there is one.
    pub client: String,
    /// The write applies only if this holds.
    pub expects: ExpectedSession,
}

/// Marks the waiting tickets of clients whose session has ended, and removes those that block smaller ones.
/// Returns the owners of the removed.
pub(super) fn mark(state: &mut State, ended: &EndedSessions) -> Vec<Owner> {
    let mut passed = Vec::new();
    let Some(Data::Queue(queue)) = state.lock.as_mut().map(|lock| &mut lock.value) else { return passed };
    if ended.is_empty() {
        return passed;
    }
    let mut marked = queue.without_tickets();
    for (number, ticket) in queue.tickets() {
        let has_ended = number > queue.mark && ended.contains_key(&client_row(ticket.owner.client()));
        let listens = if has_ended { ENDED } else { None };
        marked.insert(number, Ticket { listens, ..ticket.clone() });
    }
    *queue = marked;
    while let Some(Data::Queue(queue)) = state.lock.as_ref().map(|lock| &lock.value)
        && let Some((number, ticket)) = queue.blocks().filter(|(_, ticket)| ticket.listens.is_some())
    {
        passed.push(ticket.owner.clone());
        end(state, number);
    }
    passed
}

/// The sessions that a change depends on: those of other clients' waiters that it admits or has passed over,
/// and that of a waiter that blocks smaller ones.
pub(super) fn checks(
    [before, after]: [&State; 2],
    passed: &[Owner],
    own: &BTreeSet<Client>,
    KnownSessions { ended, looks }: &KnownSessions,
) -> Vec<SessionCheck> {
    if planted(Bug::RowsSessionUnseen) {
        return Vec::new();
    }
    let mut checks: BTreeMap<String, ExpectedSession> = BTreeMap::new();
    if !planted(Bug::RowsSessionReplaced) {
        let rows = passed.iter().map(|owner| client_row(owner.client()));
        checks.extend(rows.filter_map(|row| {
            let session = ExpectedSession::Ended(ended.get(&row)?.clone());
            Some((row, session))
        }));
    }
    if let Some(after) = after.queue() {
        let mark = before.queue().map_or(after.mark, |queue| queue.mark);
        let admitted = after.admitted();
        let admitted = admitted.filter(|(number, _)| *number > mark).chain(after.blocks());
        let others = |ticket: &Ticket| Some(ticket.owner.client()).filter(|client| !own.contains(client));
        let mut has_looked = false;
        for client in admitted.filter_map(|(_, ticket)| others(ticket)) {
            checks.entry(client_row(client)).or_insert(ExpectedSession::Lives);
            has_looked = true;
        }
        if has_looked && *looks > 0 {
            let next: BTreeSet<Client> =
                after.waiting().filter_map(|(_, ticket)| others(ticket)).take(*looks).collect();
            for client in next {
                checks.entry(client_row(client)).or_insert(ExpectedSession::Any);
            }
        }
    }
    checks.into_iter().map(|(client, expects)| SessionCheck { client, expects }).collect()
}
