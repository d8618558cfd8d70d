//! The real binary, from outside: real processes, real signals, real time.
#![allow(
    missing_docs,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests wait for real processes"
)]

mod bench;
mod clocks;
mod config;
mod cookbook;
#[cfg(not(tenure_portable))]
mod descriptor;
mod doctor;
mod env;
mod etcd;
mod exits;
mod fence;
mod full;
mod holding;
mod inputs;
mod killed;
mod kinds;
mod limits;
mod list;
mod loss;
mod matrix;
mod mysql;
mod orphans;
mod output;
mod pages;
mod planted_setups;
mod postgres;
mod prometheus;
mod redis;
mod schedule;
mod serve;
mod signals;
mod split;
mod stands_still;
mod start;
mod stop;
mod terminal;
mod tmux;
mod top;
mod urls;
mod uses;
mod verbs;
mod zookeeper;
