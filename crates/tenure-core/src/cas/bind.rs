//! Binding of holds and places to handles that live long enough.

use std::sync::Arc;
use std::time::Duration;

use super::WriteState;
use super::backend::Handle;
use super::client::{CasClient, not_sent};
use super::leases::{About, KeptHandle, life, table_hold};
use super::records::RecordPart;
use super::view::{Binding, LockSnapshot};
use crate::protocol::lease::millis;
use crate::protocol::{Liveness, Op, Verb};
use crate::store::Failure;

/// The handle to which a request binds a hold or place.
#[derive(Clone, Copy)]
pub(super) struct Bind {
    pub(super) handle: Handle,
    pub(super) ttl: Duration,
    pub(super) is_detached: bool,
}

impl Bind {
    fn to(lease: &KeptHandle, ttl: Duration) -> Self {
        Self { handle: lease.handle, ttl, is_detached: false }
    }

    /// The same handle for a request with another ttl.
    pub(super) fn of(self, op: &Op) -> Self {
        match op.verb {
            Verb::Acquire { ttl_ms, .. } => Self { ttl: Duration::from_millis(ttl_ms), ..self },
            _ => self,
        }
    }

    pub(super) fn binding(self) -> Binding {
        let Self { handle, ttl, is_detached } = self;
        Binding { handle, ttl_ms: millis(ttl), is_detached }
    }
}

/// One request of a batch about one lock.
pub(super) struct BatchMember<'a> {
    pub(super) op: &'a Op,
    pub(super) sent: &'a WriteState,
    /// The handle for its hold or place.
    pub(super) bind: Option<Bind>,
    pub(super) about: About,
    /// The record request that it belongs to.
    pub(super) beside: Option<RecordPart<'a>>,
}

impl CasClient {
    /// The handle for the hold or place of this request, kept alive for long enough.
    pub(super) async fn bind(self: &Arc<Self>, op: &Op) -> Result<Option<Bind>, Failure> {
        match op.verb {
            Verb::Acquire { ttl_ms, wait_ms, bind, .. } => {
                let need = Duration::from_millis(ttl_ms.max(wait_ms.unwrap_or(0)));
                self.bind_to(bind, Duration::from_millis(ttl_ms), need).await.map(Some)
            }
            Verb::Renew { ttl_ms, bind: Some(bind), .. } => {
                // No request shortens a lease, so the new handle must cover what is left of it.
                let stored = self.backend.read(&op.name).await.map_err(not_sent)?;
                let view = LockSnapshot::read(stored.as_ref()).unwrap_or_default();
                let now = self.now();
                let ends = self.ends(&op.name, &view, now);
                let own = view.entries().into_iter().filter(|(_, owner, _)| *owner == op.owner);
                let left_ms =
                    own.filter_map(|(number, _, _)| ends.get(&number)).map(|end| end - now.ms).max();
                let ttl = Duration::from_millis(left_ms.unwrap_or(0).max(ttl_ms));
                self.bind_to(bind, ttl, ttl).await.map(Some)
            }
            Verb::Renew { ttl_ms, hold, .. } => {
                let ttl = Duration::from_millis(ttl_ms);
                let key = (op.owner.clone(), table_hold(op, hold));
                let handle = self.table.lock().hold(&op.name, &key).map(|hold| hold.handle);
                let Some(handle) = handle else { return Ok(None) };
                let Some(known) = self.lease_of(handle) else { return Ok(None) };
                let lease = match known.life >= life(ttl) {
                    true => self.kept(known.life, ttl).await?,
                    false => self.lease(ttl, ttl, None).await?,
                };
                Ok(Some(Bind::to(&lease, ttl)))
            }
            Verb::Refresh { ref owners, wait_ms, .. } => {
                let wait = Duration::from_millis(wait_ms);
                let lives: Vec<Duration> = {
                    let mut table = self.table.lock();
                    let mut lives = Vec::new();
                    for owner in owners.iter() {
                        let Some(hold) = table.hold(&op.name, &(owner.clone(), 0)).cloned() else { continue };
                        if let Some(lease) = table.lease_of(hold.handle)
                            && !lives.contains(&lease.life)
                        {
                            lives.push(lease.life);
                        }
                    }
                    lives
                };
                for known in lives {
                    if known < life(wait) {
                        return Err(Failure::impossible("a place cannot be kept for longer than its lease"));
                    }
                    self.kept(known, wait).await?;
                }
                Ok(None)
            }
            Verb::Release { .. } | Verb::Resize | Verb::Inspect => Ok(None),
        }
    }

    async fn bind_to(self: &Arc<Self>, to: Liveness, ttl: Duration, need: Duration) -> Result<Bind, Failure> {
        match to {
            Liveness::Process | Liveness::Work => Ok(Bind::to(&self.lease(ttl, need, None).await?, ttl)),
            Liveness::Lease => {
                let (handle, _) = self.backend.open(life(ttl), false).await.map_err(not_sent)?;
                Ok(Bind { handle, ttl, is_detached: true })
            }
        }
    }

    /// The handle of this lifetime, kept alive recently, so that a renewal reads its marker.
    pub(super) async fn kept(&self, class: Duration, need: Duration) -> Result<KeptHandle, Failure> {
        self.lease_of_life(class, need, Some(need / 6)).await
    }
}
