//! The bare commands of the servers other than Redis.
#![expect(
    clippy::disallowed_methods,
    reason = "a timer of this command's own; the clock of leases is the library's"
)]

use std::time::Duration;

use futures_util::future::{join, join_all};
use tenure::diagnosis::{BareClient, BareStep};
use tokio::time::sleep;

use super::{HEAD_START, Missing, POLL, Part, Until};
use crate::clock;
use crate::exit::Failure;
use crate::store;

/// Clients of one server, with a connection each.
pub(super) struct Others {
    clients: Vec<Box<dyn BareClient>>,
    /// What a pair, a wait and a renewal are.
    words: [&'static str; 3],
    /// Whether the server has locks of its own that wait.
    waits: bool,
}

impl Others {
    /// Connects the clients; `None` where this build has no commands for the store.
    pub(super) async fn open(url: &str, name: &str, clients: usize) -> Result<Option<Self>, Failure> {
        let mut all = Vec::new();
        for _ in 0..clients {
            let Some(client) = client(url, name).await? else { return Ok(None) };
            all.push(client);
        }
        let (words, waits) = match store::scheme(url) {
            "etcd" | "etcds" => {
                (["a transaction and a delete", "a transaction, polled, and a delete", "a put"], false)
            }
            "zookeeper" | "zookeepers" => (
                [
                    "an ephemeral node, created and deleted",
                    "an ephemeral node, polled, and deleted",
                    "a node that is set",
                ],
                false,
            ),
            "mysql" | "mariadb" => {
                (["a row, inserted and deleted", "GET_LOCK, then RELEASE_LOCK", "a row, updated"], true)
            }
            _ => (
                [
                    "a row, inserted and deleted",
                    "pg_advisory_lock, then pg_advisory_unlock",
                    "a row, updated",
                ],
                true,
            ),
        };
        Ok(Some(Self { clients: all, words, waits }))
    }

    pub(super) fn what(&self, part: Part) -> String {
        let at = match part {
            Part::Uncontended => 0,
            Part::Contended | Part::Handover => 1,
            Part::Renewal => 2,
        };
        self.words[at].to_owned()
    }

    /// A step of the first client.
    pub(super) async fn first(&self, step: BareStep) -> Result<bool, Missing> {
        done(&*self.clients[0], step).await
    }

    pub(super) async fn pair(&self) -> Result<(), Missing> {
        if self.first(BareStep::Take).await? {
            self.first(BareStep::Give).await?;
        }
        Ok(())
    }

    pub(super) async fn contended(&self, until: Until) -> Result<Vec<Vec<Duration>>, Missing> {
        let turns = self.clients.iter().map(async |client| {
            let mut waits = Vec::new();
            while !until.is_over() {
                let asked = clock::now();
                if !self.wait(&**client, until).await? {
                    break;
                }
                waits.push(clock::now() - asked);
                done(&**client, BareStep::Leave).await?;
            }
            Ok(waits)
        });
        join_all(turns).await.into_iter().collect()
    }

    /// When it was released, and when the other client acquired it.
    pub(super) async fn handover(&self) -> Result<(Duration, Duration), Missing> {
        let [first, second, ..] = &self.clients[..] else { unreachable!("there are two clients") };
        done(&**first, BareStep::Wait).await?;
        let waiting = async {
            let granted = self.wait(&**second, Until::after(HEAD_START * 20)).await?;
            let at = clock::now();
            if granted {
                done(&**second, BareStep::Leave).await?;
            }
            Ok::<_, Missing>(at)
        };
        let releasing = async {
            sleep(HEAD_START).await;
            let at = clock::now();
            done(&**first, BareStep::Leave).await.map(|_| at)
        };
        let (granted, released) = join(waiting, releasing).await;
        Ok((released?, granted?))
    }

    /// Retries until granted; `false` when the time is over.
    async fn wait(&self, client: &dyn BareClient, until: Until) -> Result<bool, Missing> {
        while !done(client, BareStep::Wait).await? {
            if until.is_over() {
                return Ok(false);
            }
            if !self.waits {
                sleep(POLL).await;
            }
        }
        Ok(true)
    }

    /// Deletes what interrupted clients have left.
    pub(super) async fn clear_away(&self) {
        for step in [BareStep::Leave, BareStep::Give] {
            join_all(self.clients.iter().map(|client| done(&**client, step))).await;
        }
    }
}

async fn done(client: &dyn BareClient, step: BareStep) -> Result<bool, Missing> {
    client.step(step).await.map_err(|failure| failure.to_string())
}

/// A client of the server at this URL.
async fn client(url: &str, name: &str) -> Result<Option<Box<dyn BareClient>>, Failure> {
    Ok(match store::scheme(url) {
        "postgres" | "postgresql" => Some(tenure::diagnosis::bare_postgres(url, name).await?),
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => Some(tenure::diagnosis::bare_mysql(url, name).await?),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => Some(tenure::diagnosis::bare_etcd(url, name).await?),
        #[cfg(feature = "zookeeper")]
        "zookeeper" | "zookeepers" => Some(tenure::diagnosis::bare_zookeeper(url, name).await?),
        _ => None,
    })
}
