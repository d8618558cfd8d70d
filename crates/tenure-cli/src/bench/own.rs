//! The locks that are measured.
#![expect(
    clippy::disallowed_methods,
    reason = "a timer of this command's own; the clock of leases is the library's"
)]

use std::time::Duration;

use futures_util::future::{join, join_all};
use tenure::{Guard, Locks, Mutex, Owner};
use tokio::time::sleep;

use super::samples::Times;
use super::{HEAD_START, Part, Until};
use crate::clock;
use crate::exit::{BUSY, Failure, LOST};

/// How long to wait for a grant before giving up.
const PATIENCE: Duration = Duration::from_secs(3);

/// Clients with a connection each, like separate processes.
pub(super) struct Own {
    pub(super) clients: Vec<Locks>,
    pub(super) name: String,
}

impl Own {
    /// The name of this measurement's lock.
    pub(super) fn name_of(&self, part: Part) -> String {
        format!("{}:{}", self.name, part.name())
    }

    fn mutex(&self, client: &Locks, part: Part) -> Result<Mutex, Failure> {
        Ok(client.mutex(self.name_of(part))?)
    }

    /// Acquires and releases a free lock.
    pub(super) async fn pair(&self, times: &mut Times) -> Result<(), Failure> {
        let mutex = self.mutex(&self.clients[0], Part::Uncontended)?;
        let start = clock::now();
        let guard = taken(&mutex).await?;
        guard.release().await?;
        times.add_alone(clock::now() - start);
        Ok(())
    }

    /// All clients contend for one lock for a while: measures the time from request to grant.
    pub(super) async fn contended(&self, until: Until, times: &mut Times) -> Result<(), Failure> {
        let start = clock::now();
        let each = self.clients.iter().map(async |client| {
            let (mutex, mut waits) = (self.mutex(client, Part::Contended)?, Vec::new());
            while !until.is_over() {
                let asked = clock::now();
                let guard = taken(&mutex).await?;
                waits.push(clock::now() - asked);
                guard.release().await?;
            }
            Ok::<_, Failure>(waits)
        });
        let waits: Result<Vec<_>, Failure> = join_all(each).await.into_iter().collect();
        times.add_all(waits?.into_iter().flatten(), clock::now() - start);
        Ok(())
    }

    /// One client releases what another awaits: measures the time from release to grant.
    pub(super) async fn handover(&self, times: &mut Times) -> Result<(), Failure> {
        let [first, second, ..] = &self.clients[..] else { unreachable!("there are two clients") };
        let (first, second) = (self.mutex(first, Part::Handover)?, self.mutex(second, Part::Handover)?);
        let guard = taken(&first).await?;
        let (granted, released) =
            join(async { taken(&second).await.map(|guard| (guard, clock::now())) }, async {
                sleep(HEAD_START).await;
                let released = clock::now();
                guard.release().await.map(|()| released)
            })
            .await;
        let (next, granted) = granted?;
        times.add_alone(granted.saturating_sub(released?));
        Ok(next.release().await?)
    }

    /// Acquires the lock that [`renew`](Self::renew) renews.
    pub(super) async fn hold(&self) -> Result<Owner, Failure> {
        let guard = taken(&self.mutex(&self.clients[0], Part::Renewal)?).await?;
        Ok(guard.detach().await?)
    }

    pub(super) async fn renew(&self, owner: Option<&Owner>, times: &mut Times) -> Result<(), Failure> {
        let Some(owner) = owner else { return Ok(()) };
        let start = clock::now();
        let left = self.clients[0].renew_detached(self.name_of(Part::Renewal), owner).await?;
        times.add_alone(clock::now() - start);
        match left {
            Some(_) => Ok(()),
            None => Err(Failure::new(LOST, "the renewed lock was lost")),
        }
    }

    pub(super) async fn give_up(&self, owner: &Owner) -> Result<(), Failure> {
        match self.clients[0].resume(self.name_of(Part::Renewal), owner).await? {
            Some(guard) => Ok(guard.release().await?),
            None => Ok(()),
        }
    }
}

/// Acquires a lock that no other program uses.
async fn taken(mutex: &Mutex) -> Result<Guard, Failure> {
    let message = || format!("lock {:?} was not granted within {PATIENCE:?}", mutex.name());
    let guard = mutex.try_lock_for(PATIENCE).await?;
    guard.ok_or_else(|| Failure::new(BUSY, message()))
}
