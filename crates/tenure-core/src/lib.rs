//! The core that all stores of [tenure](https://docs.rs/tenure) share.
//!
//! A lock is a pure function `apply(state, now, op) -> answer`: the state machine in [`protocol`]. A
//! [`Store`](store::Store) runs it where the state is kept, one request at a time. Applications use the crate
//! `tenure`; this crate is for authors of stores.
//!
//! | module | what it holds |
//! |---|---|
//! | [`protocol`] | requests, answers, and the state machine of each kind of lock |
//! | [`store`] | the `Store` trait, subscriptions, and the in-memory store |
//! | [`cas`] | locks on servers with compare-and-swap |
//! | [`rows`] | locks on SQL databases |
//! | [`net`] | TLS, deadlines and backoff for stores on servers |
//! | [`platform`] | what differs between operating systems |
//! | [`runtime`] | the only access to time, randomness, tasks and timers |
//! | [`error`], [`name`], [`owner`], [`credentials`] | types that the public API shares |
//! | [`events`] | `tracing` events that never delay a lease |
//! | [`sync`] | a mutex without poisoning |
//! | [`planted`] | known bugs that tests can enable |
//!
//! This crate makes no semver promise yet: `tenure` and its stores are released together.

pub mod cas;
pub mod credentials;
pub mod error;
pub mod events;
pub mod moment;
pub mod name;
pub mod net;
pub mod owner;
pub mod parse;
pub mod planted;
pub mod platform;
pub mod protocol;
pub mod rows;
pub mod runtime;
pub mod store;
pub mod sync;
mod txn;

/// The version of all crates.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What the names of connections to servers begin with, or have after what the URL chooses: `tenure doctor`
/// reads the version from it.
pub const CLIENT: &str = concat!("tenure-", env!("CARGO_PKG_VERSION"));
