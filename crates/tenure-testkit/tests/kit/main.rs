//! The test kit does what the tests that use it believe.

mod chooser;
mod clock;
mod executor;
mod fake_redis;
mod network;
mod proxy;
mod reply;
mod servers;
