//! Checks of an etcd cluster: its version, and what the loss of a member costs.

use tenure::diagnosis::diagnose_etcd;

use super::quorum::of_a_majority;
use super::report::Report;
use super::versions;
use crate::exit::chain;
use crate::output::plural;
use crate::versions::Versions;

pub(super) async fn check(url: &str, at: &str, report: &mut Report) {
    match diagnose_etcd(url).await {
        Ok(cluster) => {
            let learners = match cluster.learners {
                0 => String::new(),
                count => format!(" and {}", plural(count as u64, "learner")),
            };
            let cost = of_a_majority("the cluster", cluster.voters, at, report);
            let members = plural(cluster.voters as u64, "member");
            report.saw(at, format!("etcd {}, {members}{learners}: {cost}", cluster.version));
            versions::check(Ok(Versions::of(&cluster.clients)), at, report);
        }
        // The lock below shows whether that matters.
        Err(error) => report.cannot_check("members", at, chain(&error)),
    }
}
