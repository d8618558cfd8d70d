//! Lists all locks held on a majority.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::QuorumInner;
use super::round::Round;
use crate::name::LockName;
use crate::owner::Owner;
use crate::protocol::quorum::{Decision, Vote, found};
use crate::protocol::{Answer, Found, LockSpec, Op, Verb, parse_value};
use crate::store::{Cursor, Failure, Page};

/// Position of a listing: the current member, the members that failed so far, and the cursor within the
/// current one.
struct ListPosition {
    member: usize,
    failed: u64,
    from: Cursor,
}

impl ListPosition {
    fn read(cursor: &Cursor) -> Self {
        let mut words = cursor.0.splitn(3, ' ');
        let member = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let failed = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        Self { member, failed, from: Cursor(words.next().unwrap_or_default().to_owned()) }
    }

    fn cursor(&self) -> Cursor {
        Cursor(format!("{} {} {}", self.member, self.failed, self.from.0))
    }
}

impl QuorumInner {
    pub(super) async fn list(
        self: &Arc<Self>,
        prefix: &str,
        from: &Cursor,
        within: Duration,
    ) -> Result<Page, Failure> {
        let mut place = ListPosition::read(from);
        let Some(member) = self.members.get(place.member) else { return Ok(Page::default()) };
        let mut page = Page::default();
        let next = match member.store.list(prefix, place.from.clone(), within / 2).await {
            Ok(part) => {
                let names = part.locks.into_iter().map(|(name, _)| name);
                let (member, failed, has_prefix) = (place.member, place.failed, !prefix.is_empty());
                let looks = names.map(|name| self.look_from(member, failed, has_prefix, name, within / 2));
                for look in join_all(looks).await {
                    page.locks.extend(look?);
                }
                part.next
            }
            Err(failure) => {
                place.failed |= 1 << place.member;
                if place.failed.count_ones() as usize + self.majority() > self.members.len() {
                    let mut failures = vec![None; self.members.len()];
                    failures[place.member] = Some(failure);
                    return Err(Failure::NotSent(self.why(&failures)));
                }
                None
            }
        };
        match next {
            Some(from) => place.from = from,
            None => (place.member, place.from) = (place.member + 1, Cursor::default()),
        }
        page.next = (place.member < self.members.len()).then(|| place.cursor());
        Ok(page)
    }

    /// Looks up a lock found in the listing of one member, unless the listing of an earlier member included
    /// it already.
    async fn look_from(
        self: &Arc<Self>,
        member: usize,
        failed: u64,
        has_prefix: bool,
        name: LockName,
        within: Duration,
    ) -> Result<Option<(LockName, Found)>, Failure> {
        let owner = Owner::fresh("", &*self.runtime);
        let op = Op { name: name.clone(), spec: LockSpec::Mutex, owner, request: 0, verb: Verb::Inspect };
        let mut round = Round::new(self, self.majority());
        for index in 0..self.members.len() {
            round.ask(index, op.clone(), self.part(within));
        }
        // Wait for every answer, because they decide in which member's listing the lock appears.
        let verdict = round.gather(|words, is_last| if is_last { found(words, true) } else { None }).await;
        // A listing without a prefix omits foreign keys, so that member has not listed the lock.
        let is_shown = |found: &Found| {
            has_prefix || found.holders.iter().any(|holding| parse_value(&holding.value).is_some())
        };
        let is_told = |(index, word): (usize, &Vote)| {
            failed & (1 << index) == 0 && matches!(word, Vote::Said(Answer::Found(found)) if is_shown(found))
        };
        if round.words[..member].iter().enumerate().any(is_told) {
            return Ok(None);
        }
        match verdict {
            Decision::Is(Answer::Found(found)) => Ok(Some((name, found))),
            Decision::Is(_) => Ok(None),
            verdict => self.answer(verdict, &round).map(|_| None),
        }
    }
}
