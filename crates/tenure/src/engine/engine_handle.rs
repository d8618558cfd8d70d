//! What all handles of one `Locks` share: the engine, the queues of its waiters, and its thread.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt, select};

use super::Engine;
use super::flight::Flights;
use super::waiters::process_queues::ProcessQueues;
use crate::events;
use crate::runtime::{Driver, Runtime};

/// An engine and its thread. Both live as long as there is a `Locks`, a lock handle or a guard.
pub(crate) struct EngineHandle {
    pub(crate) engine: Arc<Engine>,
    pub(crate) queues: ProcessQueues,
    pub(crate) flights: Flights,
    driver: Option<Arc<Driver>>,
}

impl EngineHandle {
    pub(crate) fn new(engine: Arc<Engine>, driver: Option<Arc<Driver>>) -> Arc<Self> {
        let queues = ProcessQueues::of(&engine);
        Arc::new(Self { engine, queues, flights: Flights::default(), driver })
    }

    /// Waits until the subscriber has received the events of the driver's thread, at most [`events::FLUSH`].
    pub(crate) async fn events_flushed(&self) {
        if let Some(driver) = &self.driver {
            let timer = driver.sleep_until(driver.now() + events::FLUSH);
            select(pin!(driver.events().flushed()), timer).await;
        }
    }
}

/// How long dropping the last handle waits for queued releases.
const LAST_WAIT: Duration = Duration::from_millis(100);

impl Drop for EngineHandle {
    /// The last handle is gone, perhaps because `main` returns. Waits briefly for queued releases and events,
    /// which then continue for as long as the process lives.
    fn drop(&mut self) {
        self.engine.renewer.close();
        let has_waited = self.queues.close();
        let Some(driver) = self.driver.take() else { return };
        if self.engine.flushed().now_or_never().is_some() {
            driver.stop();
        } else {
            let engine = Arc::clone(&self.engine);
            let last = Arc::clone(&driver);
            driver.spawn(Box::pin(async move {
                engine.flushed().await;
                last.stop();
            }));
            if !driver.is_current() {
                self.engine.pending_releases.wait(LAST_WAIT);
            }
        }
        // Give the store time to remove the waiter's socket.
        if has_waited && !driver.is_current() {
            driver.wait(LAST_WAIT);
        }
        if !driver.is_current() {
            driver.events().wait(events::FLUSH);
        }
    }
}

impl fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineHandle").field("engine", &self.engine).finish_non_exhaustive()
    }
}
