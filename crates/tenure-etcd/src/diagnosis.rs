//! What a cluster tells of itself, for `tenure doctor`.

use std::sync::Arc;

use super::cluster::EtcdCluster;
use super::url::EtcdTarget;
use super::wire::{Empty, MemberListResponse, StatusResponse};
use tenure_core::error::Result;
use tenure_core::store::{BareThread, Failure};

/// Version and members of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdDiagnosis {
    /// The version of the server that answered.
    pub version: String,
    /// The number of members that vote.
    pub voters: usize,
    /// The number of members that only learn.
    pub learners: usize,
    /// What each client's lease says of it.
    pub clients: Vec<String>,
}

/// Connects as a store does, and asks one of the servers.
///
/// # Errors
/// `is_invalid` for a URL that no store takes; `is_unreachable` without an answer in time, `is_refused` where the
/// server refuses.
pub async fn diagnose_etcd(url: &str) -> Result<EtcdDiagnosis> {
    let target = EtcdTarget::parse(url)?;
    let shown = Arc::from(target.shown());
    BareThread::run(&shown, |runtime| async move { ask(EtcdCluster::new(target, runtime)).await }).await
}

async fn ask(cluster: EtcdCluster) -> std::result::Result<EtcdDiagnosis, Failure> {
    let status: StatusResponse = cluster.ask(Empty {}, "/etcdserverpb.Maintenance/Status").await?;
    let list: MemberListResponse = cluster.ask(Empty {}, "/etcdserverpb.Cluster/MemberList").await?;
    let learners = list.members.iter().filter(|member| member.is_learner).count();
    let (version, voters) = (status.version, list.members.len() - learners);
    Ok(EtcdDiagnosis { version, voters, learners, clients: cluster.markers().await? })
}
