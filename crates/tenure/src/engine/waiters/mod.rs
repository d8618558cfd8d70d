//! Where the tasks of one process wait for a lock.
//!
//! - [`wait_queues`] has a queue for each lock, and the task that serves it by one of two
//!   strategies:
//! - [`local_queue`] asks the store for its first waiter only, until that holds;
//! - [`ticket_queue`] keeps a place in the store for each waiter, and learns which of them hold;
//! - [`subscription`] is the connection to the store's messages.

pub(super) mod local_queue;
pub(super) mod newcomer;
pub(super) mod subscription;
pub(super) mod ticket_queue;
pub(super) mod wait_queues;
