//! TLS, deadlines and reconnect backoff for stores on servers.

#[cfg(feature = "tls")]
mod tls;

#[cfg(not(feature = "tls"))]
use std::io;
use std::path::PathBuf;
#[cfg(not(feature = "tls"))]
use std::pin::Pin;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::moment::Moment;
use crate::runtime::Runtime;
#[cfg(not(feature = "tls"))]
use crate::store::Failure;

#[cfg(feature = "tls")]
pub use tls::{encrypt, failure_of};

/// An open byte stream.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The files for a TLS connection. They are read for each new connection, so that a renewed certificate needs
/// no restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Trusted certificate authorities; the system's if `None`.
    pub ca: Option<PathBuf>,
    /// The client's certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// In a build without TLS, no I/O error stems from it.
#[cfg(not(feature = "tls"))]
#[must_use]
pub fn failure_of(_: &io::Error, _: &str) -> Option<Failure> {
    None
}

/// Replaces the handshake in a build without the feature `tls`.
///
/// # Errors
/// Always `Refused`. URL parsers reject encrypted URLs in such a build, so this is not reached.
#[cfg(not(feature = "tls"))]
#[expect(clippy::unused_async, reason = "the signature of the build with TLS")]
pub async fn encrypt(
    _: Pin<Box<dyn Stream>>,
    _: &str,
    _: &Tls,
    _: &str,
) -> Result<Pin<Box<dyn Stream>>, Failure> {
    Err(Failure::Refused(Failure::cause("this program was built without the feature `tls`")))
}

const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The output of `work`, or `None` if the deadline passes first.
pub async fn by<F: Future>(runtime: &dyn Runtime, deadline: Moment, work: F) -> Option<F::Output> {
    match select(pin!(work), runtime.sleep_until(deadline)).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(_) => None,
    }
}

/// Backoff before the next connection attempt after `tries` consecutive failures: 20 ms, doubled up to 1 s,
/// with jitter down to one half so that the clients of a restarted server do not reconnect all at once.
#[must_use]
pub fn pause(tries: u32, random: u64) -> Duration {
    let most = PAUSE_MIN.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(PAUSE_MAX);
    most.mul_f64(0.5 + 0.5 * (random >> 11) as f64 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_second_and_never_fall_below_half_of_what_is_due() {
        for tries in 1..100 {
            let (least, most) = (pause(tries, 0), pause(tries, u64::MAX));
            assert!(
                least * 2 >= most && most <= PAUSE_MAX && least >= PAUSE_MIN / 2,
                "{tries}: {least:?} {most:?}"
            );
        }
        assert_eq!(pause(100, u64::MAX).as_millis(), 1_000);
    }
}
