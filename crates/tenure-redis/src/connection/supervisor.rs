//! Keeps one connection to a server open.

use std::pin::pin;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select};
use tokio::sync::Notify;

use crate::connection::Connector;
use crate::connection::pipeline::Pipeline;
use crate::replies::failure::is_of_dial;
use tenure_core::moment::Moment;
use tenure_core::net::{Supervision, by};
use tenure_core::store::{Failure, Incarnation, Signals};
use tenure_core::sync::{Locked, wait_for};

/// The connection for requests, dialled on first use and again whenever it is lost.
pub(crate) struct Supervisor {
    connector: Arc<Connector>,
    state: Locked<SupervisorState>,
    signals: Signals,
    /// Notified on every change of the state.
    changed: Notify,
}

#[derive(Default)]
struct SupervisorState {
    pipeline: Option<Arc<Pipeline>>,
    started: bool,
    closed: bool,
    /// Number of failed connects, and the last reason.
    failures: u64,
    failure: Option<Failure>,
}

impl Supervisor {
    pub(crate) fn new(connector: Arc<Connector>) -> Arc<Self> {
        Self::reporting(connector, Signals::default())
    }

    /// A supervisor that reports reconnects to these signals.
    pub(crate) fn reporting(connector: Arc<Connector>, signals: Signals) -> Arc<Self> {
        let (state, changed) = (Locked::default(), Notify::new());
        Arc::new(Self { connector, state, signals, changed })
    }

    fn state(&self) -> MutexGuard<'_, SupervisorState> {
        self.state.lock()
    }

    /// The connection; waits until there is one.
    pub(crate) async fn pipeline(self: &Arc<Self>, deadline: Moment) -> Result<Arc<Pipeline>, Failure> {
        match self.open_pipeline() {
            Some(pipeline) => Ok(pipeline),
            None => self.wait_for_pipeline(deadline, false).boxed().await,
        }
    }

    /// Like [`pipeline`](Self::pipeline), but fails as soon as the system reports that the server cannot be
    /// dialled.
    pub(crate) async fn pipeline_at_once(
        self: &Arc<Self>,
        deadline: Moment,
    ) -> Result<Arc<Pipeline>, Failure> {
        self.wait_for_pipeline(deadline, true).boxed().await
    }

    /// The connection, if one is open.
    pub(crate) fn open_pipeline(&self) -> Option<Arc<Pipeline>> {
        self.state().pipeline()
    }

    async fn wait_for_pipeline(
        self: &Arc<Self>,
        deadline: Moment,
        at_once: bool,
    ) -> Result<Arc<Pipeline>, Failure> {
        let before = self.start();
        let mut why = None;
        let connected = wait_for(&self.changed, || {
            let state = self.state();
            if let Some(pipeline) = state.pipeline() {
                return Some(Ok(pipeline));
            }
            why.clone_from(&state.failure);
            if state.closed {
                return Some(Err(why.clone().unwrap_or_else(|| self.connector.stage.no_connection())));
            }
            // Waiting does not fix wrong credentials. Failures from before this call do not count.
            let is_final = |failure: &&Failure| {
                state.failures > before
                    && (matches!(failure, Failure::Refused(_)) || at_once && is_of_dial(failure))
            };
            state.failure.as_ref().filter(is_final).cloned().map(Err)
        });
        match by(&*self.connector.runtime, deadline, connected).await {
            Some(pipeline) => pipeline,
            None => Err(why.unwrap_or_else(|| self.connector.stage.no_connection())),
        }
    }

    /// Whether it was closed for good.
    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Starts to dial, if it has not yet. Returns the number of failed connects so far.
    pub(crate) fn start(self: &Arc<Self>) -> u64 {
        let mut state = self.state();
        if !state.started && !state.closed {
            state.started = true;
            self.connector.runtime.spawn(Arc::clone(self).supervise().boxed());
        }
        state.failures
    }

    /// Interrupted by each reconnect, with the server's incarnation at the last connect.
    pub(crate) fn signals(&self) -> &Signals {
        &self.signals
    }

    /// Closes the connection and ends the supervisor.
    pub(crate) fn close(&self) {
        let pipeline = {
            let mut state = self.state();
            state.closed = true;
            state.pipeline.take()
        };
        if let Some(pipeline) = pipeline {
            pipeline.hang_up();
        }
        self.changed.notify_waiters();
    }

    async fn supervise(self: Arc<Self>) {
        // The task's runtime may end first.
        let _end = CloseAtEnd(Arc::clone(&self));
        let runtime = Arc::clone(&self.connector.runtime);
        let (mut before, mut is_back) = (None, false);
        let mut supervision = Supervision::new(Arc::clone(&runtime), self.signals.clone());
        while !self.state().closed {
            let connected = {
                let connecting = pin!(self.connector.connect(None, before.as_ref()));
                let closed = wait_for(&self.changed, || self.state().closed.then_some(()));
                match select(connecting, pin!(closed)).await {
                    Either::Left((connected, _)) => connected,
                    Either::Right(_) => return,
                }
            };
            match connected {
                Ok(connection) => {
                    let life = connection.life.clone();
                    let (pipeline, over) =
                        Pipeline::new(connection, is_back, Arc::clone(&self.connector.home));
                    before.clone_from(&pipeline.peer);
                    if !self.connected(&pipeline, life) {
                        return;
                    }
                    is_back = true;
                    supervision.connected();
                    let _ = over.await;
                    pipeline.hang_up();
                    self.connector.trouble.notify_one();
                    supervision.ended(pipeline.has_answered());
                }
                Err(failure) => {
                    self.failed(failure);
                    supervision.failed();
                }
            }
            if let Some(until) = supervision.retry_at() {
                runtime.sleep_until(until).await;
            }
        }
    }

    /// Publishes the connection, unless the supervisor was closed: then `false`.
    fn connected(&self, pipeline: &Arc<Pipeline>, life: Incarnation) -> bool {
        {
            let mut state = self.state();
            if state.closed {
                pipeline.hang_up();
                return false;
            }
            state.pipeline = Some(Arc::clone(pipeline));
            self.signals.set_incarnation(later(self.signals.incarnation(), life));
            state.failure = None;
        }
        self.changed.notify_waiters();
        true
    }

    fn failed(&self, failure: Failure) {
        {
            let mut state = self.state();
            state.failures += 1;
            state.failure = Some(failure);
        }
        self.connector.trouble.notify_one();
        self.changed.notify_waiters();
    }
}

impl SupervisorState {
    fn pipeline(&self) -> Option<Arc<Pipeline>> {
        self.pipeline.as_ref().filter(|pipeline| !pipeline.is_closed()).map(Arc::clone)
    }
}

/// Closes the supervisor when its task ends, also if the task is dropped midway.
struct CloseAtEnd(Arc<Supervisor>);

impl Drop for CloseAtEnd {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Merges the incarnations of two consecutive connections. A server that restarted in between counts as
/// started now, because its clock may claim otherwise.
fn later(before: Incarnation, now: Incarnation) -> Incarnation {
    match (&before, now) {
        (Incarnation::Since { id: old, .. }, Incarnation::Since { id, .. }) if *old == id => before,
        (Incarnation::Since { .. }, Incarnation::Since { id, at, .. }) => {
            Incarnation::Since { id, up: Duration::ZERO, at }
        }
        (_, now) => now,
    }
}
