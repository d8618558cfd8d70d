//! Combines the votes of a quorum's members into a decision. Pure functions.
//!
//! The mutex on a majority of independent stores is Redlock
//! (<https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>). Its tokens are ballots, as in
//! Paxos: the client proposes a ballot, and a node accepts it only if it is above every ballot it has seen.
//! Any two majorities share a member, which accepts only rising ballots. Therefore no two grants share a
//! token, and a later grant has a higher one, whatever the clocks show, as long as the members remember what
//! they have accepted.

use super::{Answer, Found, Holding, Kind, parse_value, shown};
use crate::owner::Owner;
use crate::planted::{Bug, planted};

/// The holder reported when only ballots kept an acquisition from a majority and no member reported a holder.
pub const NOBODY: &str = "(nobody)";

/// The state of one member's vote on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vote {
    /// Sent, not answered yet.
    Pending,
    /// Not asked, or not counted because the member may have forgotten leases that have not expired.
    Abstains,
    /// No answer will come. `maybe`: the member may have carried out the request, or may still do so.
    Silent {
        /// Whether the request may take effect.
        maybe: bool,
    },
    /// The member rejects the request, and will do so for every client and every retry.
    Refused,
    /// The member's answer.
    Said(Answer),
}

/// The decision of a quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The answer of a majority.
    Is(Answer),
    /// A split vote: no client got a majority. Names the client with the most members.
    Split {
        /// One of the competing clients; empty if none is known.
        holder: String,
        /// Time until a majority is free if no client gives up earlier.
        left_ms: Option<u64>,
    },
    /// A majority is free and would accept a ballot above this one.
    Raise {
        /// The ballot to exceed.
        above: u64,
    },
    /// Too many members reject the request.
    Refused,
    /// Too few members answered. `maybe`: some members may have carried out the request.
    Silent {
        /// Whether the request may take effect.
        maybe: bool,
    },
}

/// The size of a majority of `members`.
pub const fn majority(members: usize) -> usize {
    members / 2 + 1
}

/// Votes and the majority required.
struct VoteCount<'a> {
    words: &'a [Vote],
    majority: usize,
}

impl<'a> VoteCount<'a> {
    fn of(words: &'a [Vote]) -> Self {
        let majority = if planted(Bug::MinorityRules) { words.len() / 2 } else { majority(words.len()) };
        Self { words, majority }
    }

    fn all(&self, is: impl Fn(&Vote) -> bool) -> usize {
        self.words.iter().filter(|word| is(word)).count()
    }

    fn said(&self, is: impl Fn(&Answer) -> bool) -> usize {
        self.all(|word| matches!(word, Vote::Said(answer) if is(answer)))
    }

    /// Whether a majority is out of reach without `lost` members.
    fn stops(&self, lost: usize) -> bool {
        lost + self.majority > self.words.len()
    }

    fn is_open(&self, is_last: bool) -> bool {
        !is_last && self.words.contains(&Vote::Pending)
    }

    /// Members whose state is unknown.
    fn unheard(&self) -> usize {
        self.all(|word| matches!(word, Vote::Pending | Vote::Silent { .. } | Vote::Refused))
    }

    /// The decision if fewer than a majority answered.
    fn silence(&self) -> Option<Decision> {
        if self.stops(self.all(|word| *word == Vote::Refused)) {
            return Some(Decision::Refused);
        }
        (self.said(|_| true) < self.majority).then(|| Decision::Silent { maybe: self.maybe() })
    }

    /// The decision while a majority is neither reached nor ruled out.
    fn undecided(&self, is_last: bool) -> Option<Decision> {
        if self.is_open(is_last) {
            return None;
        }
        let refused = self.stops(self.all(|word| *word == Vote::Refused));
        Some(if refused { Decision::Refused } else { Decision::Silent { maybe: self.maybe() } })
    }

    fn maybe(&self) -> bool {
        self.said(|_| true) > 0
            || self.all(|word| matches!(word, Vote::Pending | Vote::Silent { maybe: true })) > 0
    }

    /// The mismatch, if so many members have another kind or no lock at this name that no other outcome can
    /// get a majority.
    fn mismatch(&self) -> Option<Decision> {
        let is_other = |answer: &Answer| matches!(answer, Answer::Mismatch { .. } | Answer::NoLock { .. });
        let other = self.words.iter().find_map(|word| match word {
            Vote::Said(answer) if is_other(answer) => Some(answer),
            _ => None,
        })?;
        let stops = self.stops(self.said(is_other));
        stops.then(|| Decision::Is(other.clone()))
    }

    /// The client that holds the most members, according to their answers.
    fn highest(&self) -> Option<Highest> {
        let mut highests: Vec<Highest> = Vec::new();
        for word in self.words {
            let (value, left_ms) = match word {
                Vote::Said(Answer::Busy { holder, left_ms }) => (holder.as_bytes(), *left_ms),
                Vote::Said(Answer::Found(found)) => match found.holders.first() {
                    Some(holder) => (&*holder.value, holder.left_ms),
                    None => continue,
                },
                _ => continue,
            };
            match highests.iter_mut().find(|highest| highest.is_of(value)) {
                Some(highest) => highest.add(value, left_ms),
                None => highests
                    .push(Highest { value: value.to_owned(), lefts: vec![left_ms.unwrap_or(u64::MAX)] }),
            }
        }
        // The first one in a tie, so that all clients see the same.
        highests.into_iter().rev().max_by_key(|highest| highest.lefts.len())
    }

    fn busy(highest: Option<Highest>, majority: usize) -> Answer {
        match highest {
            Some(highest) => {
                Answer::Busy { left_ms: highest.left_ms(majority), holder: shown(&highest.value) }
            }
            None => Answer::Free,
        }
    }

    /// Time until a majority is free if no lease is renewed: the majority-th smallest remaining time.
    fn free_in_ms(&self) -> Option<u64> {
        let left = |word: &Vote| match word {
            Vote::Said(Answer::Busy { left_ms, .. }) => left_ms.unwrap_or(u64::MAX),
            Vote::Said(Answer::Held { .. } | Answer::Behind { .. } | Answer::Free) => 0,
            _ => u64::MAX,
        };
        let mut lefts: Vec<u64> = self.words.iter().map(left).collect();
        lefts.sort_unstable();
        lefts.get(self.majority - 1).copied().filter(|left| *left < u64::MAX)
    }
}

/// One holder, with the remaining lease on each member that reports it.
struct Highest {
    value: Vec<u8>,
    lefts: Vec<u64>,
}

impl Highest {
    /// Compares owners, because a holder has a different token on a member that it acquired again.
    fn is_of(&self, value: &[u8]) -> bool {
        match (parse_value(&self.value), parse_value(value)) {
            (Some((mine, _)), Some((theirs, _))) => mine == theirs,
            _ => self.value == value,
        }
    }

    fn add(&mut self, value: &[u8], left_ms: Option<u64>) {
        self.lefts.push(left_ms.unwrap_or(u64::MAX));
        if let (Some((_, mine)), Some((_, theirs))) = (parse_value(&self.value), parse_value(value))
            && theirs < mine
        {
            value.clone_into(&mut self.value);
        }
    }

    /// The decision that it holds the lock.
    fn show(self, majority: usize) -> Decision {
        let holder = Holding { left_ms: self.left_ms(majority), value: self.value, weight: 1 };
        let found = Found {
            kind: Kind::Mutex,
            capacity: None,
            holders: vec![holder],
            waiters: Vec::new(),
            unlisted: 0,
        };
        Decision::Is(Answer::Found(found))
    }

    /// Time for which it keeps a majority.
    fn left_ms(&self, majority: usize) -> Option<u64> {
        let mut lefts = self.lefts.clone();
        lefts.sort_unstable_by(|a, b| b.cmp(a));
        let left = lefts.get(majority - 1).or(lefts.last()).copied();
        left.filter(|left| *left < u64::MAX)
    }
}

/// Decides an acquisition with this ballot. `None`: wait for further answers. `is_last`: no further answer
/// will be waited for. A grant counts only if it has exactly this ballot.
pub fn acquired(words: &[Vote], ballot: u64, is_last: bool) -> Option<Decision> {
    let count = VoteCount::of(words);
    if planted(Bug::TokensByCounter) {
        let mut tokens: Vec<u64> = held(words).collect();
        tokens.sort_unstable();
        if tokens.len() >= count.majority {
            return tokens.last().map(|fence| Decision::Is(Answer::Held { fence: *fence }));
        }
    }
    let granted = count.said(|answer| matches!(answer, Answer::Held { fence } if *fence == ballot));
    if granted >= count.majority {
        return Some(Decision::Is(Answer::Held { fence: ballot }));
    }
    let ahead = count.said(|answer| *answer == Answer::Ahead);
    if count.stops(ahead + count.all(|word| *word == Vote::Refused)) {
        return Some(Decision::Refused);
    }
    let highest = count.highest();
    if highest.as_ref().is_some_and(|highest| highest.lefts.len() >= count.majority) {
        let answer = VoteCount::busy(highest, count.majority);
        return Some(Decision::Is(match answer {
            Answer::Busy { holder, .. } => Answer::Busy { holder, left_ms: count.free_in_ms() },
            answer => answer,
        }));
    }
    if let Some(mismatch) = count.mismatch() {
        return Some(mismatch);
    }
    if count.is_open(is_last) {
        return None;
    }
    if let Some(silence) = count.silence() {
        return Some(silence);
    }
    let mut floors: Vec<u64> = words
        .iter()
        .filter_map(|word| match word {
            Vote::Said(Answer::Held { fence }) => Some((*fence).max(ballot)),
            Vote::Said(Answer::Behind { ballot: stored }) => Some((*stored).max(ballot)),
            _ => None,
        })
        .collect();
    floors.sort_unstable();
    // Only above a majority: one node with a fast clock must not pull up the tokens of every client.
    if let Some(above) = floors.get(count.majority - 1) {
        return Some(Decision::Raise { above: *above });
    }
    let holder = highest.map_or(String::new(), |highest| shown(&highest.value));
    Some(Decision::Split { holder, left_ms: count.free_in_ms() })
}

/// The tokens of the members that answered `Held`.
pub fn held(words: &[Vote]) -> impl Iterator<Item = u64> {
    words.iter().filter_map(|word| match word {
        Vote::Said(Answer::Held { fence }) => Some(*fence),
        _ => None,
    })
}

/// Decides a renewal. The token is the lowest one, because a member that was acquired again later has a
/// higher one.
pub fn renewed(words: &[Vote], is_last: bool) -> Option<Decision> {
    let count = VoteCount::of(words);
    let renewed = held(words).count();
    if renewed >= count.majority {
        return held(words).min().map(|fence| Decision::Is(Answer::Held { fence }));
    }
    if !count.stops(words.len() - renewed - count.unheard()) {
        // A majority is still possible, and a failed renewal is not a loss.
        return count.undecided(is_last);
    }
    Some(count.mismatch().unwrap_or_else(|| Decision::Is(VoteCount::busy(count.highest(), count.majority))))
}

/// Decides the release of the owner's hold.
pub fn released(words: &[Vote], is_last: bool) -> Option<Decision> {
    let count = VoteCount::of(words);
    let released = count.said(|answer| matches!(answer, Answer::Released { .. }));
    let is = |answer| Some(Decision::Is(answer));
    if released >= count.majority {
        return is(Answer::Released { left: 0 });
    }
    if count.is_open(is_last) {
        return None;
    }
    if let Some(silence) = count.silence() {
        return Some(silence);
    }
    // Silent members may have been held, so their silence is not a loss.
    let silent = count.all(|word| matches!(word, Vote::Pending | Vote::Silent { .. }));
    if released > 0 && released + silent >= count.majority {
        return is(Answer::Released { left: 0 });
    }
    count.mismatch().or_else(|| is(VoteCount::busy(count.highest(), count.majority)))
}

/// Decides a holder's verification. It holds if a majority reports it, because silent members may have
/// forgotten.
pub fn verified(words: &[Vote], owner: &Owner, is_last: bool) -> Option<Decision> {
    let count = VoteCount::of(words);
    let mine = count.said(|answer| shows(answer, owner));
    if mine == 0 || mine >= count.majority || planted(Bug::MaybeTakenForHeld) {
        return found(words, is_last);
    }
    if !count.stops(words.len() - mine - count.unheard()) {
        return count.undecided(is_last);
    }
    let others = words.iter().filter(|word| !matches!(word, Vote::Said(answer) if shows(answer, owner)));
    let others: Vec<Vote> = others.cloned().collect();
    Some(count.mismatch().unwrap_or_else(|| match VoteCount::of(&others).highest() {
        Some(highest) => highest.show(count.majority),
        None => Decision::Is(Answer::Free),
    }))
}

/// Whether an answer reports this owner as the holder.
pub fn shows(answer: &Answer, owner: &Owner) -> bool {
    let Answer::Found(found) = answer else { return false };
    let holder = found.holders.first().and_then(|holder| parse_value(&holder.value));
    holder.is_some_and(|(holder, _)| holder == *owner)
}

/// Decides an inspection, or a forced release, which reports the former holder.
pub fn found(words: &[Vote], is_last: bool) -> Option<Decision> {
    let count = VoteCount::of(words);
    let highest = count.highest();
    let most = highest.as_ref().map_or(0, |highest| highest.lefts.len());
    if most >= count.majority {
        return highest.map(|highest| highest.show(count.majority));
    }
    if count.stops(count.said(|answer| *answer == Answer::Free)) {
        return Some(Decision::Is(Answer::Free));
    }
    if let Some(mismatch) = count.mismatch() {
        return Some(mismatch);
    }
    if count.is_open(is_last) {
        return None;
    }
    if let Some(silence) = count.silence() {
        return Some(silence);
    }
    match highest {
        Some(highest) if most + count.unheard() >= count.majority => Some(highest.show(count.majority)),
        _ => Some(Decision::Is(Answer::Free)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = 100;

    fn yes(fence: u64) -> Vote {
        Vote::Said(Answer::Held { fence })
    }

    fn busy(holder: &str, left_ms: u64) -> Vote {
        Vote::Said(Answer::Busy { holder: holder.into(), left_ms: Some(left_ms) })
    }

    fn behind(ballot: u64) -> Vote {
        Vote::Said(Answer::Behind { ballot })
    }

    fn said(answer: Answer) -> Vote {
        Vote::Said(answer)
    }

    const DOWN: Vote = Vote::Silent { maybe: false };
    const LOST: Vote = Vote::Silent { maybe: true };
    const FREE: Vote = Vote::Said(Answer::Free);
    const GRANTED: Option<Decision> = Some(Decision::Is(Answer::Held { fence: T }));

    #[test]
    fn exactly_a_majority_of_exactly_this_ballot_is_a_grant() {
        for members in 1..=7 {
            for granted in 0..=members {
                let mut words = vec![yes(T); granted];
                words.resize(members, busy("x", 5));
                let verdict = acquired(&words, T, true);
                assert_eq!(verdict == GRANTED, granted > members / 2, "{granted} of {members}: {verdict:?}");
            }
        }
        assert_ne!(acquired(&[yes(T), yes(T + 1), DOWN], T, true), GRANTED);
        assert_ne!(acquired(&[yes(T), Vote::Abstains, DOWN], T, true), GRANTED);
    }

    #[test]
    fn a_majority_is_not_waited_for_longer_than_it_takes() {
        use Vote::Pending;
        assert_eq!(acquired(&[yes(T), yes(T), Pending], T, false), GRANTED);
        assert!(matches!(
            acquired(&[busy("x", 1), busy("x", 2), Pending], T, false),
            Some(Decision::Is(Answer::Busy { .. }))
        ));
        assert_eq!(acquired(&[Vote::Refused, Vote::Refused, Pending], T, false), Some(Decision::Refused));
        assert_eq!(acquired(&[yes(T), busy("x", 1), Pending], T, false), None);
        assert_eq!(acquired(&[yes(T), DOWN, Pending], T, false), None);
        assert_eq!(renewed(&[FREE, FREE, Pending], false), Some(Decision::Is(Answer::Free)));
        assert_eq!(found(&[FREE, FREE, Pending], false), Some(Decision::Is(Answer::Free)));
    }

    #[test]
    fn who_waits_sleeps_until_a_majority_can_be_free() {
        let words = [busy("x", 90), busy("x", 70), busy("x", 80), yes(T), DOWN];
        let left_ms = Some(80);
        assert_eq!(
            acquired(&words, T, true),
            Some(Decision::Is(Answer::Busy { holder: "x".into(), left_ms }))
        );
        let split = [busy("x", 90), busy("y", 70), yes(T)];
        assert_eq!(
            acquired(&split, T, true),
            Some(Decision::Split { holder: "x".into(), left_ms: Some(70) })
        );
    }

    #[test]
    fn a_ballot_is_raised_no_further_than_a_majority_needs() {
        let far = T + 1_000_000;
        let raise = |above| Some(Decision::Raise { above });
        assert_eq!(acquired(&[yes(T), behind(T + 5), behind(far)], T, true), raise(T + 5));
        assert_eq!(acquired(&[yes(T), behind(far), DOWN], T, true), raise(far));
        assert_eq!(acquired(&[yes(T), yes(T), behind(far)], T, true), GRANTED);
        assert!(matches!(
            acquired(&[busy("x", 1), busy("y", 1), behind(far)], T, true),
            Some(Decision::Split { .. })
        ));
    }

    #[test]
    fn too_few_answers_are_no_answer_and_too_many_refusals_a_refusal() {
        let silent = |maybe| Some(Decision::Silent { maybe });
        assert_eq!(acquired(&[yes(T), DOWN, DOWN], T, true), silent(true));
        assert_eq!(acquired(&[DOWN, DOWN, DOWN], T, true), silent(false));
        assert_eq!(acquired(&[busy("x", 1), LOST, Vote::Abstains], T, true), silent(true));
        let ahead = said(Answer::Ahead);
        assert_eq!(acquired(&[ahead, Vote::Refused, yes(T)], T, true), Some(Decision::Refused));
    }

    #[test]
    fn a_failed_renewal_is_no_loss_until_no_majority_can_be_left() {
        assert_eq!(renewed(&[yes(T), yes(T + 9), FREE], true), GRANTED);
        assert_eq!(renewed(&[yes(T), FREE, LOST], true), Some(Decision::Silent { maybe: true }));
        assert_eq!(renewed(&[yes(T), Vote::Refused, FREE], true), Some(Decision::Silent { maybe: true }));
        assert_eq!(renewed(&[yes(T), FREE, FREE], true), Some(Decision::Is(Answer::Free)));
        assert!(matches!(
            renewed(&[yes(T), busy("x", 1), FREE], true),
            Some(Decision::Is(Answer::Busy { .. }))
        ));
    }

    #[test]
    fn a_release_that_finds_a_minority_was_a_loss_unless_the_rest_is_silent() {
        let gone = said(Answer::Released { left: 0 });
        let is = |answer| Some(Decision::Is(answer));
        assert_eq!(
            released(&[gone.clone(), gone.clone(), Vote::Pending], false),
            is(Answer::Released { left: 0 })
        );
        assert_eq!(released(&[gone.clone(), FREE, LOST], true), is(Answer::Released { left: 0 }));
        assert_eq!(released(&[gone.clone(), FREE, FREE], true), is(Answer::Free));
        assert_eq!(released(&[gone, DOWN, DOWN], true), Some(Decision::Silent { maybe: true }));
    }

    fn shown(owner: &Owner, fence: u64, left_ms: u64) -> Vote {
        let value = format!("{owner}#{fence}");
        let holders = vec![Holding { value: value.into(), left_ms: Some(left_ms), weight: 1 }];
        let (kind, capacity, waiters) = (Kind::Mutex, None, Vec::new());
        said(Answer::Found(Found { kind, capacity, holders, waiters, unlisted: 0 }))
    }

    #[test]
    fn a_holder_holds_if_a_majority_shows_it_and_has_lost_if_none_can() {
        let [me, other] = ["x", "y"].map(|name| Owner::new(name).expect("an owner"));
        let (mine, theirs) = (shown(&me, T, 5), shown(&other, T + 1, 5));
        let verified = |words: &[Vote]| super::verified(words, &me, true);
        let silent = Some(Decision::Silent { maybe: true });
        assert!(matches!(
            verified(&[mine.clone(), mine.clone(), FREE]),
            Some(Decision::Is(Answer::Found(_)))
        ));
        assert_eq!(verified(&[mine.clone(), FREE, LOST]), silent);
        // The competing client has not taken anything from another client yet.
        assert_eq!(verified(&[theirs.clone(), mine.clone(), LOST]), silent);
        assert_eq!(verified(&[mine.clone(), FREE, FREE]), Some(Decision::Is(Answer::Free)));
        let Some(Decision::Is(Answer::Found(found))) = verified(&[mine, theirs.clone(), theirs]) else {
            panic!("it is another's");
        };
        assert_eq!(found.holders[0].value, format!("{other}#{}", T + 1).into_bytes());
    }

    #[test]
    fn one_holder_with_several_tokens_is_one_holder_with_its_first() {
        let owner = Owner::new("x").expect("an owner");
        let word = |fence: u64, left_ms| shown(&owner, fence, left_ms);
        let verdict = found(&[word(9, 10), word(7, 30), word(8, 20)], true);
        let Some(Decision::Is(Answer::Found(found))) = verdict else { panic!("{verdict:?}") };
        assert_eq!(found.holders[0].value, format!("{owner}#7").into_bytes());
        // It keeps two of three members for 20 ms.
        assert_eq!(found.holders[0].left_ms, Some(20));
        let verdict = super::found(&[word(9, 10), FREE, FREE], true);
        assert_eq!(verdict, Some(Decision::Is(Answer::Free)));
    }
}
