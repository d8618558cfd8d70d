//! The test kit does what its users assume.

mod chooser;
mod clock;
mod executor;
mod fake_redis;
mod network;
mod proxy;
mod reply;
mod servers;
