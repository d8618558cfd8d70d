//! Where the tasks of one process wait for a lock.
//!
//! - [`wait_queues`] has a queue for each lock, and [`server`] the task that serves one. What it
//!   asks of the store is one of two strategies:
//! - [`local_queue`] asks in turn: only the first waiter is asked for, until it holds;
//! - [`ticket_queue`] keeps a place in the store for each waiter, and hears which of them hold;
//! - [`subscription`] is what both hear.

pub(super) mod local_queue;
pub(super) mod newcomer;
pub(super) mod server;
pub(super) mod subscription;
pub(super) mod ticket_queue;
pub(super) mod wait_queues;
