//! Tokens grow in the order of the grants, are never given twice, and stay what they are.

use tenure::{LockName, Owner};

use super::Book;
use crate::sim::clock::TrueTime;

const TOKENS: &str = "token order";

impl Book {
    /// The server granted a lock anew: its token is above all that it gave before.
    pub(super) fn check_grown(&mut self, at: TrueTime, name: &LockName, token: u64) {
        let last = self.locks.get(name).map_or(0, |lock| lock.last_token);
        if token <= last {
            self.accuse(at, TOKENS, format!("{name} was granted with token {token} after {last}"));
        }
    }

    /// The server set a lease anew: the token is the one that the hold has.
    pub(super) fn check_kept(&mut self, at: TrueTime, name: &LockName, owner: &Owner, token: u64) {
        if let Some(owned) = self.owners.get(owner)
            && owned.token != token
        {
            let what = format!("{owner} holds {name} with token {}, and is now told {token}", owned.token);
            self.accuse(at, TOKENS, what);
        }
    }

    /// A task got a guard: its token is what the server gave its owner, and above that of every guard handed out before.
    pub(super) fn check_reported(
        &mut self,
        at: TrueTime,
        name: &LockName,
        owner: &Owner,
        token: u64,
        again: bool,
    ) {
        let given = self.owners.get(owner).map(|owned| owned.token);
        if given != Some(token) {
            return self.accuse(
                at,
                TOKENS,
                format!("a guard of {owner} has token {token}, the server gave {given:?}"),
            );
        }
        if self.is_forced(owner) {
            // It comes late, after the grant of somebody who was let in beside it.
            return;
        }
        let Some(lock) = self.locks.get_mut(name) else { return };
        let last = lock.last_reported;
        lock.last_reported = last.max(token);
        if token < last || (token == last && !again) {
            self.accuse(
                at,
                TOKENS,
                format!("a guard of {name} has token {token}, an earlier one had {last}"),
            );
        }
    }
}
