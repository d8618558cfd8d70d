//! A key that a transaction creates, and its deletion, for `tenure bench`.

use std::sync::Arc;

use futures_util::future::FutureExt;

use super::cluster::EtcdCluster;
use super::url::EtcdTarget;
use super::wire::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, Empty, OpRequest, PutRequest, StatusResponse,
    TargetUnion, TxnRequest, TxnResponse,
};
use tenure_core::error::Result;
use tenure_core::store::{BareClient, BareStep, BareThread, StoreFuture};

struct EtcdBare {
    cluster: EtcdCluster,
    key: Vec<u8>,
    _thread: BareThread,
}

/// Connects as a store does.
///
/// # Errors
/// `is_invalid` for a URL that no store takes; `is_unreachable` without an answer in time, `is_refused` where the
/// server refuses.
pub async fn bare_etcd(url: &str, name: &str) -> Result<Box<dyn BareClient>> {
    let target = EtcdTarget::parse(url)?;
    let shown = Arc::from(target.shown());
    let thread = BareThread::start(&shown)?;
    let key = format!("{}bench/{name}", target.prefix).into_bytes();
    let etcd = EtcdCluster::new(target, thread.runtime());
    let opened = etcd.clone();
    let ask =
        async move { opened.ask::<_, StatusResponse>(Empty {}, "/etcdserverpb.Maintenance/Status").await };
    thread.open(&shown, ask).await?;
    Ok(Box::new(EtcdBare { cluster: etcd, key, _thread: thread }))
}

impl BareClient for EtcdBare {
    fn step(&self, step: BareStep) -> StoreFuture<bool> {
        let (cluster, key) = (self.cluster.clone(), self.key.clone());
        let put = PutRequest { key: key.clone(), ..PutRequest::default() };
        let is_free = Compare {
            is: CompareResult::Equal as i32,
            of: CompareTarget::Create as i32,
            key: key.clone(),
            with: Some(TargetUnion::Create(0)),
        };
        let (compare, operation) = match step {
            BareStep::Take | BareStep::Wait => (vec![is_free], OpRequest::Put(put)),
            BareStep::Renew => (Vec::new(), OpRequest::Put(put)),
            BareStep::Give | BareStep::Leave => (Vec::new(), OpRequest::Delete(DeleteRangeRequest { key })),
        };
        let txn = TxnRequest { compare, success: vec![operation.into()], failure: Vec::new() };
        async move {
            let done: TxnResponse = cluster.ask(txn, "/etcdserverpb.KV/Txn").await?;
            Ok(done.succeeded)
        }
        .boxed()
    }
}
