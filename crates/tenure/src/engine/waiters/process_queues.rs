//! All wait queues of one engine.

use std::sync::Arc;

use super::local_queue::LocalQueues;
use super::ticket_queue::TicketQueues;
use crate::engine::Engine;
use crate::engine::kept_subscription::KeptSubscription;
use crate::engine::queues::Queues;
use crate::name::LockName;
use crate::owner::Owner;

/// The wait queues of one engine.
#[derive(Clone, Default)]
pub(crate) struct ProcessQueues {
    pub(in crate::engine) local: Arc<LocalQueues>,
    pub(in crate::engine) ticket: Arc<TicketQueues>,
}

impl ProcessQueues {
    /// Those of this engine, which has none yet.
    pub(in crate::engine) fn of(engine: &Engine) -> Self {
        let queues = Self::default();
        engine.set_queues(Box::new(queues.clone()));
        queues
    }

    /// Closes all queues and returns whether there were any.
    pub(in crate::engine) fn close(&self) -> bool {
        self.local.close() | self.ticket.close()
    }
}

impl Queues for ProcessQueues {
    fn ask_soon(&self, name: &LockName, by: Option<&Owner>) {
        self.local.ask_soon(name, by);
    }

    fn subscribed(&self, name: &LockName) -> Option<KeptSubscription> {
        self.ticket.subscribed(name)
    }
}
