//! An ephemeral node that is created and deleted, for `tenure bench`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;

use super::link::{Link, Lives};
use super::messages::{Lasts, MultiOp, code};
use super::nodes::{Nodes, unreadable};
use super::server::Ensemble;
use super::url::ZooKeeperTarget;
use tenure_core::error::Result;
use tenure_core::store::{BareClient, BareStep, BareThread, StoreFuture};

/// The session of a client.
const LIFE: Duration = Duration::from_secs(15);

struct ZooKeeperBare {
    link: Arc<Link>,
    nodes: Arc<Nodes>,
    path: Arc<str>,
    _thread: BareThread,
}

/// Connects as a store does.
///
/// # Errors
/// `is_invalid` for a URL that no store takes; `is_unreachable` without an answer in time, `is_refused` where the
/// server refuses.
pub async fn bare_zookeeper(url: &str, name: &str) -> Result<Box<dyn BareClient>> {
    let target = ZooKeeperTarget::parse(url)?;
    let shown = Arc::from(target.shown());
    let thread = BareThread::start(&shown)?;
    let ensemble = Ensemble::new(target, thread.runtime());
    let nodes = ensemble.shared_nodes();
    let name: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
    let path = format!("{}/bench-{name}", nodes.prefix()).into();
    let opened = async move {
        let link = Link::open(ensemble.dialer(), LIFE, Lives::Connection).await?;
        ensemble.make_room(&link).await?;
        Ok(Arc::new(link))
    };
    let link = thread.open(&shown, opened).await?;
    Ok(Box::new(ZooKeeperBare { link, nodes, path, _thread: thread }))
}

impl BareClient for ZooKeeperBare {
    fn step(&self, step: BareStep) -> StoreFuture<bool> {
        let (link, nodes, path) = (Arc::clone(&self.link), Arc::clone(&self.nodes), Arc::clone(&self.path));
        async move {
            let (path, any) = (&*path, -1);
            let operation = match step {
                BareStep::Take | BareStep::Wait => {
                    MultiOp::Create { path, data: "", lasts: Lasts::Session, rights: nodes.rights }
                }
                BareStep::Renew => MultiOp::Set { path, data: "", version: any },
                BareStep::Give | BareStep::Leave => MultiOp::Delete { path, version: any },
            };
            let (_, replies) = link.ask(vec![operation.alone()], None).await?;
            let [reply] = &replies[..] else { return Err(unreadable()) };
            match reply.code {
                code::NODE_EXISTS => Ok(false),
                code::NO_NODE => Ok(true),
                _ => nodes.ok(reply).map(|()| true),
            }
        }
        .boxed()
    }
}
