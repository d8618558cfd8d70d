//! Decides how each request about one lock is carried out.

use std::sync::Arc;
use std::time::Duration;

use super::WriteState;
use super::bind::BatchMember;
use super::client::{CasClient, abandoned, renewal_patience};
use super::known::Known;
use super::leases::{About, ClientHold, KeptSession, life, table_hold, usable};
use super::records::RecordPart;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Fence, Op, Place, Verb};
use crate::store::Failure;
use crate::store::observe;

impl CasClient {
    /// Carries out one request.
    pub(super) async fn call(self: &Arc<Self>, op: &Op, sent: &WriteState) -> Result<Answer, Failure> {
        let is_ballot = |fence: Fence| matches!(fence, Fence::Ballot(_));
        let has_ballot = match op.verb {
            Verb::Acquire { fence, .. } | Verb::Release { fence, .. } => is_ballot(fence),
            _ => false,
        };
        if has_ballot {
            return Err(Failure::impossible("this server can be no member of a quorum"));
        }
        if let Some(answer) = self.renewed_here(op).await? {
            return Ok(answer);
        }
        if let Some(answer) = self.refreshed_here(op).await? {
            return Ok(answer);
        }
        self.touch(op);
        self.call_about(op, sent, About::Request, None).await
    }

    /// Like [`call`](Self::call), for a request about a place that it does not identify itself, or about the
    /// record beside the lock.
    pub(super) async fn call_about(
        self: &Arc<Self>,
        op: &Op,
        sent: &WriteState,
        about: About,
        beside: Option<RecordPart<'_>>,
    ) -> Result<Answer, Failure> {
        if matches!(op.verb, Verb::Refresh { .. } | Verb::Inspect) {
            return self.run((op, beside), sent, about, &mut Known::default()).await;
        }
        let mine = self.owner_mutex(&op.name, &op.owner);
        let mutex = self.known(&op.name);
        let patience = match op.verb {
            Verb::Renew { ttl_ms, bind: None, weight: None, .. } => {
                Some(renewal_patience(Duration::from_millis(ttl_ms)))
            }
            _ => None,
        };
        let _mine = self.lock_within(&mine, patience).await;
        match (&op.verb, mutex.try_lock()) {
            (_, Ok(mut known)) => self.run((op, beside), sent, about, &mut known).await,
            // Concurrent acquisitions are batched into one write.
            (Verb::Acquire { .. }, Err(_)) => self.together(op, sent).await,
            // Renewals and releases do not wait for the batch, so that a hold does not expire because of
            // newcomers.
            (_, Err(_)) => self.run((op, beside), sent, about, &mut Known::default()).await,
        }
    }

    /// Renews a hold by keeping its session alive, if no client can have ended the hold meanwhile.
    async fn renewed_here(self: &Arc<Self>, op: &Op) -> Result<Option<Answer>, Failure> {
        let Verb::Renew { ttl_ms, hold, bind: None, weight: None } = op.verb else { return Ok(None) };
        let key = (op.owner.clone(), table_hold(op, hold));
        let known = self.table.lock().hold(&op.name, &key).cloned();
        let Some(ClientHold { session, token: Some(_), end_ms, .. }) = known else { return Ok(None) };
        let life_of = self.table.lock().lease_of(session).map(|lease| lease.life);
        let ttl = Duration::from_millis(ttl_ms);
        let is_short = |known| known < life(ttl) && !planted(Bug::CasShortLeaseUnderHold);
        if end_ms < self.now().ms || life_of.is_none_or(is_short) {
            return Ok(None);
        }
        let Some(class) = life_of else { return Ok(None) };
        let lease = self.kept(class, ttl).await?;
        let now_ms = self.now().ms;
        let mut table = self.table.lock();
        let Some(known) = table.hold(&op.name, &key) else { return Ok(None) };
        let Some(fence) = known.token else { return Ok(None) };
        let stands = known.session == lease.session && known.verified == lease.marker;
        if !stands || known.end_ms < now_ms {
            return Ok(None);
        }
        known.end_ms = known.end_ms.max(now_ms.saturating_add(ttl_ms));
        drop(table);
        self.close_idle();
        let answer = Answer::Held { fence };
        observe::unwritten(op, &answer);
        Ok(Some(answer))
    }

    /// Refreshes places without reading the lock, as long as a watch reports each change that concerns them:
    /// their session is kept alive, or lives by itself.
    async fn refreshed_here(self: &Arc<Self>, op: &Op) -> Result<Option<Answer>, Failure> {
        let Verb::Refresh { owners, wait_ms, .. } = &op.verb else { return Ok(None) };
        let wait = Duration::from_millis(*wait_ms);
        let waiting = || -> Option<Vec<(u64, KeptSession)>> {
            let (mut table, now, now_ms) = (self.table.lock(), self.runtime.now(), self.now().ms);
            owners.iter().map(|owner| table.seen_waiting(&op.name, owner, now, now_ms)).collect()
        };
        let Some(places) = waiting() else { return Ok(None) };
        let mut lives: Vec<Duration> = places.iter().map(|(_, lease)| lease.life).collect();
        lives.dedup();
        if wait.is_zero() || lives.iter().any(|life| usable(*life) < wait) {
            return Ok(None);
        }
        if !self.backend.keeps_sessions() && !planted(Bug::CasPlaceUnproven) {
            for life in lives {
                self.lease_of_life(life, wait, None).await?;
            }
        }
        self.touch(op);
        let Some(places) = waiting() else { return Ok(None) };
        self.close_idle();
        let places = places.into_iter().map(|(ticket, _)| Place::Waiting { ticket }).collect();
        Ok(Some(Answer::Places { places, retry_in_ms: None }))
    }

    async fn run(
        self: &Arc<Self>,
        (op, beside): (&Op, Option<RecordPart<'_>>),
        sent: &WriteState,
        about: About,
        known: &mut Known,
    ) -> Result<Answer, Failure> {
        let patience = match op.verb {
            Verb::Renew { ttl_ms, .. } => Some(renewal_patience(Duration::from_millis(ttl_ms))),
            _ => None,
        };
        self.write_barrier(patience).await?;
        let bind = self.bind(op).await?;
        let answers = self.carry_out(&[BatchMember { op, sent, bind, about, beside }], known).await;
        let answer = answers.and_then(|answers| answers.into_iter().next().flatten().ok_or_else(abandoned));
        let is_unbound = match &answer {
            Ok(answer) => matches!(answer.plain(), Answer::Free | Answer::Busy { .. }),
            Err(failure) => matches!(failure, Failure::Refused(_)),
        };
        // It was opened for a hold that outlives this client, and there is none.
        if let Some(bind) = bind.filter(|bind| bind.is_detached && is_unbound) {
            self.close(bind.session);
        }
        answer
    }
}
