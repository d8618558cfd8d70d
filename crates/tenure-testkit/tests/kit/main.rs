//! The test kit does what the tests that use it believe.

mod fake_redis;
mod network;
mod proxy;
mod servers;
