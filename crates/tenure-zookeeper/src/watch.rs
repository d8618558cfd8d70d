//! Reports changes of one lock and ended sessions.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::mpsc;

use super::link::{Link, News};
use super::messages::{code, exists, get_data};
use super::nodes::{Nodes, unreadable};
use tenure_core::cas::{LockWatch, Stored, WatchNotice};
use tenure_core::store::Failure;

/// A watch, open as long as its connection.
///
/// ZooKeeper notifies once per watch, without the new content. Each read of the node therefore also sets the
/// watch for the next change, so that no change is missed in between.
pub(super) struct ZooKeeperWatch {
    nodes: Arc<Nodes>,
    link: Arc<Link>,
    path: String,
    id: u64,
    news: mpsc::UnboundedReceiver<News>,
}

impl ZooKeeperWatch {
    /// Receives the connection's events from now on, without a request yet.
    pub(super) fn begin(nodes: Arc<Nodes>, link: Arc<Link>, path: String) -> Self {
        let (id, news) = link.watch(path.clone(), nodes.leases());
        Self { nodes, link, path, id, news }
    }

    /// Reads the lock and watches for its next change. `first` is a request to send before.
    pub(super) async fn look(&self, first: Option<Vec<u8>>) -> Result<Option<Stored>, Failure> {
        let mut requests: Vec<_> = first.into_iter().collect();
        loop {
            requests.push(get_data(&self.path, true));
            let (connection, replies) = self.link.ask(std::mem::take(&mut requests), None).await?;
            let (found, before) = replies.split_last().ok_or_else(unreadable)?;
            before.iter().try_for_each(|reply| self.nodes.ok(reply))?;
            if let Some(stored) = self.nodes.stored(found)? {
                return Ok(Some(stored));
            }
            // A missing node is watched with `exists`.
            let (_, replies) = self.link.ask(vec![exists(&self.path, true)], Some(connection)).await?;
            let [there] = &replies[..] else { return Err(unreadable()) };
            match there.code {
                code::NO_NODE => return Ok(None),
                _ => self.nodes.ok(there)?,
            }
        }
    }
}

impl LockWatch for ZooKeeperWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<WatchNotice, Failure>> {
        async move {
            loop {
                let ended = || Failure::Unknown(Failure::cause("a watch ended with its connection"));
                match self.news.recv().await.ok_or_else(ended)? {
                    News::Changed => return Ok(WatchNotice::Lock(self.look(None).await?)),
                    News::Gone(marker) => {
                        if let Some(session) = self.nodes.session(&marker) {
                            return Ok(WatchNotice::Gone(session));
                        }
                    }
                }
            }
        }
        .boxed()
    }
}

impl Drop for ZooKeeperWatch {
    fn drop(&mut self) {
        self.link.unwatch(self.id);
    }
}
