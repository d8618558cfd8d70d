//! Transactions that wait to leave together.

use std::collections::{BTreeSet, VecDeque};
use std::mem;

use prost::Message;
use tokio::sync::oneshot::{self, Receiver, Sender};

use super::wire::{OpRequest, RequestOp, TxnRequest, TxnResponse};
use tenure_core::name::LockName;
use tenure_core::store::Failure;
use tenure_core::sync::Locked;

/// Unanswered transactions of a connection while others gather.
const IN_FLIGHT: usize = 2;
/// Maximum transactions in one. etcd subtracts their number from the operations that each may have, 128 by default.
const MOST: usize = 32;
/// Maximum size of one that gathers, in bytes; `MOST` of them fit into a request.
const SIZE: usize = 16 << 10;

/// The result of a transaction.
pub(super) type TxnResult = Result<TxnResponse, Failure>;

/// The transactions of one connection that may leave together.
#[derive(Default)]
pub(super) struct TxnQueue(Locked<TxnQueueState>);

struct TxnQueueState {
    in_flight: usize,
    waiting: VecDeque<QueuedTxn>,
    /// Maximum in one. A failure halves it: the server may take fewer operations, or its reply be too long.
    most: usize,
}

/// A transaction about one lock.
pub(super) struct QueuedTxn {
    name: LockName,
    /// A full server refuses it with all that leave together, perhaps after it has carried it out.
    needs_space: bool,
    pub(super) txn: TxnRequest,
    pub(super) reply: Sender<TxnResult>,
}

/// What becomes of a transaction.
pub(super) enum QueuedAs {
    /// It leaves by itself, and does not count as in flight.
    Single(TxnRequest),
    /// It leaves now, in flight until [`TxnQueue::next`].
    First(TxnRequest),
    /// It waits. Those that now fill a transaction leave, in flight as the first ones.
    Waiting(Receiver<TxnResult>, Vec<QueuedTxn>),
}

impl Default for TxnQueueState {
    fn default() -> Self {
        Self { in_flight: 0, waiting: VecDeque::new(), most: MOST }
    }
}

impl TxnQueue {
    /// Adds a transaction that writes only what belongs to this lock.
    pub(super) fn push(&self, name: &LockName, txn: TxnRequest) -> QueuedAs {
        if txn.encoded_len() > SIZE {
            return QueuedAs::Single(txn);
        }
        let mut state = self.0.lock();
        if state.in_flight < IN_FLIGHT {
            state.in_flight += 1;
            return QueuedAs::First(txn);
        }
        let (reply, answer) = oneshot::channel();
        let needs_space = put_of(&txn).is_some();
        state.waiting.push_back(QueuedTxn { name: name.clone(), needs_space, txn, reply });
        if state.waiting.len() < state.most {
            return QueuedAs::Waiting(answer, Vec::new());
        }
        let full = state.next();
        state.in_flight += usize::from(!full.is_empty());
        QueuedAs::Waiting(answer, full)
    }

    /// What leaves in place of a transaction that is no longer in flight.
    pub(super) fn next(&self) -> Vec<QueuedTxn> {
        let mut state = self.0.lock();
        let next = state.next();
        state.in_flight -= usize::from(next.is_empty());
        next
    }

    /// Fewer leave together on this connection from now on.
    pub(super) fn shrink(&self) {
        let mut state = self.0.lock();
        state.most = (state.most / 2).max(1);
    }
}

impl TxnQueueState {
    /// Those that leave next: no two about one lock, because a transaction may write each key once.
    fn next(&mut self) -> Vec<QueuedTxn> {
        let (mut names, mut next) = (BTreeSet::new(), Vec::<QueuedTxn>::new());
        for txn in mem::take(&mut self.waiting) {
            let is_alike = next.first().is_none_or(|first| first.needs_space == txn.needs_space);
            if txn.reply.is_closed() {
                continue;
            }
            if next.len() < self.most && is_alike && names.insert(txn.name.clone()) {
                next.push(txn);
            } else {
                self.waiting.push_back(txn);
            }
        }
        next
    }
}

/// What a transaction puts first.
pub(super) fn put_of(txn: &TxnRequest) -> Option<&RequestOp> {
    txn.success.iter().find(|step| matches!(step.what, Some(OpRequest::Put(_))))
}

#[cfg(test)]
mod tests {
    use super::super::wire::{DeleteRangeRequest, PutRequest};
    use super::*;

    fn put() -> TxnRequest {
        TxnRequest { success: vec![OpRequest::Put(PutRequest::default()).into()], ..TxnRequest::default() }
    }

    fn delete() -> TxnRequest {
        let delete = DeleteRangeRequest { key: Vec::new() };
        TxnRequest { success: vec![OpRequest::Delete(delete).into()], ..TxnRequest::default() }
    }

    fn name(at: usize) -> LockName {
        LockName::in_store(format!("x{at}"))
    }

    fn waiting(queue: &TxnQueue, at: usize, txn: TxnRequest) -> (Receiver<TxnResult>, usize) {
        match queue.push(&name(at), txn) {
            QueuedAs::Waiting(answer, full) => (answer, full.len()),
            _ => panic!("it leaves"),
        }
    }

    /// A queue with two in flight.
    fn busy() -> TxnQueue {
        let queue = TxnQueue::default();
        assert!((0..2).all(|at| matches!(queue.push(&name(at), put()), QueuedAs::First(_))));
        queue
    }

    fn names(txns: &[QueuedTxn]) -> Vec<&str> {
        txns.iter().map(|txn| txn.name.as_str()).collect()
    }

    #[test]
    fn what_waits_leaves_once_by_lock_and_sort() {
        let queue = busy();
        let txns = [(2, put()), (2, put()), (3, delete()), (4, put()), (5, put())];
        let mut answers: Vec<_> = txns.into_iter().map(|(at, txn)| waiting(&queue, at, txn).0).collect();
        // Its caller has left.
        answers.pop();
        assert_eq!(names(&queue.next()), ["x2", "x4"]);
        assert_eq!(names(&queue.next()), ["x2"]);
        assert_eq!(names(&queue.next()), ["x3"]);
        assert!((0..2).all(|_| queue.next().is_empty()));
        assert!(matches!(queue.push(&name(6), put()), QueuedAs::First(_)));
    }

    #[test]
    fn a_full_transaction_waits_for_no_other() {
        let queue = busy();
        let left = |most: usize| {
            let all: Vec<_> = (0..most).map(|at| waiting(&queue, at, put())).collect();
            all.iter().map(|(_, full)| *full).collect::<Vec<_>>()
        };
        let full = left(MOST);
        assert_eq!((full[MOST - 1], full.iter().sum::<usize>()), (MOST, MOST));
        queue.shrink();
        assert_eq!(left(MOST / 2).last(), Some(&(MOST / 2)));
        (0..9).for_each(|_| queue.shrink());
        assert_eq!(left(1), [1]);
    }

    #[test]
    fn a_large_one_leaves_by_itself() {
        let large = PutRequest { value: vec![0; SIZE], ..PutRequest::default() };
        let txn = TxnRequest { success: vec![OpRequest::Put(large).into()], ..TxnRequest::default() };
        assert!(matches!(busy().push(&name(2), txn), QueuedAs::Single(_)));
    }
}
