//! One request to several members at once, and their answers so far.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};

use super::QuorumInner;
use super::holds::{OwnerHold, SentAcquisition};
use super::member::MemberAnswer;
use crate::protocol::quorum::Vote;
use crate::protocol::{Answer, Op};
use crate::store::Failure;

/// Requests in flight. When dropped, it leaves them to the runtime, so that slow answers are still processed.
pub(super) struct Round {
    quorum: Arc<QuorumInner>,
    pub(super) words: Vec<Vote>,
    pub(super) failures: Vec<Option<Failure>>,
    asks: Vec<Option<Asked>>,
    /// Set for acquisitions: the hold being acquired.
    taker: Option<Taker>,
    /// Until this many members have replied, also wait for members that timed out last time.
    needs: usize,
    was_sent: bool,
}

/// The hold that a round acquires.
#[derive(Clone)]
struct Taker {
    op: Op,
    hold: Arc<OwnerHold>,
    /// Minimum uptime of a member to count, if required.
    longest: Option<Duration>,
}

/// A request in flight, and its acquisition if it is one.
type Asked = (BoxFuture<'static, MemberAnswer>, Option<SentAcquisition>);

impl Round {
    pub(super) fn new(quorum: &Arc<QuorumInner>, needs: usize) -> Self {
        let members = quorum.members.len();
        Self {
            quorum: Arc::clone(quorum),
            words: vec![Vote::Abstains; members],
            failures: vec![None; members],
            asks: std::iter::repeat_with(|| None).take(members).collect(),
            taker: None,
            needs,
            was_sent: false,
        }
    }

    /// A round of acquisitions, which counts only members that have been up for `longest`.
    pub(super) fn taking(
        quorum: &Arc<QuorumInner>,
        op: &Op,
        hold: &Arc<OwnerHold>,
        longest: Option<Duration>,
    ) -> Self {
        let mut round = Self::new(quorum, quorum.majority());
        round.taker = Some(Taker { op: op.clone(), hold: Arc::clone(hold), longest });
        round
    }

    /// Sends a request to a member at the next poll.
    pub(super) fn ask(&mut self, member: usize, op: Op, within: Duration) {
        let question = self.quorum.members[member].ask(op, within);
        self.listen_to(member, question);
    }

    /// Waits for this request to a member.
    pub(super) fn listen_to(&mut self, member: usize, question: BoxFuture<'static, MemberAnswer>) {
        let sent = self.taker.as_ref().map(|taker| taker.hold.sent_to(member));
        self.asks[member] = Some((question, sent));
        self.words[member] = Vote::Pending;
        self.failures[member] = None;
        self.was_sent = false;
    }

    /// Excludes a member, with the reason.
    pub(super) fn leave_out(&mut self, member: usize, why: Failure) {
        (self.words[member], self.failures[member]) = (Vote::Abstains, Some(why));
    }

    /// Stops waiting for members that have not answered yet.
    pub(super) fn give_up_waiting(&mut self) {
        self.go_on_behind();
        for (word, failure) in self.words.iter_mut().zip(&mut self.failures) {
            if *word == Vote::Pending {
                *word = Vote::Silent { maybe: true };
                *failure = Some(Failure::Unknown(Failure::cause("no answer yet")));
            }
        }
    }

    /// Sends the requests and collects answers until there is a verdict. `verdict` is told whether no member
    /// is left that is worth waiting for.
    pub(super) async fn gather<V>(&mut self, verdict: impl Fn(&[Vote], bool) -> Option<V>) -> V {
        poll_fn(|context| {
            // Poll all of them before deciding, because a request is sent when first polled.
            for member in 0..self.asks.len() {
                let Some((ask, sent)) = &mut self.asks[member] else { continue };
                if let Poll::Ready(said) = ask.poll_unpin(context) {
                    let sent = *sent;
                    self.asks[member] = None;
                    self.hear(member, sent, said);
                }
            }
            self.was_sent = true;
            verdict(&self.words, !self.waits()).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    fn hear(&mut self, member: usize, sent: Option<SentAcquisition>, said: MemberAnswer) {
        if let (Some(taker), Some(sent)) = (&self.taker, sent) {
            taker.hold.heard_of(member, sent, &said);
            let now = self.quorum.runtime.now();
            if let (Ok(Answer::Held { .. }), Some(longest)) = (&said, taker.longest)
                && let Err(why) = self.quorum.members[member].votes(now, longest)
            {
                return self.leave_out(member, why);
            }
        }
        self.words[member] = match &said {
            Ok(answer) => Vote::Said(answer.clone()),
            Err(Failure::NotSent(_)) => Vote::Silent { maybe: false },
            Err(Failure::Unknown(_)) => Vote::Silent { maybe: true },
            Err(Failure::Refused(_)) => Vote::Refused,
        };
        self.failures[member] = said.err();
    }

    /// Whether an answer is worth waiting for: from a member that answered last time, or from any member
    /// while too few have answered.
    fn waits(&self) -> bool {
        let pending =
            || self.words.iter().zip(&self.quorum.members).filter(|(word, _)| **word == Vote::Pending);
        let said = self.words.iter().filter(|word| matches!(word, Vote::Said(_))).count();
        pending().any(|(_, member)| said < self.needs || !member.is_silent())
    }

    /// Why each member does not count, as far as known.
    pub(super) fn reasons(&self) -> Vec<Option<Failure>> {
        let reason = |(word, failure): (&Vote, &Option<Failure>)| {
            let text = match word {
                Vote::Pending => "no answer yet",
                Vote::Said(Answer::Ahead) => "the client's clock is more than a year ahead of the member's",
                Vote::Said(Answer::Behind { .. }) => "it has accepted a higher ballot",
                _ => return failure.clone(),
            };
            Some(Failure::NotSent(Failure::cause(text)))
        };
        self.words.iter().zip(&self.failures).map(reason).collect()
    }

    /// Takes the request in flight to a member.
    pub(super) fn take(&mut self, member: usize) -> Option<BoxFuture<'static, MemberAnswer>> {
        self.asks[member].take().map(|(ask, _)| ask)
    }

    fn go_on_behind(&mut self) {
        let rest: Vec<_> = self
            .asks
            .iter_mut()
            .enumerate()
            .filter_map(|(member, ask)| Some((member, ask.take()?)))
            .collect();
        // Requests that were never polled were never sent.
        if rest.is_empty() || !self.was_sent {
            return;
        }
        let rest = rest.into_iter().map(|(member, (ask, sent))| {
            let (quorum, taker) = (Arc::clone(&self.quorum), self.taker.clone());
            async move {
                let said = ask.await;
                if let (Some(Taker { op, hold, .. }), Some(sent)) = (taker, sent) {
                    hold.heard_of(member, sent, &said);
                    if hold.is_passed_on() && hold.may_be_at(member) {
                        quorum.give_back_late(member, &op, &hold).await;
                    }
                }
            }
        });
        let rest = futures_util::future::join_all(rest);
        self.quorum.runtime.spawn(rest.map(drop).boxed());
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        self.go_on_behind();
    }
}
