//! Batches concurrent acquisitions of one lock, so that one write adds many places.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::{Either, FutureExt, select};
use tokio::sync::oneshot;

use super::WriteState;
use super::bind::BatchMember;
use super::client::CasClient;
use super::known::{Known, QueuedAcquire};
use super::leases::About;
use crate::name::LockName;
use crate::protocol::{Answer, Op, Verb};
use crate::store::Failure;
use crate::txn::next_batch;

/// The caller's side of an acquisition. If it is dropped while a write is in flight, the outcome of that
/// write is unknown.
struct Awaited<'a> {
    client: &'a CasClient,
    sent: &'a WriteState,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if self.sent.abandon() {
            self.client.unknown();
        }
    }
}

impl CasClient {
    /// Carries out an acquisition as part of a batch.
    pub(super) async fn together(self: &Arc<Self>, op: &Op, sent: &WriteState) -> Result<Answer, Failure> {
        let (reply, answer) = oneshot::channel();
        let awaited = Awaited { client: self, sent };
        let begins = {
            let mut queued = self.queued.lock();
            let begins = !queued.contains_key(&op.name);
            let queue = queued.entry(op.name.clone()).or_default();
            queue.push_back(QueuedAcquire { op: op.clone(), sent: sent.clone(), reply });
            begins
        };
        if begins {
            let (client, name) = (Arc::clone(self), op.name.clone());
            self.runtime.spawn(async move { client.run_batches(&name).await }.boxed());
        }
        let ended = || Failure::Unknown(Failure::cause("the store was closed"));
        let answer = answer.await.unwrap_or_else(|_| Err(ended()));
        drop(awaited);
        answer
    }

    /// Runs batches until no acquisition is waiting.
    async fn run_batches(self: &Arc<Self>, name: &LockName) {
        loop {
            let mutex = self.known(name);
            let mut known = mutex.lock().await;
            let next = self.next(name);
            let is_over = next.is_none();
            if let Some(next) = next {
                self.carry_out_all(next, &mut known).await;
            }
            if is_over {
                return;
            }
        }
    }

    /// The next acquisitions that can share a session. `None` if none is waiting; the batching task then ends.
    fn next(&self, name: &LockName) -> Option<Vec<QueuedAcquire>> {
        let mut all = self.queued.lock();
        let queue = all.get_mut(name)?;
        queue.retain(|queued| !queued.reply.is_closed());
        // A hold that is detached from the start needs a session of its own.
        let batch = next_batch(queue, QueuedAcquire::bound_to);
        if batch.is_empty() {
            all.remove(name);
            return None;
        }
        Some(batch)
    }

    async fn carry_out_all(self: &Arc<Self>, all: Vec<QueuedAcquire>, known: &mut Known) {
        let (asked, mut replies): (Vec<_>, Vec<_>) =
            all.into_iter().map(|QueuedAcquire { op, sent, reply }| ((op, sent), Some(reply))).unzip();
        let said = {
            let left = poll_fn(|context| {
                let mut waiting = replies.iter_mut().flatten();
                match waiting.all(|reply| reply.poll_closed(context).is_ready()) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            });
            match select(self.carry_out_bound(&asked, known).boxed(), left).await {
                Either::Left((said, _)) => said,
                Either::Right(_) => return,
            }
        };
        for (at, reply) in replies.iter_mut().enumerate() {
            let said = match &said {
                Ok(answers) => answers.get(at).cloned().flatten().map(Ok),
                Err(failure) => Some(Err(failure.clone())),
            };
            if let (Some(said), Some(reply)) = (said, reply.take()) {
                let _ = reply.send(said);
            }
        }
    }

    async fn carry_out_bound(
        self: &Arc<Self>,
        asked: &[(Op, WriteState)],
        known: &mut Known,
    ) -> Result<Vec<Option<Answer>>, Failure> {
        self.write_barrier(None).await?;
        let Some((longest, _)) = asked.iter().max_by_key(|(op, _)| needed(op)) else { return Ok(Vec::new()) };
        let bind = self.bind(longest).await?;
        let members: Vec<BatchMember<'_>> = asked
            .iter()
            .map(|(op, sent)| {
                let bind = bind.map(|bind| bind.of(op));
                BatchMember { op, sent, bind, about: About::Request, beside: None }
            })
            .collect();
        self.carry_out(&members, known).await
    }
}

/// How long an acquisition needs its session, in milliseconds.
fn needed(op: &Op) -> u64 {
    match op.verb {
        Verb::Acquire { ttl_ms, wait_ms, .. } => ttl_ms.max(wait_ms.unwrap_or(0)),
        _ => 0,
    }
}
