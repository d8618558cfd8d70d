//! Tokens grow in the order of the grants, are never issued twice, and never change.

use tenure::{LockName, Owner};

use super::reference_model::{Owned, ReferenceModel};
use crate::sim::clock::TrueTime;
use crate::sim::regime::LockKind;

const TOKENS: &str = "token order";

impl ReferenceModel {
    /// The server granted a lock: its token must be above all earlier ones. A hold of a reentrant owner whose
    /// process has died counts until a client looks again. Until then its owner keeps the last token, if no
    /// other owner was let in.
    pub(super) fn check_grown(&mut self, at: TrueTime, name: &LockName, owner: &Owner, token: u64) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        let (last, last_owner) = (lock.last_token, lock.last_owner.replace(owner.clone()));
        lock.last_token = last.max(token);
        let is_reentry = token == last && last_owner.as_ref() == Some(owner);
        if token <= last && !(is_reentry && lock.sort == LockKind::Reentrant && lock.is_unseen(at)) {
            self.accuse(at, TOKENS, format!("{name} was granted with token {token} after {last}"));
        }
    }

    /// The server renewed a lease: the token must be that of the hold. Of a hold by plain commands the holder alone
    /// knows the token; the server shows 0, and once the hold has a ticket, the number of that, which is above it.
    /// Returns the token that the holder has.
    pub(super) fn check_kept(&mut self, at: TrueTime, name: &LockName, owner: &Owner, token: u64) -> u64 {
        let Some(owned) = self.owners.get_mut(owner) else { return token };
        let (given, ticket) = (owned.token, owned.ticket);
        if given == token || ticket == Some(token) {
            return given;
        }
        if self.plan.has_plain_clients && (token == 0 || token > given && (ticket.is_none() || owned.is_back))
        {
            // It has none again if the server went back.
            owned.ticket = (token > 0).then_some(token);
            if let Some(lock) = self.locks.get_mut(name) {
                lock.last_token = lock.last_token.max(token);
            }
            return given;
        }
        self.accuse(at, TOKENS, format!("{owner} holds {name} with token {given}, and is now told {token}"));
        token
    }

    /// A task got a guard: its token must be the one that the server issued to its owner, and above those of
    /// all earlier exclusive guards; an exclusive guard's token must be above all earlier ones.
    pub(super) fn check_reported(
        &mut self,
        at: TrueTime,
        name: &LockName,
        owner: &Owner,
        token: u64,
        weight: u32,
        again: bool,
    ) {
        let owned = self.owners.get(owner);
        let given = owned.map(|owned| owned.token);
        if let Some(is_accepted) = self.is_accepted(owner, token) {
            if !is_accepted {
                let what = format!("a guard of {owner} has token {token}, which no majority has accepted");
                return self.accuse(at, TOKENS, what);
            }
            let is_unknown = |earlier| earlier > token && self.is_unknown(earlier, owner, token);
            let is_late = self.is_stepped_over(at, owner);
            if is_late || self.locks.get(name).is_some_and(|lock| is_unknown(lock.last_reported)) {
                return;
            }
            return self.check_risen(at, name, token, weight, again);
        }
        let is_late =
            |owned: &Owned| owned.taken.contains(&token) || owned.doubted.contains(&token) || owned.is_back;
        if self.is_forced(owner) || owned.is_some_and(is_late) {
            // The guard is late, after the grant of a client admitted beside it; or it shares the token of a
            // hold that reappeared.
            return;
        }
        if given != Some(token) && owned.and_then(|owned| owned.ticket) != Some(token) {
            return self.accuse(
                at,
                TOKENS,
                format!("a guard of {owner} has token {token}, the server gave {given:?}"),
            );
        }
        self.check_risen(at, name, token, weight, again);
    }

    /// A reported token must be above the earlier ones. `again` marks a hold that had a guard before.
    fn check_risen(&mut self, at: TrueTime, name: &LockName, token: u64, weight: u32, again: bool) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        let is_exclusive = weight == lock.sort.capacity();
        // An upgraded reader keeps its token, and other readers beside it had different ones.
        let last = if is_exclusive && !again { lock.last_reported } else { lock.last_exclusive };
        lock.last_reported = lock.last_reported.max(token);
        if is_exclusive {
            lock.last_exclusive = lock.last_exclusive.max(token);
        }
        if token < last || (token == last && !again && lock.sort != LockKind::Reentrant) {
            self.accuse(
                at,
                TOKENS,
                format!("a guard of {name} has token {token}, an earlier one had {last}"),
            );
        }
    }
}
