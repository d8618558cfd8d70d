//! The operations on the members: acquire, renew, release, inspect.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::oneshot;

use super::QuorumInner;
use super::holds::OwnerHold;
use super::member::MemberAnswer;
use super::round::Round;
use crate::moment::Moment;
use crate::planted::{Bug, planted};
use crate::protocol::quorum::{
    Decision, NOBODY, Vote, acquired, found, held, released, renewed, shows, verified,
};
use crate::protocol::{Answer, Fence, Liveness, Op, ReleaseScope, Verb, lease, parse_value};
use crate::store::Failure;

/// Maximum ballots per acquisition.
const BALLOTS: u32 = 2;
/// Maximum time before a client with a split vote retries; its hold is remembered until then.
const SOON: Duration = Duration::from_secs(10);

/// Timeout and initial backoff of background requests.
const WITHIN: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(100);

impl QuorumInner {
    /// Acquires the lock on a majority, or releases it everywhere.
    pub(super) async fn acquire(self: &Arc<Self>, op: Op, ttl_ms: u64, within: Duration) -> MemberAnswer {
        self.twins()?;
        let (sent, ttl, part) = (self.runtime.now(), Duration::from_millis(ttl_ms), self.part(within));
        self.signals.declare_ttl(Duration::from_millis(ttl_ms));
        let longest = self.signals.longest_ttl();
        let hold = self.holds.of(&op.owner, sent, sent + within + ttl);
        let mut ballot = hold.propose(self.runtime.unix_micros(), 0);
        let mut round = Round::taking(self, &op, &hold, Some(longest));
        for (index, member) in self.members.iter().enumerate() {
            match member.votes(sent, longest) {
                Err(why) if member.is_too_young(sent, longest) => round.leave_out(index, why),
                _ => round.ask(index, with_ballot(&op, ttl_ms, ballot), part),
            }
        }
        let mut verdict = round.gather(|words, is_last| acquired(words, ballot, is_last)).await;
        for _ in 1..BALLOTS {
            let Decision::Raise { above } = verdict else { break };
            round.give_up_waiting();
            ballot = hold.propose(self.runtime.unix_micros(), self.beyond(above, sent));
            for index in 0..self.members.len() {
                // Also where the first ballot may have been granted without counting: the token left there
                // would be too low.
                let was_behind = matches!(round.words[index], Vote::Said(Answer::Behind { .. }));
                if was_behind || hold.may_be_at(index) {
                    round.ask(index, with_ballot(&op, ttl_ms, ballot), part);
                }
            }
            verdict = round.gather(|words, is_last| acquired(words, ballot, is_last)).await;
        }
        let now = self.runtime.now();
        // Check again: members asked for the first time are identified only by their answer.
        let twins = self.twins();
        if let Decision::Is(Answer::Held { fence }) = verdict
            && twins.is_ok()
            && lease::deadline(sent, now, ttl) > now
        {
            hold.is_settled();
            hold.is_granted(fence);
            return Ok(Answer::Held { fence });
        }
        let is_undone = self.undo(&mut round, &op, &hold, part).await;
        if is_undone {
            // A client with a split vote retries soon and needs its split count.
            match verdict {
                Decision::Raise { .. } | Decision::Split { .. } => hold.lasts_no_longer_than(now + SOON),
                _ => self.holds.forget(&op.owner),
            }
        }
        let back_off = |hold: &OwnerHold| self.back_off_ms(hold.split(), now.since(sent));
        twins?;
        Ok(match verdict {
            Decision::Is(Answer::Held { .. }) => return Err(self.silence(is_undone, &round)),
            Decision::Is(answer) => {
                hold.is_settled();
                answer
            }
            Decision::Raise { .. } => Answer::Busy { holder: NOBODY.into(), left_ms: Some(back_off(&hold)) },
            Decision::Split { holder, left_ms } => {
                let back_off = back_off(&hold);
                Answer::Busy {
                    holder,
                    left_ms: Some(left_ms.map_or(back_off, |left_ms| left_ms.min(back_off))),
                }
            }
            Decision::Refused => return Err(Failure::Refused(self.why(&round.reasons()))),
            Decision::Silent { .. } => return Err(self.silence(is_undone, &round)),
        })
    }

    /// A ballot above the one in the way, even if that one advances meanwhile: a member without a ballot
    /// answers from its clock.
    fn beyond(&self, ballot: u64, sent: Moment) -> u64 {
        if planted(Bug::RaisedTooLittle) {
            return ballot;
        }
        let trip = self.runtime.now().since(sent);
        ballot.saturating_add(1_000 + 2 * trip.as_micros() as u64)
    }

    fn silence(&self, is_undone: bool, round: &Round) -> Failure {
        let cause = self.why(&round.reasons());
        if is_undone { Failure::NotSent(cause) } else { Failure::Unknown(cause) }
    }

    /// Backoff after a split vote: a random time of up to two round trips, doubled after each split, and
    /// under 500 ms.
    fn back_off_ms(&self, splits: u32, trip: Duration) -> u64 {
        const MOST_MS: u64 = 500;
        let window = lease::millis(2 * trip).saturating_add(2) << splits.min(8);
        self.runtime.random() % window.min(MOST_MS)
    }

    /// Releases whatever an acquisition may have taken, including members whose answer never came. Returns
    /// whether nothing is left.
    async fn undo(
        self: &Arc<Self>,
        round: &mut Round,
        op: &Op,
        hold: &Arc<OwnerHold>,
        part: Duration,
    ) -> bool {
        let (mut undo, releases) = (Round::new(self, 0), self.releases(op, hold));
        for (index, release) in releases.iter().enumerate() {
            let is_there = !planted(Bug::UndoOfGrantsOnly)
                || matches!(round.words[index], Vote::Said(Answer::Held { .. }));
            if hold.may_be_at(index) && is_there {
                undo.listen_to(index, self.release_once(index, release, hold, part));
            }
        }
        let all = |words: &[Vote], is_last| (is_last || !words.contains(&Vote::Pending)).then_some(());
        undo.gather(all).await;
        self.go_on_releasing(&mut undo, &releases, hold)
    }

    /// Continues in the background where a release was not answered. Returns whether there was no such
    /// member.
    fn go_on_releasing(self: &Arc<Self>, round: &mut Round, releases: &[Op], hold: &Arc<OwnerHold>) -> bool {
        let mut all_answered = true;
        for (index, release) in releases.iter().enumerate() {
            let is_unheard = matches!(round.words[index], Vote::Pending | Vote::Silent { .. });
            if is_unheard && hold.may_be_at(index) {
                all_answered = false;
                let first = round.take(index);
                let (quorum, release, hold) = (Arc::clone(self), release.clone(), Arc::clone(hold));
                let under_way = self.signals.background();
                let task = async move {
                    quorum.release_at(index, first, release, &hold).await;
                    drop(under_way);
                };
                self.runtime.spawn(task.boxed());
            }
        }
        all_answered
    }

    /// Releases at one member until it answers, until nothing can be left there, or until the owner has sent
    /// a new acquisition, whose client is then responsible. A release still in flight may arrive after that
    /// acquisition, but its lower ballot leaves the new grant alone.
    async fn release_at(
        self: &Arc<Self>,
        index: usize,
        first: Option<BoxFuture<'static, MemberAnswer>>,
        release: Op,
        hold: &Arc<OwnerHold>,
    ) {
        let has_asked_again = || match release.verb {
            Verb::Release { fence: Fence::Ballot(ballot), .. } => {
                hold.sent_at(index) > ballot && !planted(Bug::UndoOutlivesRetry)
            }
            _ => false,
        };
        let mut said = match first {
            Some(first) => first.await,
            None => Err(Failure::NotSent(Failure::cause("it was not asked yet"))),
        };
        for attempt in 0..u32::MAX {
            if !matches!(said, Err(Failure::NotSent(_) | Failure::Unknown(_)))
                || !hold.may_be_at(index)
                || self.runtime.now() >= hold.until()
                || planted(Bug::UndoneOnce)
            {
                return;
            }
            self.pause(attempt, 4).await;
            if has_asked_again() {
                return;
            }
            said = self.release_once(index, &release, hold, WITHIN).await;
        }
    }

    /// Releases at one member. A ballot there that this side has never sent still belongs to this owner: the
    /// hold was passed on, and a late request of the previous side arrived.
    fn release_once(
        self: &Arc<Self>,
        index: usize,
        release: &Op,
        hold: &Arc<OwnerHold>,
        within: Duration,
    ) -> BoxFuture<'static, MemberAnswer> {
        let (member, release, hold) = (Arc::clone(&self.members[index]), release.clone(), Arc::clone(hold));
        async move {
            let said = member.ask(release.clone(), within).await;
            match said.as_ref().ok().and_then(|answer| of_another_side(answer, &release, &hold, index)) {
                None => said,
                Some(ballot) => {
                    hold.saw(index, ballot);
                    member.ask(release_of(&release, &hold, index), within).await
                }
            }
        }
        .boxed()
    }

    /// Renews on a majority, then reacquires at members where the hold is gone and no client has it. `bind`
    /// is set if the hold is being detached or taken over.
    pub(super) async fn renew(
        self: &Arc<Self>,
        op: Op,
        ttl_ms: u64,
        bind: Option<Liveness>,
        within: Duration,
    ) -> MemberAnswer {
        let sent = self.runtime.now();
        self.signals.declare_ttl(Duration::from_millis(ttl_ms));
        let until = sent + within + Duration::from_millis(ttl_ms);
        if bind.is_some_and(|bind| bind != Liveness::Lease) {
            let hold = self.holds.taken_over(&op.owner, self.members.len(), sent, until);
            return self.resume(op, ttl_ms, hold, within).await;
        }
        let hold = self.holds.of(&op.owner, sent, until);
        if bind.is_some() {
            hold.pass_on();
        }
        let (verdict, mut round) = self.ask_to_renew(&op, within / 2).await;
        if let Decision::Is(Answer::Held { fence }) = verdict {
            hold.has_token(fence);
            if bind.is_none() {
                self.rejoin(&mut round, &op, ttl_ms, &hold, within / 2);
            }
        }
        self.answer(verdict, &round)
    }

    async fn ask_to_renew(self: &Arc<Self>, op: &Op, part: Duration) -> (Decision, Round) {
        let mut round = Round::new(self, self.majority());
        for index in 0..self.members.len() {
            round.ask(index, op.clone(), part);
        }
        (round.gather(renewed).await, round)
    }

    /// Takes over a hold. Runs to completion even if the caller is dropped: if the hold turns out to be lost,
    /// some members may have renewed it anyway, and nobody else would release it there.
    async fn resume(
        self: &Arc<Self>,
        op: Op,
        ttl_ms: u64,
        hold: Arc<OwnerHold>,
        within: Duration,
    ) -> MemberAnswer {
        let (answer, said) = oneshot::channel();
        let quorum = Arc::clone(self);
        let task = async move {
            let said = quorum.take_over(&op, ttl_ms, &hold, within).await;
            let is_lost = !matches!(said, Ok(Answer::Held { .. }) | Err(_));
            let _ = answer.send(said);
            if is_lost && !planted(Bug::FailedResumeLeaves) {
                let _under_way = quorum.signals.background();
                quorum.undo(&mut Round::new(&quorum, 0), &op, &hold, WITHIN).await;
            }
        };
        self.runtime.spawn(task.boxed());
        let is_over = || Failure::Unknown(Failure::cause("the runtime has ended"));
        said.await.unwrap_or_else(|_| Err(is_over()))
    }

    async fn take_over(
        self: &Arc<Self>,
        op: &Op,
        ttl_ms: u64,
        hold: &Arc<OwnerHold>,
        within: Duration,
    ) -> MemberAnswer {
        let (verdict, mut round) = self.ask_to_renew(op, within / 2).await;
        if let Decision::Is(Answer::Held { fence }) = verdict {
            let highest = held(&round.words).max().unwrap_or(fence);
            if highest > fence && !planted(Bug::LowestTokenTaken) {
                return self.agree_on_token(op, ttl_ms, hold, highest, within / 4).await;
            }
            hold.has_token(fence);
            self.rejoin(&mut round, op, ttl_ms, hold, within / 2);
        }
        self.answer(verdict, &round)
    }

    /// Gives a hold that was taken over a token known to a majority. If members report different tokens, the
    /// lowest may be that of an attempt that did not count and lie below the granted one, and the highest may
    /// exist only on a member that reacquired alone.
    async fn agree_on_token(
        self: &Arc<Self>,
        op: &Op,
        ttl_ms: u64,
        hold: &Arc<OwnerHold>,
        highest: u64,
        part: Duration,
    ) -> MemberAnswer {
        let (mut above, sent) = (highest, self.runtime.now());
        // Members vote regardless of their uptime, because a majority has already confirmed the hold.
        let mut round = Round::taking(self, op, hold, None);
        for _ in 0..BALLOTS {
            let ballot = hold.propose(self.runtime.unix_micros(), above);
            for index in 0..self.members.len() {
                round.ask(index, with_ballot(op, ttl_ms, ballot), part);
            }
            match round.gather(|words, is_last| acquired(words, ballot, is_last)).await {
                Decision::Is(Answer::Held { fence }) => {
                    hold.is_granted(fence);
                    return Ok(Answer::Held { fence });
                }
                Decision::Raise { above: higher } => above = self.beyond(higher, sent),
                verdict => return self.answer(verdict, &round),
            }
            round.give_up_waiting();
        }
        Err(Failure::Unknown(self.why(&round.reasons())))
    }

    /// Reacquires where the hold is gone. This is safe because the owner has a majority, so no other client
    /// can have been granted. Without it, members restarting one after another would cost a lock that was
    /// never missing on more than one of them. Also done where a member kept a ballot below the granted one,
    /// because a client that takes the hold over would be shown that ballot.
    fn rejoin(
        self: &Arc<Self>,
        round: &mut Round,
        op: &Op,
        ttl_ms: u64,
        hold: &Arc<OwnerHold>,
        part: Duration,
    ) {
        let token = hold.token();
        let lacks = move |answer: &Answer| match answer {
            Answer::Free => true,
            Answer::Held { fence } => *fence < token,
            _ => false,
        };
        for index in 0..self.members.len() {
            let first = match &round.words[index] {
                Vote::Said(answer) => {
                    if let Answer::Held { fence } = answer {
                        hold.saw(index, *fence);
                    }
                    if !lacks(answer) {
                        continue;
                    }
                    None
                }
                Vote::Pending => round.take(index),
                _ => continue,
            };
            let (quorum, op, hold) = (Arc::clone(self), op.clone(), Arc::clone(hold));
            self.runtime.spawn(
                async move {
                    let is_lacking = match first {
                        Some(first) => {
                            let said = first.await;
                            if let Ok(Answer::Held { fence }) = said {
                                hold.saw(index, fence);
                            }
                            said.is_ok_and(|answer| lacks(&answer))
                        }
                        None => true,
                    };
                    if is_lacking {
                        quorum.rejoin_at(index, &op, ttl_ms, &hold, part).await;
                    }
                }
                .boxed(),
            );
        }
    }

    async fn rejoin_at(
        self: &Arc<Self>,
        index: usize,
        op: &Op,
        ttl_ms: u64,
        hold: &Arc<OwnerHold>,
        part: Duration,
    ) {
        let (mut above, sent) = (hold.token(), self.runtime.now());
        for _ in 0..BALLOTS {
            if hold.has_left() {
                return;
            }
            // A new ballot, because a member that lost everything rejects ballots older than 10 s. It is for
            // this member alone: the clock of one member must not raise the ballots of the others.
            let ballot = hold.propose_to(index, self.runtime.unix_micros(), above);
            let sent_there = hold.sent_to(index);
            let said = self.members[index].ask(with_ballot(op, ttl_ms, ballot), part).await;
            hold.heard_of(index, sent_there, &said);
            match said {
                Ok(Answer::Behind { ballot }) => above = self.beyond(ballot, sent),
                _ => break,
            }
        }
        if hold.has_left() {
            self.give_back_late(index, op, hold).await;
        }
    }

    /// Releases what a member may have granted after the owner left, since the release may have arrived there
    /// first. If the hold was passed on, its new holder may count on this member, so wait until the hold has
    /// ended.
    pub(super) async fn give_back_late(self: &Arc<Self>, index: usize, op: &Op, hold: &Arc<OwnerHold>) {
        if !hold.is_passed_on() || self.ends(op, hold).await {
            let _under_way = self.signals.background();
            self.release_at(index, None, release_of(op, hold, index), hold).await;
        }
    }

    /// Waits until no majority reports the hold any more, with a polling interval that grows to about two
    /// minutes. Returns false if the last lease requested by this side ends first.
    async fn ends(self: &Arc<Self>, op: &Op, hold: &OwnerHold) -> bool {
        for attempt in 0..u32::MAX {
            let look = Op { verb: Verb::Inspect, ..op.clone() };
            if self.look(look, 2 * WITHIN).await.is_ok_and(|answer| !shows(&answer, &op.owner)) {
                return true;
            }
            if self.runtime.now() >= hold.until() {
                break;
            }
            self.pause(attempt, 10).await;
        }
        false
    }

    /// Exponential backoff, capped after `doublings` doublings.
    async fn pause(&self, attempt: u32, doublings: u32) {
        let pause = PAUSE * (1 << attempt.min(doublings)) + Duration::from_millis(self.runtime.random() % 50);
        self.runtime.sleep_until(self.runtime.now() + pause).await;
    }

    /// Releases the owner's hold, or that of any client.
    pub(super) async fn release(
        self: &Arc<Self>,
        op: Op,
        whose: ReleaseScope,
        within: Duration,
    ) -> MemberAnswer {
        let (now, part) = (self.runtime.now(), within / 2);
        let hold = self.holds.known(&op.owner).unwrap_or_else(|| self.unknown_hold(now));
        hold.leave();
        // Every subscriber of a mutex gets its release, so the holder needs no separate notification.
        let whose = if whose == ReleaseScope::Named { ReleaseScope::Own } else { whose };
        let releases = match whose {
            ReleaseScope::Own | ReleaseScope::Named => self.releases(&op, &hold),
            ReleaseScope::Any | ReleaseScope::Foreign => vec![op.clone(); self.members.len()],
        };
        let mut round = Round::new(self, self.majority());
        for (index, release) in releases.iter().enumerate() {
            match whose {
                ReleaseScope::Own | ReleaseScope::Named => {
                    round.listen_to(index, self.release_once(index, release, &hold, part))
                }
                ReleaseScope::Any | ReleaseScope::Foreign => round.ask(index, release.clone(), part),
            }
        }
        let verdict = match whose {
            ReleaseScope::Own | ReleaseScope::Named => round.gather(released).await,
            ReleaseScope::Any | ReleaseScope::Foreign => round.gather(found).await,
        };
        if let (Decision::Is(_), ReleaseScope::Own) = (&verdict, whose) {
            self.go_on_releasing(&mut round, &releases, &hold);
            self.holds.forget(&op.owner);
        }
        self.answer(verdict, &round)
    }

    /// The release for each member at this moment. It leaves later acquisitions of the owner alone.
    fn releases(&self, op: &Op, hold: &OwnerHold) -> Vec<Op> {
        (0..self.members.len()).map(|index| release_of(op, hold, index)).collect()
    }

    /// A hold that this side has no record of, because it was taken over or forgotten. It may be on any
    /// member, with any ballot.
    fn unknown_hold(&self, now: Moment) -> Arc<OwnerHold> {
        let hold = OwnerHold::default();
        hold.lasts_until(now + self.signals.longest_ttl());
        for index in 0..self.members.len() {
            hold.sent_to(index);
        }
        Arc::new(hold)
    }

    /// Inspects the holders and verifies whether the asker is one of them.
    pub(super) async fn look(self: &Arc<Self>, op: Op, within: Duration) -> MemberAnswer {
        let mut round = Round::new(self, self.majority());
        for index in 0..self.members.len() {
            round.ask(index, op.clone(), within / 2);
        }
        let verdict = round.gather(|words, is_last| verified(words, &op.owner, is_last)).await;
        self.answer(verdict, &round)
    }

    pub(super) fn answer(&self, verdict: Decision, round: &Round) -> MemberAnswer {
        Err(match verdict {
            Decision::Is(answer) => return Ok(answer),
            Decision::Silent { maybe: false } => Failure::NotSent(self.why(&round.reasons())),
            Decision::Refused => Failure::Refused(self.why(&round.reasons())),
            // Only acquisitions can be split.
            Decision::Silent { .. } | Decision::Split { .. } | Decision::Raise { .. } => {
                Failure::Unknown(self.why(&round.reasons()))
            }
        })
    }
}

/// The ballot of a hold that a member still reports after its release, if it is higher than any this side has
/// sent.
fn of_another_side(answer: &Answer, release: &Op, hold: &OwnerHold, member: usize) -> Option<u64> {
    let Answer::Busy { holder, .. } = answer else { return None };
    let (owner, ballot) = parse_value(holder)?;
    (owner == release.owner && ballot > hold.sent_at(member)).then_some(ballot)
}

fn with_ballot(op: &Op, ttl_ms: u64, ballot: u64) -> Op {
    let fence = if planted(Bug::TokensByCounter) { Fence::Assign } else { Fence::Ballot(ballot) };
    let verb =
        Verb::Acquire { ttl_ms, hold: 0, fence, wait_ms: None, listens: None, bind: Liveness::Process };
    Op { verb, ..op.clone() }
}

/// The request that releases a hold at one member. If its ballot is unknown, any ballot is released.
fn release_of(op: &Op, hold: &OwnerHold, member: usize) -> Op {
    let fence = match hold.ballot_at(member) {
        0 => Fence::Assign,
        ballot => Fence::Ballot(ballot),
    };
    Op { verb: Verb::Release { hold: 0, fence, whose: ReleaseScope::Own }, ..op.clone() }
}
