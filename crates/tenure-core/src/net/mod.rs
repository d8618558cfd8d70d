//! What stores on servers share: a limit of time, and the pause before the next dial.

use std::pin::pin;
#[cfg(any(feature = "redis", feature = "postgres", feature = "zookeeper"))]
use std::time::Duration;

use futures_util::future::{Either, select};

use crate::moment::Moment;
use crate::runtime::Runtime;

#[cfg(any(feature = "redis", feature = "postgres", feature = "zookeeper"))]
const PAUSE_MIN: Duration = Duration::from_millis(20);
#[cfg(any(feature = "redis", feature = "postgres", feature = "zookeeper"))]
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// `work`'s output, unless the deadline comes first.
pub(crate) async fn by<F: Future>(runtime: &dyn Runtime, deadline: Moment, work: F) -> Option<F::Output> {
    match select(pin!(work), runtime.sleep_until(deadline)).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(_) => None,
    }
}

/// How long to wait before the next dial after so many failures in a row: 20 ms, doubled each time
/// up to 1 s, and between a half and the whole of that, so that the clients of a server that comes
/// back do not come all at once.
#[cfg(any(feature = "redis", feature = "postgres", feature = "zookeeper"))]
pub(crate) fn pause(tries: u32, random: u64) -> Duration {
    let most = PAUSE_MIN.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(PAUSE_MAX);
    most.mul_f64(0.5 + 0.5 * (random >> 11) as f64 / (1u64 << 53) as f64)
}

#[cfg(all(test, any(feature = "redis", feature = "postgres", feature = "zookeeper")))]
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
