//! The bare commands of a store, as a baseline for `tenure bench`: what one would write without this library.

use std::future::Future;
use std::sync::Arc;

use futures_util::future::FutureExt;
use tokio::sync::oneshot;

use super::{Failure, StoreFuture};
use crate::error::{Error, Result};
use crate::runtime::{Driver, Runtime};

/// One client of a store, with a connection of its own and one name.
pub trait BareClient: Send + Sync {
    /// Carries out a step; false if another client has what it takes.
    fn step(&self, step: BareStep) -> StoreFuture<bool>;
}

/// A step of a bare client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BareStep {
    /// Takes the lock if it is free.
    Take,
    /// Extends it.
    Renew,
    /// Releases what `Take` took.
    Give,
    /// Takes a lock of the server's own, and waits for it. Without one, this takes like `Take`.
    Wait,
    /// Releases what `Wait` took.
    Leave,
}

/// The thread of a client's connection.
#[derive(Debug)]
pub struct BareThread(Arc<Driver>);

impl BareThread {
    /// Asks a server on a thread of its own, because the caller's runtime may lack I/O.
    ///
    /// # Errors
    /// Those of [`start`](Self::start) and of the work.
    pub async fn run<T: Send + 'static, W>(
        url: &Arc<str>,
        work: impl FnOnce(Arc<dyn Runtime>) -> W,
    ) -> Result<T>
    where
        W: Future<Output = std::result::Result<T, Failure>> + Send + 'static,
    {
        let thread = Self::start(url)?;
        let work = work(thread.runtime());
        thread.open(url, work).await
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The system's error if it starts no thread.
    pub fn start(url: &Arc<str>) -> Result<Self> {
        Driver::start().map(Self).map_err(|error| Error::no_thread(url, error))
    }

    /// Its runtime.
    #[must_use]
    pub fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.0) as Arc<dyn Runtime>
    }

    /// Opens a connection on this thread.
    ///
    /// # Errors
    /// That of the work.
    pub async fn open<T: Send + 'static>(
        &self,
        url: &Arc<str>,
        work: impl Future<Output = std::result::Result<T, Failure>> + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = oneshot::channel();
        self.0.spawn(async move { drop(tell.send(work.await)) }.boxed());
        let ended = |_| Failure::NotSent(Failure::cause("the thread of this connection has ended"));
        told.await.map_err(ended).flatten().map_err(|failure| Error::unreached(url, failure))
    }
}

impl Drop for BareThread {
    fn drop(&mut self) {
        self.0.stop();
    }
}
