//! Requests to a store, and their answers.

use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, Map, join_all};

use super::{Failure, Store, StoreFuture};
use crate::name::Namespace;
use crate::protocol::record::{RecordAnswer, RecordOp};
use crate::protocol::{Answer, Op};

/// A request to a store.
#[derive(Clone, Debug)]
pub enum StoreRequest {
    /// About one lock.
    Lock(Op),
    /// About the record beside a lock.
    Record(RecordOp),
    /// Renewals of different locks with one [number](super::Placement::renews_with), at most
    /// [`renewals`](super::Capabilities::renewals) of them.
    Renewals(Vec<Op>),
}

impl StoreRequest {
    /// Puts a namespace before the names.
    pub fn enter(&mut self, namespace: &Namespace) {
        match self {
            Self::Lock(op) => namespace.precede(&mut op.name),
            Self::Record(op) => namespace.precede(&mut op.lock),
            Self::Renewals(ops) => ops.iter_mut().for_each(|op| namespace.precede(&mut op.name)),
        }
    }
}

/// The answer to a [`StoreRequest`] of the same variant.
#[derive(Clone, Debug)]
pub enum StoreReply {
    /// To a request about one lock.
    Lock(Answer),
    /// To a request about a record.
    Record(RecordAnswer),
    /// To renewals: one result for each, in the same order.
    Renewals(Vec<Result<Answer, Failure>>),
}

impl StoreReply {
    /// The answer about one lock.
    ///
    /// # Errors
    /// `Refused` if it answers another request.
    pub fn lock(self) -> Result<Answer, Failure> {
        if let Self::Lock(answer) = self { Ok(answer) } else { Err(self.unexpected()) }
    }

    /// The answer about a record.
    ///
    /// # Errors
    /// `Refused` if it answers another request.
    pub fn record(self) -> Result<RecordAnswer, Failure> {
        if let Self::Record(answer) = self { Ok(answer) } else { Err(self.unexpected()) }
    }

    /// The results of renewals.
    ///
    /// # Errors
    /// `Refused` if it answers another request.
    pub fn renewals(self) -> Result<Vec<Result<Answer, Failure>>, Failure> {
        if let Self::Renewals(answers) = self { Ok(answers) } else { Err(self.unexpected()) }
    }

    #[cold]
    fn unexpected(self) -> Failure {
        Failure::Refused(Failure::cause(format!("the store answered another request: {self:?}")))
    }
}

/// Requests of one type on any store.
pub trait StoreExt: Store {
    /// Carries out one request about a lock.
    fn request(&self, op: Op, within: Duration) -> Typed<Answer> {
        self.call(StoreRequest::Lock(op), within).map(|reply| reply.and_then(StoreReply::lock))
    }

    /// Carries out one request about the record beside a lock.
    fn record(&self, op: RecordOp, within: Duration) -> Typed<RecordAnswer> {
        self.call(StoreRequest::Record(op), within).map(|reply| reply.and_then(StoreReply::record))
    }

    /// Renews locks with the same `renews_with` by one request. Returns one result for each, in the same order.
    fn renew(&self, ops: Vec<Op>, within: Duration) -> BoxFuture<'static, Vec<Result<Answer, Failure>>> {
        let (count, reply) = (ops.len(), self.call(StoreRequest::Renewals(ops), within));
        async move {
            let answers = reply.await.and_then(StoreReply::renewals);
            answers.unwrap_or_else(|failure| vec![Err(failure); count])
        }
        .boxed()
    }

    /// Renews each lock with its own request, for a store that has no other way.
    fn renew_each(&self, ops: Vec<Op>, within: Duration) -> StoreFuture<StoreReply> {
        let each: Vec<_> = ops.into_iter().map(|op| self.request(op, within)).collect();
        join_all(each).map(|answers| Ok(StoreReply::Renewals(answers))).boxed()
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

/// A call whose reply is of one type.
pub type Typed<T> = Map<StoreFuture<StoreReply>, fn(Result<StoreReply, Failure>) -> Result<T, Failure>>;
