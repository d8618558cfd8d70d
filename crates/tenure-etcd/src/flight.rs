//! Sends the transactions of many tasks in one, so that they share a round trip and the server's commit.
//!
//! The first ones leave at once. While some are unanswered, others gather, and leave together with the next answer, or
//! once they fill a transaction. A lone task never waits.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{Either, FutureExt, join_all, select};

use super::cluster::{EtcdCluster, EtcdConnection, IS_FULL, TOO_LONG};
use super::gather::{QueuedAs, QueuedTxn, TxnResult, put_of};
use super::wire::{OpRequest, OpResponse, TxnRequest, TxnResponse};
use tenure_core::name::LockName;
use tenure_core::store::Failure;

/// How long a transaction counts as in flight: a server may answer late those that it has lost, and others at once.
const COUNTS: Duration = Duration::from_millis(100);

/// A transaction in flight. When it is dropped, what has gathered leaves.
struct TxnFlight {
    cluster: EtcdCluster,
    connection: Arc<EtcdConnection>,
}

impl EtcdCluster {
    /// Carries out a transaction that writes only what belongs to this lock, perhaps together with others.
    pub(super) async fn txn_about(&self, name: &LockName, txn: TxnRequest) -> TxnResult {
        let connection = self.connection().await?;
        let queued = connection.queue.push(name, txn);
        let flight = || TxnFlight { cluster: self.clone(), connection: Arc::clone(&connection) };
        match queued {
            QueuedAs::Single(txn) => self.txn(txn).await,
            QueuedAs::First(txn) => flight().of(self.txn(txn)).await,
            QueuedAs::Waiting(answer, full) => {
                if !full.is_empty() {
                    flight().leave(full);
                }
                let ended = |_| Err(Failure::Unknown(Failure::cause("the store was closed")));
                answer.await.unwrap_or_else(ended)
            }
        }
    }

    /// Carries out transactions in one.
    async fn together(&self, txns: &[TxnRequest]) -> Result<Vec<TxnResult>, Failure> {
        let success = txns.iter().map(|txn| OpRequest::Txn(txn.clone()).into()).collect();
        // Never carried out, as there is nothing to compare: a full etcd refuses only what puts something itself.
        let failure = txns.iter().find_map(put_of).cloned().into_iter().collect();
        let done = self.txn(TxnRequest { success, failure, ..TxnRequest::default() }).await?;
        if done.responses.len() != txns.len() {
            return Err(Failure::Unknown(Failure::cause("etcd answered another number of transactions")));
        }
        let answers = done.responses.into_iter().map(|step| match step.what {
            Some(OpResponse::Txn(one)) => Ok(TxnResponse { header: done.header.clone(), ..one }),
            _ => Err(Failure::Unknown(Failure::cause("etcd did not answer a transaction as one"))),
        });
        Ok(answers.collect())
    }
}

impl TxnFlight {
    /// The output of `work`, during which this is in flight for a while.
    async fn of<T>(self, work: impl Future<Output = T>) -> T {
        let runtime = &self.cluster.0.runtime;
        let over = runtime.sleep_until(runtime.now() + COUNTS);
        match select(pin!(work), over).await {
            Either::Left((output, _)) => output,
            Either::Right(((), work)) => {
                drop(self);
                work.await
            }
        }
    }

    fn leave(self, all: Vec<QueuedTxn>) {
        let runtime = Arc::clone(&self.cluster.0.runtime);
        runtime.spawn(self.carry_out(all).boxed());
    }

    async fn carry_out(self, all: Vec<QueuedTxn>) {
        let (cluster, connection) = (self.cluster.clone(), Arc::clone(&self.connection));
        let (txns, mut replies): (Vec<_>, Vec<_>) =
            all.into_iter().map(|QueuedTxn { txn, reply, .. }| (txn, reply)).unzip();
        let left = poll_fn(|context| {
            let are_left = replies.iter_mut().all(|reply| reply.poll_closed(context).is_ready());
            if are_left { Poll::Ready(()) } else { Poll::Pending }
        });
        let answers = async {
            let alone = || join_all(txns.iter().map(|txn| cluster.txn(txn.clone())));
            if txns.len() == 1 {
                return alone().await;
            }
            match cluster.together(&txns).await {
                Ok(answers) => answers,
                // It may concern one of them, or their number.
                Err(Failure::Refused(cause)) if !cause.to_string().contains(IS_FULL) => {
                    connection.queue.shrink();
                    alone().await
                }
                Err(failure) => {
                    if failure.to_string().contains(TOO_LONG) {
                        connection.queue.shrink();
                    }
                    txns.iter().map(|_| Err(failure.clone())).collect()
                }
            }
        };
        let Either::Left((answers, _)) = self.of(select(answers.boxed(), left)).await else { return };
        for (reply, answer) in replies.into_iter().zip(answers) {
            let _ = reply.send(answer);
        }
    }
}

impl Drop for TxnFlight {
    fn drop(&mut self) {
        let next = self.connection.queue.next();
        if !next.is_empty() {
            Self { cluster: self.cluster.clone(), connection: Arc::clone(&self.connection) }.leave(next);
        }
    }
}
