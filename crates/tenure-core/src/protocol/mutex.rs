//! The mutex machine: one string, `owner#token`, with a TTL. Every client of the SET-NX-PX family understands
//! it, and it is the only machine that is sound on a quorum.
//!
//! Owner, token and lease are written together, so renew, release and inspect touch one key, and a repeated
//! acquire finds its token even if the counter is lost.

use super::lease::{BALLOT_AHEAD_US, BALLOT_BEHIND_US, BALLOT_MS};
use super::{
    Answer, Data, ExpiringValue, Fence, Liveness, Notification, Now, Op, ReleaseScope, State, Verb, force,
    inspect, other_kind, parse_value, value_text,
};
use crate::owner::Owner;
use crate::planted::{Bug, planted};

/// Runs one request.
pub fn apply(state: &mut State, counter: &mut u64, now: Now, op: &Op) -> (Answer, Option<Notification>) {
    match op.verb {
        Verb::Acquire { ttl_ms, fence, .. } => (acquire(state, counter, now, &op.owner, ttl_ms, fence), None),
        Verb::Renew { ttl_ms, bind, .. } => {
            (renew(state, counter, now, &op.owner, ttl_ms, bind == Some(Liveness::Lease)), None)
        }
        Verb::Release { fence, whose, .. } => release(state, now, &op.owner, fence, whose),
        Verb::Refresh { .. } | Verb::Resize | Verb::Inspect => (inspect(state, now, is_own), None),
    }
}

/// The lock from the requester's point of view.
enum Ownership {
    Free,
    Own { fence: u64 },
    Foreign(Answer),
}

fn ownership(state: &State, now: Now, owner: &Owner) -> Ownership {
    let Some(lock) = &state.lock else { return Ownership::Free };
    match &lock.value {
        Data::Text(value) => match value.strip_prefix(owner.as_str()) {
            Some("") => Ownership::Own { fence: 0 },
            Some(rest) if rest.starts_with('#') => Ownership::Own { fence: rest[1..].parse().unwrap_or(0) },
            _ => Ownership::Foreign(Answer::Busy { holder: value.clone(), left_ms: lock.left_ms(now) }),
        },
        _ => Ownership::Foreign(other_kind(lock, now)),
    }
}

fn acquire(
    state: &mut State,
    counter: &mut u64,
    now: Now,
    owner: &Owner,
    ttl_ms: u64,
    fence: Fence,
) -> Answer {
    let held = match ownership(state, now, owner) {
        Ownership::Foreign(answer) => return answer,
        Ownership::Own { fence } => Some(fence),
        Ownership::Free => None,
    };
    let fence = match (fence, held) {
        (Fence::Assign | Fence::Optional, Some(held)) if held > 0 => held,
        // Also if the owner holds without a token, after plain commands whose reply was lost.
        (Fence::Assign | Fence::Optional, _) => assign(counter, now),
        (Fence::Ballot(ballot), Some(held)) if ballot <= held => held,
        (Fence::Ballot(ballot), _) => match accept(state, now, ballot) {
            Ok(()) => ballot,
            Err(answer) => return answer,
        },
    };
    if held == Some(fence) {
        extend(state, now, ttl_ms);
    } else {
        // A hold that gets a new token must not have its lease shortened either.
        let left = state.lock.as_ref().and_then(|lock| lock.left_ms(now)).unwrap_or(0);
        let expires_ms = Some(now.ms.saturating_add(ttl_ms.max(left)));
        state.lock = Some(ExpiringValue { value: Data::Text(value_text(owner, fence)), expires_ms });
    }
    Answer::Held { fence }
}

/// The next token. Tokens increase while the counter lives, whatever the clock does; without the counter they
/// increase as long as the clock does not step back past the last grant. Written before the lock itself.
pub(super) fn assign(counter: &mut u64, now: Now) -> u64 {
    assign_above(counter, now, 0)
}

/// The next token, also above one known to be in use.
pub(super) fn assign_above(counter: &mut u64, now: Now, above: u64) -> u64 {
    let next = now.unix_us.max(above.max(*counter) + 1);
    if !planted(Bug::CounterForgotten) {
        *counter = next;
    }
    next
}

/// Accepts a ballot if it is above all that this node has seen. A node without a stored ballot decides by its
/// clock.
fn accept(state: &mut State, now: Now, ballot: u64) -> Result<(), Answer> {
    let stored =
        state.ballot.as_ref().map_or(now.unix_us.saturating_sub(ballot_behind_us()), |ballot| ballot.value);
    if ballot <= stored {
        return Err(Answer::Behind { ballot: stored });
    }
    if ballot > now.unix_us.saturating_add(ballot_ahead_us()) {
        return Err(Answer::Ahead);
    }
    state.ballot = Some(ExpiringValue { value: ballot, expires_ms: Some(now.ms + ballot_ms()) });
    Ok(())
}

/// Records a ballot even if nothing is held, because the acquire that a release undoes may still be in
/// flight. Ballots that would be rejected anyway are not recorded: one far ahead would use up the numbers for
/// every client, and an old one would become the only ballot of a node that has forgotten its own.
fn raise(state: &mut State, now: Now, ballot: u64) {
    if let (Err(Answer::Behind { .. }), Some(stored)) = (accept(state, now, ballot), &mut state.ballot) {
        stored.expires_ms = Some(now.ms + ballot_ms());
    }
}

fn ballot_behind_us() -> u64 {
    if planted(Bug::NoBallotBehind) { 0 } else { BALLOT_BEHIND_US }
}

fn ballot_ahead_us() -> u64 {
    if planted(Bug::NoBallotAhead) { 0 } else { BALLOT_AHEAD_US }
}

fn ballot_ms() -> u64 {
    if planted(Bug::BallotForgotten) { 0 } else { BALLOT_MS }
}

fn renew(
    state: &mut State,
    counter: &mut u64,
    now: Now,
    owner: &Owner,
    ttl_ms: u64,
    detaches: bool,
) -> Answer {
    match ownership(state, now, owner) {
        // The client that resumes the hold needs a token too.
        Ownership::Own { fence: 0 } if detaches => acquire(state, counter, now, owner, ttl_ms, Fence::Assign),
        Ownership::Own { fence } => {
            extend(state, now, ttl_ms);
            Answer::Held { fence }
        }
        Ownership::Free if planted(Bug::RenewalRecreates) => {
            acquire(state, counter, now, owner, ttl_ms, Fence::Assign)
        }
        Ownership::Free => Answer::Free,
        Ownership::Foreign(answer) => answer,
    }
}

/// Extends the lease. No request ever shortens one; only a release ends it.
pub(super) fn extend(state: &mut State, now: Now, ttl_ms: u64) {
    if let Some(lock) = &mut state.lock {
        let end = now.ms.saturating_add(ttl_ms);
        lock.expires_ms = Some(lock.expires_ms.map_or(end, |old| old.max(end)));
    }
}

fn release(
    state: &mut State,
    now: Now,
    owner: &Owner,
    fence: Fence,
    whose: ReleaseScope,
) -> (Answer, Option<Notification>) {
    if let Fence::Ballot(ballot) = fence {
        raise(state, now, ballot);
    }
    match (ownership_for(state, now, owner, fence), whose) {
        (Ownership::Free, _) => (Answer::Free, None),
        (Ownership::Own { .. }, ReleaseScope::Own | ReleaseScope::Named) => {
            state.lock = None;
            (Answer::Released { left: 0 }, Some(Notification::Free { by: Some(owner.clone()) }))
        }
        (Ownership::Foreign(_), ReleaseScope::Own | ReleaseScope::Named)
            if planted(Bug::ReleaseWithoutCompare) =>
        {
            state.lock = None;
            (Answer::Released { left: 0 }, Some(Notification::Free { by: None }))
        }
        (Ownership::Foreign(answer), ReleaseScope::Own | ReleaseScope::Named) => (answer, None),
        (_, ReleaseScope::Any) => force(state, now, is_own, is_lock),
        (_, ReleaseScope::Foreign) => force(state, now, is_own, is_own),
    }
}

/// A release with a ballot undoes only grants of this ballot or a lower one: the owner may have sent a new
/// request since, and that may have arrived first.
fn ownership_for(state: &State, now: Now, owner: &Owner, fence: Fence) -> Ownership {
    match (ownership(state, now, owner), fence, &state.lock) {
        (
            Ownership::Own { fence: held },
            Fence::Ballot(ballot),
            Some(lock @ ExpiringValue { value: Data::Text(value), .. }),
        ) if held > ballot && !planted(Bug::UndoOutlivesRetry) => {
            Ownership::Foreign(Answer::Busy { holder: value.clone(), left_ms: lock.left_ms(now) })
        }
        (ownership, ..) => ownership,
    }
}

fn is_own(data: &Data) -> bool {
    matches!(data, Data::Text(_))
}

/// Whether the value is a mutex of this library.
fn is_lock(data: &Data) -> bool {
    matches!(data, Data::Text(value) if parse_value(value).is_some())
}

/// Whether the value is the grant with this token.
pub(super) fn has(value: &str, fence: u64) -> bool {
    parse_value(value).is_some_and(|(_, held)| held == fence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::LockName;
    use crate::protocol::queue::Queue;
    use crate::protocol::{Kind, LockSpec, apply, end};

    /// One lock and a clock controlled by the test.
    struct Bench {
        state: State,
        counter: u64,
        now: Now,
    }

    impl Bench {
        fn new() -> Self {
            Self { state: State::default(), counter: 0, now: Now { ms: 1_000, unix_us: 1_000_000_000_000 } }
        }

        fn after_ms(&mut self, ms: u64) -> &mut Self {
            self.now.ms += ms;
            self.now.unix_us += ms * 1_000;
            self
        }

        fn ask(&mut self, owner: &Owner, verb: Verb) -> (Answer, Option<Notification>) {
            let name = LockName::new("x").expect("a name");
            apply(
                &mut self.state,
                &mut self.counter,
                self.now,
                &Op { name, spec: LockSpec::Mutex, owner: owner.clone(), request: 0, verb },
            )
        }

        fn acquire(&mut self, owner: &Owner, ttl_ms: u64) -> Answer {
            self.acquire_with(owner, ttl_ms, Fence::Assign)
        }

        fn acquire_with(&mut self, owner: &Owner, ttl_ms: u64, fence: Fence) -> Answer {
            self.ask(
                owner,
                Verb::Acquire {
                    ttl_ms,
                    hold: 1,
                    fence,
                    wait_ms: None,
                    listens: None,
                    bind: Liveness::Process,
                },
            )
            .0
        }

        fn renew(&mut self, owner: &Owner, ttl_ms: u64) -> Answer {
            self.ask(owner, Verb::Renew { ttl_ms, hold: 1, bind: None, weight: None }).0
        }

        fn release(&mut self, owner: &Owner) -> Answer {
            self.ask(owner, Verb::Release { hold: 1, fence: Fence::Assign, whose: ReleaseScope::Own }).0
        }

        fn left_ms(&self) -> Option<u64> {
            self.state.lock.as_ref().and_then(|lock| lock.left_ms(self.now))
        }
    }

    fn owners() -> (Owner, Owner) {
        (Owner::new("a").expect("an owner"), Owner::new("b").expect("an owner"))
    }

    fn fence(answer: Answer) -> u64 {
        match answer {
            Answer::Held { fence } => fence,
            other => panic!("not held: {other:?}"),
        }
    }

    #[test]
    fn a_held_lock_is_refused_to_another_and_says_for_how_long() {
        let ((a, b), mut bench) = (owners(), Bench::new());
        let token = fence(bench.acquire(&a, 100));
        let busy = Answer::Busy { holder: format!("{a}#{token}"), left_ms: Some(70) };
        assert_eq!(bench.after_ms(30).acquire(&b, 100), busy);
        assert_eq!(bench.renew(&b, 100), busy);
        assert_eq!(bench.release(&b), busy);
    }

    #[test]
    fn a_repeated_acquire_is_the_same_grant() {
        let ((a, _), mut bench) = (owners(), Bench::new());
        let token = fence(bench.acquire(&a, 100));
        assert_eq!(fence(bench.after_ms(50).acquire(&a, 100)), token);
        assert_eq!(bench.left_ms(), Some(100));
    }

    #[test]
    fn no_request_shortens_a_lease() {
        let ((a, _), mut bench) = (owners(), Bench::new());
        let token = fence(bench.acquire(&a, 1_000));
        bench.renew(&a, 10);
        bench.acquire(&a, 10);
        bench.acquire_with(&a, 10, Fence::Ballot(token + 1));
        assert_eq!(bench.left_ms(), Some(1_000));
    }

    #[test]
    fn a_lapsed_lease_cannot_be_renewed_and_the_end_itself_is_still_alive() {
        let ((a, _), mut bench) = (owners(), Bench::new());
        bench.acquire(&a, 100);
        assert!(matches!(bench.after_ms(100).renew(&a, 100), Answer::Held { .. }));
        assert_eq!(bench.after_ms(101).renew(&a, 100), Answer::Free);
    }

    #[test]
    fn a_stale_release_never_frees_the_next_holder() {
        let ((a, b), mut bench) = (owners(), Bench::new());
        bench.acquire(&a, 100);
        bench.after_ms(101).acquire(&b, 100);
        assert!(matches!(bench.release(&a), Answer::Busy { .. }));
        assert!(matches!(bench.renew(&b, 100), Answer::Held { .. }));
    }

    #[test]
    fn tokens_grow_when_the_clock_steps_back_and_when_the_counter_is_lost() {
        let ((a, b), mut bench) = (owners(), Bench::new());
        let first = fence(bench.acquire(&a, 100));
        bench.release(&a);
        bench.now.unix_us -= 500_000;
        let second = fence(bench.acquire(&b, 100));
        assert_eq!(second, first + 1);
        (bench.state, bench.counter) = (State::default(), 0);
        bench.now.unix_us = second + 1;
        assert!(fence(bench.acquire(&a, 100)) > second);
    }

    #[test]
    fn a_release_wakes_and_an_owner_is_not_taken_for_one_whose_name_it_begins_with() {
        let ((a, _), mut bench) = (owners(), Bench::new());
        bench.state.lock = Some(ExpiringValue { value: Data::Text(format!("{a}0#5")), expires_ms: None });
        assert!(matches!(bench.release(&a), Answer::Busy { left_ms: None, .. }));
        bench.state.lock = Some(ExpiringValue { value: Data::Text(a.to_string()), expires_ms: None });
        assert_eq!(bench.renew(&a, 50), Answer::Held { fence: 0 });
        let verb = Verb::Release { hold: 1, fence: Fence::Assign, whose: ReleaseScope::Own };
        assert_eq!(
            bench.ask(&a, verb.clone()),
            (Answer::Released { left: 0 }, Some(Notification::Free { by: Some(a.clone()) }))
        );
        assert_eq!(bench.ask(&a, verb), (Answer::Free, None));
    }

    #[test]
    fn anyone_can_force_a_release_and_learns_whose_it_was() {
        let ((a, b), mut bench) = (owners(), Bench::new());
        bench.acquire(&a, 100);
        let (answer, wake) =
            bench.ask(&b, Verb::Release { hold: 1, fence: Fence::Assign, whose: ReleaseScope::Any });
        assert!(
            matches!(answer, Answer::Found(found) if parse_value(&found.holders[0].value).is_some_and(|(owner, _)| owner == a))
        );
        assert_eq!(wake, Some(Notification::Free { by: Some(a.clone()) }));
        assert_eq!(bench.renew(&a, 100), Answer::Free);
    }

    #[test]
    fn a_ballot_is_granted_only_above_all_that_was_seen() {
        let ((a, b), mut bench) = (owners(), Bench::new());
        let clock = bench.now.unix_us;
        assert_eq!(
            bench.acquire_with(&a, 100, Fence::Ballot(clock - 10_000_000)),
            Answer::Behind { ballot: clock - 10_000_000 }
        );
        assert_eq!(bench.acquire_with(&a, 100, Fence::Ballot(clock + 2 * BALLOT_AHEAD_US)), Answer::Ahead);
        assert_eq!(fence(bench.acquire_with(&a, 100, Fence::Ballot(clock))), clock);
        assert_eq!(fence(bench.acquire_with(&a, 100, Fence::Ballot(clock + 5))), clock + 5);
        let undo = Verb::Release { hold: 1, fence: Fence::Ballot(clock + 9), whose: ReleaseScope::Own };
        assert_eq!(bench.ask(&a, undo).0, Answer::Released { left: 0 });
        assert_eq!(
            bench.acquire_with(&b, 100, Fence::Ballot(clock + 9)),
            Answer::Behind { ballot: clock + 9 }
        );
    }

    #[test]
    fn a_release_with_a_ballot_leaves_what_its_owner_took_with_a_higher_one() {
        let ((a, _), mut bench) = (owners(), Bench::new());
        let clock = bench.now.unix_us;
        let undo = |ballot| Verb::Release { hold: 1, fence: Fence::Ballot(ballot), whose: ReleaseScope::Own };
        fence(bench.acquire_with(&a, 100, Fence::Ballot(clock + 5)));
        let left = Answer::Busy { holder: format!("{a}#{}", clock + 5), left_ms: Some(100) };
        assert_eq!(bench.ask(&a, undo(clock + 4)), (left, None));
        assert!(matches!(bench.renew(&a, 100), Answer::Held { .. }));
        assert_eq!(bench.ask(&a, undo(clock + 5)).0, Answer::Released { left: 0 });
    }

    #[test]
    fn a_release_notes_no_ballot_that_would_be_refused() {
        let ((a, b), mut bench) = (owners(), Bench::new());
        let clock = bench.now.unix_us;
        let undo = |ballot| Verb::Release { hold: 1, fence: Fence::Ballot(ballot), whose: ReleaseScope::Own };
        // A node that has lost its ballot answers from its clock, which advances.
        bench.ask(&a, undo(clock - 20_000_000));
        bench.after_ms(5_000);
        let behind = Answer::Behind { ballot: clock - 5_000_000 };
        assert_eq!(bench.acquire_with(&b, 100, Fence::Ballot(clock - 6_000_000)), behind);
        // And a clock far ahead cannot use up the numbers for every client.
        assert_eq!(fence(bench.acquire_with(&a, 100, Fence::Ballot(clock))), clock);
        assert_eq!(bench.ask(&a, undo(clock + 2 * BALLOT_AHEAD_US)).0, Answer::Released { left: 0 });
        assert_eq!(fence(bench.acquire_with(&b, 100, Fence::Ballot(clock + 1))), clock + 1);
    }

    #[test]
    fn another_kind_at_the_name_is_said_and_left_alone() {
        let ((a, _), mut bench) = (owners(), Bench::new());
        let queue = Queue::new(Kind::Fair, 1);
        bench.state.lock = Some(ExpiringValue { value: Data::Queue(queue), expires_ms: None });
        let before = bench.state.clone();
        for answer in [bench.acquire(&a, 100), bench.renew(&a, 100), bench.release(&a)] {
            assert_eq!(answer, Answer::Mismatch { kind: Kind::Fair, capacity: Some(1) });
        }
        assert_eq!(bench.state, before);
    }

    #[test]
    fn the_hold_of_one_who_is_gone_ends_and_no_other() {
        let ((a, b), mut bench) = (owners(), Bench::new());
        let token = fence(bench.acquire(&a, 100));
        end(&mut bench.state, token + 1);
        assert!(matches!(bench.acquire(&b, 100), Answer::Busy { .. }));
        end(&mut bench.state, token);
        assert!(fence(bench.acquire(&b, 100)) > token);
    }
}
