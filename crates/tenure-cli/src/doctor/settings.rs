//! Checks of the URL and flags.

use super::Setup;
use super::report::Report;
use crate::output::Span;

/// Compares the URL's guarantees with the lease.
pub(super) fn of_the_url(setup: &Setup, url: &str, report: &mut Report) {
    let Some(grace) = setup.restart_grace else {
        if setup.acks > 0 && !setup.is_cluster() {
            report.find(
                "restart-grace",
                url,
                format!("the URL has acks={} and no restart-grace", setup.acks),
                "a restarted or promoted server immediately grants locks that its old clients still hold",
                format!("add restart-grace={}s to the URL of every client", setup.ttl.as_secs().max(1)),
            );
        }
        return;
    };
    if grace < setup.ttl {
        report.find(
            "restart-grace",
            url,
            format!("restart-grace is {}, and the lease (--ttl) is {}", Span(grace), Span(setup.ttl)),
            "a server that has lost its data would grant a lock while its old lease still runs",
            "set restart-grace in the URL of every client to the longest ttl of all",
        );
    }
}
