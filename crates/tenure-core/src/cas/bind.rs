//! Binding of holds and places to sessions that live long enough.

use std::sync::Arc;
use std::time::Duration;

use super::WriteState;
use super::backend::Session;
use super::client::CasClient;
use super::leases::{About, KeptSession, PLACE_WAIT, life, place_life, table_hold, usable};
use super::lock_snapshot::{Binding, LockSnapshot};
use super::records::RecordPart;
use crate::planted::{Bug, planted};
use crate::protocol::lease::millis;
use crate::protocol::{Answer, Liveness, Op, Verb};
use crate::store::Failure;

/// The session to which a request binds a hold or place.
#[derive(Clone, Copy)]
pub(super) struct Bind {
    pub(super) session: Session,
    pub(super) ttl: Duration,
    pub(super) is_detached: bool,
}

impl Bind {
    fn to(lease: &KeptSession, ttl: Duration) -> Self {
        Self { session: lease.session, ttl, is_detached: false }
    }

    /// The same session for a request with another ttl.
    pub(super) fn of(self, op: &Op) -> Self {
        match op.verb {
            Verb::Acquire { ttl_ms, .. } => Self { ttl: Duration::from_millis(ttl_ms), ..self },
            _ => self,
        }
    }

    pub(super) fn binding(self) -> Binding {
        let Self { session, ttl, is_detached } = self;
        Binding { session, ttl_ms: millis(ttl), is_detached }
    }
}

/// One request of a batch about one lock.
pub(super) struct BatchMember<'a> {
    pub(super) op: &'a Op,
    pub(super) sent: &'a WriteState,
    /// The session for its hold or place.
    pub(super) bind: Option<Bind>,
    pub(super) about: About,
    /// The record request that it belongs to.
    pub(super) beside: Option<RecordPart<'a>>,
}

impl BatchMember<'_> {
    /// Whether it is answered with a place that lives by the session of places.
    pub(super) fn takes_place(&self, answer: &Answer) -> bool {
        matches!((&self.op.verb, answer.plain()), (Verb::Acquire { .. }, Answer::Waiting { .. }))
            && self.bind.is_some_and(|bind| !bind.is_detached)
    }

    /// What its hold or place is bound to, if places are bound to `place`.
    pub(super) fn bound(&self, answer: &Answer, place: Option<Session>) -> Option<Bind> {
        let session = place.filter(|_| self.takes_place(answer));
        self.bind.map(|bind| Bind { session: session.unwrap_or(bind.session), ..bind })
    }
}

impl CasClient {
    /// The session for the places of these requests.
    pub(super) async fn place_session(&self, members: &[BatchMember<'_>]) -> Result<Session, Failure> {
        let times = || {
            members.iter().filter_map(|of| match of.op.verb {
                Verb::Acquire { ttl_ms, wait_ms, .. } => Some((wait_ms, ttl_ms)),
                _ => None,
            })
        };
        // A request that takes no place has no say in how long the others' places live.
        let places = times().filter_map(|(wait_ms, ttl_ms)| Some((wait_ms?, ttl_ms)));
        let longest = places.max().or_else(|| times().map(|(_, ttl_ms)| (ttl_ms, ttl_ms)).max());
        let (wait_ms, ttl_ms) = longest.unwrap_or_default();
        let wait = Duration::from_millis(wait_ms);
        let life = place_life(Duration::from_millis(ttl_ms), wait);
        match (self.lease_of_life(life, wait, None).await, members.first().and_then(|of| of.bind)) {
            (Ok(lease), _) => Ok(lease.session),
            // The server has no session of this life.
            (Err(Failure::Refused(_)), Some(bind)) => Ok(bind.session),
            (Err(failure), _) => Err(failure),
        }
    }

    /// The session for the hold or place of this request, kept alive for long enough.
    pub(super) async fn bind(self: &Arc<Self>, op: &Op) -> Result<Option<Bind>, Failure> {
        match op.verb {
            // A place lasts for as long as its waiter waits, which may be longer than the lease.
            Verb::Acquire { ttl_ms, wait_ms, bind, .. } => {
                let need = Duration::from_millis(ttl_ms.max(wait_ms.unwrap_or(0)));
                self.bind_to(bind, Duration::from_millis(ttl_ms), need).await.map(Some)
            }
            Verb::Renew { ttl_ms, bind: Some(bind), .. } => {
                // No request shortens a lease, so the new session must cover what is left of it.
                let stored = self.backend.read(&op.name).await.map_err(Failure::not_sent)?;
                let snapshot = LockSnapshot::read(stored.as_ref()).unwrap_or_default();
                let now = self.now();
                let ends = self.ends(&op.name, &snapshot, now);
                let own = snapshot.entries().into_iter().filter(|(_, owner, _)| *owner == op.owner);
                let left_ms = own.filter_map(|(number, owner, hold)| {
                    let left_ms = ends.get(&number)? - now.ms;
                    let mut table = self.table.lock();
                    let is_place = table.hold(&op.name, &(owner, hold)).is_some_and(|hold| hold.is_place());
                    Some(if is_place { left_ms.min(millis(PLACE_WAIT)) } else { left_ms })
                });
                let left_ms = left_ms.max();
                let ttl = Duration::from_millis(left_ms.unwrap_or(0).max(ttl_ms));
                self.bind_to(bind, ttl, ttl).await.map(Some)
            }
            // Renews within the session, or moves to a longer one if that is too short.
            Verb::Renew { ttl_ms, hold, .. } => {
                let ttl = Duration::from_millis(ttl_ms);
                let key = (op.owner.clone(), table_hold(op, hold));
                let session = self.table.lock().hold(&op.name, &key).map(|hold| hold.session);
                // A hold of which this process knows nothing, or whose session has ended: the machine decides.
                let Some(session) = session else { return Ok(None) };
                let Some(known) = self.lease_of(session) else { return Ok(None) };
                let is_long = known.life >= life(ttl) || planted(Bug::CasShortLeaseUnderHold);
                let lease = match is_long {
                    true => self.kept(known.life, ttl).await?,
                    false => self.lease(ttl, ttl).await?,
                };
                Ok(Some(Bind::to(&lease, ttl)))
            }
            // Each session of these places is kept alive, once.
            Verb::Refresh { ref owners, wait_ms, .. } => {
                let wait = Duration::from_millis(wait_ms);
                let lives: Vec<Duration> = {
                    let mut table = self.table.lock();
                    let mut lives = Vec::new();
                    for owner in owners.iter() {
                        let Some(hold) = table.hold(&op.name, &(owner.clone(), 0)).cloned() else { continue };
                        if let Some(lease) = table.lease_of(hold.session)
                            && !lives.contains(&lease.life)
                        {
                            lives.push(lease.life);
                        }
                    }
                    lives
                };
                for known in lives {
                    if usable(known) < wait {
                        return Err(Failure::impossible("a place cannot be kept for longer than its lease"));
                    }
                    self.kept(known, wait).await?;
                }
                Ok(None)
            }
            // Binds nothing.
            Verb::Release { .. } | Verb::Resize | Verb::Inspect => Ok(None),
        }
    }

    async fn bind_to(self: &Arc<Self>, to: Liveness, ttl: Duration, need: Duration) -> Result<Bind, Failure> {
        match to {
            Liveness::Process | Liveness::Work => Ok(Bind::to(&self.lease(ttl, need).await?, ttl)),
            Liveness::Lease => {
                let (session, _) = self.backend.open(life(ttl), false).await.map_err(Failure::not_sent)?;
                Ok(Bind { session, ttl, is_detached: true })
            }
        }
    }

    /// The session of this lifetime, kept alive recently, so that a renewal reads its marker.
    pub(super) async fn kept(&self, class: Duration, need: Duration) -> Result<KeptSession, Failure> {
        self.lease_of_life(class, need, Some(need / 6)).await
    }
}
