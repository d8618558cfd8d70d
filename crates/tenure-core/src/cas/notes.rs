//! How requests and their answers change the client's record of its holds and places.

use std::sync::Arc;

use super::backend::Session;
use super::bind::Bind;
use super::client::CasClient;
use super::leases::{ClientHold, HoldKey, HoldTable, table_hold};
use crate::moment::Moment;
use crate::planted::{Bug, planted};
use crate::protocol::lease::millis;
use crate::protocol::{Answer, Liveness, LockSpec, Op, Place, ReleaseScope, Verb};

/// Time after a release request during which its hold is not removed as expired.
const RELEASE_MS: u64 = 2_000;

/// How long a place lasts from a request that keeps it for `wait_ms`. Its client may be late with the next one:
/// the place lives by its session, and only its own client removes it sooner.
fn place_end(wait_ms: u64) -> u64 {
    wait_ms.saturating_mul(3)
}

/// The record of a hold or place before a request, and the expiry recorded for that request.
pub(super) type Former = Option<(HoldKey, Option<ClientHold>, u64)>;

impl CasClient {
    /// Extends the holds that a request is about, so that they do not expire while it is in flight. No other
    /// client removes them while their session is alive.
    pub(super) fn touch(&self, op: &Op) {
        let (now, now_ms) = (self.runtime.now(), self.now().ms);
        let mut table = self.table.lock();
        let mut until = |key: &HoldKey, lasts_ms: u64, place_ms: u64| {
            if let Some(hold) = table.hold(&op.name, key).filter(|hold| hold.end_ms >= now_ms) {
                let lasts_ms = if hold.is_place() { place_ms } else { lasts_ms };
                hold.end_ms = hold.end_ms.max(now_ms.saturating_add(lasts_ms));
                hold.refreshed = now;
            }
        };
        match &op.verb {
            Verb::Renew { ttl_ms, .. } => until(&key(op, false), *ttl_ms, *ttl_ms),
            Verb::Release { whose: ReleaseScope::Own, .. } => {
                until(&key(op, false), RELEASE_MS, RELEASE_MS);
            }
            Verb::Refresh { owners, wait_ms, .. } => {
                owners.iter().for_each(|owner| until(&(owner.clone(), 0), *wait_ms, place_end(*wait_ms)));
            }
            _ => {}
        }
    }

    /// Records the holds and places that a request may be granted or may extend. Returns the expiry of a hold
    /// or place that is bound; 0 if one that the answer confirms has expired.
    ///
    /// A write in flight may be removing what has expired, so no answer revives it: only a write that is yet to
    /// be sent does, because the server carries out just one of the two.
    fn enter(
        self: &Arc<Self>,
        op: &Op,
        answer: &Answer,
        bind: Option<Bind>,
        begun: Moment,
        is_sent: bool,
    ) -> Option<u64> {
        let now_ms = self.now().ms;
        let mut table = self.table.lock();
        let (hold, lasts, is_held) = match (&op.verb, answer.plain()) {
            (Verb::Acquire { ttl_ms, hold, .. }, Answer::Held { .. }) => (*hold, *ttl_ms, true),
            (Verb::Acquire { ttl_ms, hold, wait_ms, .. }, Answer::Waiting { .. }) => {
                (*hold, place_end(wait_ms.unwrap_or(*ttl_ms)), false)
            }
            (Verb::Renew { ttl_ms, hold, bind: to, .. }, Answer::Held { .. } | Answer::Growing { .. }) => {
                // A hold that is bound to another session keeps what is left of its lease.
                (*hold, if to.is_some() { millis(bind?.ttl) } else { *ttl_ms }, true)
            }
            (Verb::Refresh { owners, wait_ms, .. }, Answer::Places { places, .. }) => {
                let mut is_any_over = false;
                for (owner, place) in owners.iter().zip(places) {
                    let Some(hold) = table.hold(&op.name, &(owner.clone(), 0)) else { continue };
                    hold.looked = None;
                    let lasts = match place {
                        Place::Gone => continue,
                        // It has expired here, and must not be revived.
                        _ if hold.end_ms < now_ms => {
                            is_any_over = true;
                            continue;
                        }
                        Place::Held { .. } => *wait_ms,
                        Place::Waiting { .. } => place_end(*wait_ms),
                    };
                    hold.end_ms = hold.end_ms.max(now_ms.saturating_add(lasts));
                    hold.looked = matches!(place, Place::Waiting { .. }).then_some(begun);
                }
                return is_any_over.then_some(0);
            }
            // Nothing is granted or extended.
            _ => return None,
        };
        let bind = bind?;
        let key = (op.owner.clone(), bound_hold(op, hold, bind.is_detached));
        let is_over = table.hold(&op.name, &key).is_none_or(|hold| hold.end_ms < now_ms);
        if is_sent && is_over && !planted(Bug::CasLapsedConfirmed) {
            return Some(0);
        }
        table.cap_granted_place(&op.name, &key, is_held, now_ms);
        let end_ms = enter(&mut table, op, key, bind.session, now_ms.saturating_add(lasts));
        drop(table);
        self.sweep(end_ms);
        Some(end_ms)
    }

    /// Records what a request may be granted, before it is sent. Returns the former record.
    pub(super) fn note_request(self: &Arc<Self>, op: &Op, answer: &Answer, bind: Option<Bind>) -> Former {
        let now_ms = self.now().ms;
        let key = bind.map(|bind| key(op, bind.is_detached));
        let former = key.map(|key| {
            let mut former = self.table.lock().hold(&op.name, &key).cloned();
            if let Some(former) = former.as_mut().filter(|former| former.end_ms < now_ms) {
                former.end_ms = 0;
            }
            (key, former)
        });
        let noted = self.enter(op, answer, bind, self.runtime.now(), false).unwrap_or(0);
        former.map(|(key, former)| (key, former, noted))
    }

    /// Undoes [`note_request`](Self::note_request) for a request that was not carried out.
    pub(super) fn undo_note(&self, op: &Op, former: Former) {
        if let Some((key, former, noted)) = former {
            self.restore(op, &key, former, noted);
        }
    }

    /// Restores the record before a request that was not carried out.
    fn restore(&self, op: &Op, key: &HoldKey, former: Option<ClientHold>, noted: u64) {
        let mut table = self.table.lock();
        match former {
            Some(former) => {
                // Another request may have extended it meanwhile, if it had not expired.
                let is_restored = |hold: &&mut ClientHold| hold.end_ms == noted || former.end_ms == 0;
                if let Some(hold) = table.hold(&op.name, key).filter(is_restored) {
                    (hold.session, hold.end_ms) = (former.session, former.end_ms);
                    self.sweep_sooner(former.end_ms);
                }
            }
            None => table.forget(&op.name, key),
        }
    }

    /// Records the result of a request for this client's holds. False if one that the answer confirms has
    /// expired: the answer stands only if it was written.
    pub(super) fn settle(
        self: &Arc<Self>,
        op: &Op,
        answer: &Answer,
        bind: Option<Bind>,
        (marker, begun): (Option<u64>, Moment),
    ) -> bool {
        let stands = self.enter(op, answer, bind, begun, true) != Some(0);
        let mut table = self.table.lock();
        let (hold, is_bound) = match op.verb {
            Verb::Acquire { hold, .. } => (hold, true),
            Verb::Renew { hold, .. } => (hold, bind.is_some()),
            Verb::Release { hold, whose: ReleaseScope::Own, .. } => (hold, true),
            _ => return stands,
        };
        let is_detached = bind.is_some_and(|bind| bind.is_detached);
        let key: HoldKey = (op.owner.clone(), bound_hold(op, hold, is_detached));
        match answer.plain() {
            Answer::Held { fence } | Answer::Growing { fence, .. } if is_bound => {
                if let Some(hold) = table.hold(&op.name, &key) {
                    (hold.token, hold.former) = (Some(*fence), None);
                    hold.verified = marker.unwrap_or(0);
                }
                // A hold that was detached or resumed has another key from now on.
                if op.spec == LockSpec::Reentrant
                    && let Verb::Renew { bind: Some(_), hold, .. } = op.verb
                {
                    let other = if is_detached { hold } else { 0 };
                    table.forget(&op.name, &(op.owner.clone(), other));
                }
            }
            Answer::Waiting { ticket, .. } => {
                if let Some(hold) = table.hold(&op.name, &key) {
                    (hold.ticket, hold.looked) = (Some(*ticket), stands.then_some(begun));
                    hold.refreshed = self.runtime.now();
                }
            }
            Answer::Held { .. } | Answer::Growing { .. } | Answer::Resized => {}
            _ => table.forget(&op.name, &key),
        }
        stands
    }
}

/// Records a hold; returns its expiry.
fn enter(table: &mut HoldTable, op: &Op, key: HoldKey, session: Session, end_ms: u64) -> u64 {
    let holds = table.holds.entry(op.name.clone()).or_default();
    let fresh = ClientHold {
        spec: op.spec,
        session,
        former: None,
        end_ms,
        token: None,
        ticket: None,
        looked: None,
        refreshed: Moment::default(),
        verified: 0,
        record: None,
        is_ending: false,
    };
    let hold = holds.entry(key).or_insert(fresh);
    if hold.session != session {
        hold.former = Some(hold.session);
    }
    hold.session = session;
    hold.end_ms = hold.end_ms.max(end_ms);
    hold.end_ms
}

/// The hold number in the table after binding: a detached hold has none.
fn bound_hold(op: &Op, hold: u64, is_detached: bool) -> u64 {
    if is_detached { 0 } else { table_hold(op, hold) }
}

/// The table key of the hold or place of this request.
fn key(op: &Op, is_detached: bool) -> HoldKey {
    let hold = match op.verb {
        Verb::Acquire { hold, .. } | Verb::Renew { hold, .. } | Verb::Release { hold, .. } => hold,
        Verb::Refresh { .. } | Verb::Resize | Verb::Inspect => 0,
    };
    (op.owner.clone(), bound_hold(op, hold, is_detached))
}

/// The number of the hold or place in this answer.
pub(super) fn number(op: &Op, answer: &Answer) -> Option<u64> {
    let (hold, detaches) = match op.verb {
        Verb::Acquire { hold, bind, .. } => (hold, bind == Liveness::Lease),
        Verb::Renew { hold, bind, .. } => (hold, bind == Some(Liveness::Lease)),
        _ => return None,
    };
    match *answer.plain() {
        Answer::Held { .. } if op.spec == LockSpec::Reentrant => Some(bound_hold(op, hold, detaches)),
        Answer::Held { fence: number }
        | Answer::Growing { fence: number, .. }
        | Answer::Waiting { ticket: number, .. } => Some(number),
        _ => None,
    }
}
