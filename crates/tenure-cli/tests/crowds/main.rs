//! Many real processes at once, in a separate binary from the tests that measure time.
#![allow(
    missing_docs,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests wait for real processes"
)]

#[allow(dead_code, reason = "shared with the other suite")]
#[path = "../command/env.rs"]
mod env;
mod kills;
mod stress;
mod turns;
mod waiting;
