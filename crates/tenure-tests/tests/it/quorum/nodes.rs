//! Servers with a long uptime, and locks on a majority of them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_testkit::servers::{Config, Server};

/// Their reported uptime.
const UP: Duration = Duration::from_secs(60 * 60);

/// Empty servers for one test. They return to a pool, because a newly started one does not vote.
#[derive(Debug)]
pub(crate) struct Nodes(Vec<Server>);

static FREE: Mutex<Vec<Server>> = Mutex::new(Vec::new());

fn free() -> std::sync::MutexGuard<'static, Vec<Server>> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Nodes {
    pub(crate) fn new(count: usize) -> Self {
        let mut nodes: Vec<Server> = {
            let mut free = free();
            let kept = free.len().saturating_sub(count);
            free.split_off(kept)
        };
        while nodes.len() < count {
            nodes.push(Server::with_clock());
            age(&nodes[nodes.len() - 1], Config::new());
        }
        for node in &nodes {
            node.command(&["FLUSHALL"]);
        }
        Self(nodes)
    }

    pub(crate) fn url(&self) -> String {
        url(&self.0)
    }
}

/// Restarts a server empty, with a clock, and moves that forward.
pub(crate) fn age(server: &Server, config: Config) {
    server.clock().reset();
    server.clock().back(UP);
    server.restart_with(config);
    server.clock().reset();
}

fn is_old(server: &Server) -> bool {
    server.clock().reset();
    let up = server.info("server")["uptime_in_seconds"].parse::<i64>();
    up.is_ok_and(|seconds| seconds >= UP.as_secs() as i64 / 2)
}

pub(crate) fn url(servers: &[Server]) -> String {
    let at: Vec<String> = servers.iter().map(|server| server.address().to_string()).collect();
    format!("redis-quorum://{}", at.join(","))
}

impl std::ops::Deref for Nodes {
    type Target = [Server];
    fn deref(&self) -> &[Server] {
        &self.0
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // After a failure their state is unknown.
        if !std::thread::panicking() {
            self.0.retain(is_old);
            free().append(&mut self.0);
        }
    }
}
