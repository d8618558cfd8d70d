//! The library against real servers and a simulated network, in one program to save build and link time.

mod acks;
mod acl;
mod callers;
mod candidates;
mod cluster;
mod common;
mod conformance;
mod crowd;
mod dead_waiters;
mod etcd;
mod examples;
mod fence;
mod fence_s3;
mod forced;
mod full;
#[expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "these tests use real time and threads as their callers do"
)]
mod golden;
mod hosts;
mod imports;
mod interop;
mod key_files;
mod long_queue;
#[expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "its server is no part of the library and runs on tokio as it is"
)]
mod map_store;
mod migrating;
mod multi;
mod mysql;
mod namespace;
mod no_scripts;
mod overlap;
mod plain;
mod postgres;
mod queue_limits;
mod queue_machine;
mod quorum;
mod record_machine;
mod redis_clock;
mod redis_errors;
mod redis_faults;
mod redis_hostile;
mod redis_locks;
mod redis_login;
mod redis_loss;
mod redis_renewals;
mod redis_replication;
mod reentry;
mod runner;
mod runtime;
mod schedulers;
mod sentinel;
mod testing;
mod tls;
mod twins;
mod urls;
mod uses;
mod waiting;
mod wake;
mod watching;
mod zookeeper;
