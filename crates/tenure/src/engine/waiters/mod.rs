//! Wait queues for the tasks of one process.
//!
//! - [`wait_queues`] has a queue for each lock and the task that serves it, with one of two strategies:
//! - [`local_queue`] sends requests for its first waiter only, until that one holds the lock;
//! - [`ticket_queue`] keeps a ticket in the store for each waiter, and learns which of them hold;
//! - [`process_queues`] has all queues of both;
//! - [`subscription`] is the subscription to the store's messages.

pub(super) mod local_queue;
pub(super) mod process_queues;
pub(super) mod subscription;
pub(super) mod ticket_queue;
pub(super) mod wait_queues;
