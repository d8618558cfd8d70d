use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::micros;

/// The windows in each of which a job runs once: see [`OncePer`](crate::OncePer).
///
/// The store's clock decides which window is current; on etcd and ZooKeeper, that of the host that asks.
///
/// ```
/// use std::time::Duration;
/// use tenure::Period;
///
/// let hourly = Period::every(Duration::from_secs(3_600));
/// let at_two = Period::daily(Duration::from_secs(2 * 3_600)); // 02:00 UTC
/// let not_after_three = at_two.open_for(Duration::from_secs(3_600));
/// ```
#[derive(Clone)]
pub struct Period {
    windows: Windows,
    open_for: Option<Duration>,
}

#[derive(Clone)]
enum Windows {
    Every { length: Duration, offset: Duration },
    Of(Arc<dyn Fn(SystemTime) -> Range<SystemTime> + Send + Sync>),
}

/// One window, in microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// When the window stops admitting a new run.
    pub(crate) open_to: u64,
}

const DAY: Duration = Duration::from_secs(86_400);
/// Minimum and maximum length of a window.
const LENGTHS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(3_660 * 86_400)];

impl Period {
    /// Consecutive windows of this length, from 10 ms to ten years, counted from 1970 UTC: a length of one
    /// hour gives windows from one full hour to the next. A plain `Duration` converts into the same.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let locks = tenure::Locks::memory();
    /// let one = locks.once_per("digest", tenure::Period::every(Duration::from_secs(60)))?;
    /// let same = locks.once_per("digest", Duration::from_secs(60))?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn every(length: Duration) -> Self {
        Self { windows: Windows::Every { length, offset: Duration::ZERO }, open_for: None }
    }

    /// One window per day, beginning at this time after midnight UTC. For days of another time zone see
    /// [`new`](Self::new).
    ///
    /// ```
    /// # use std::time::Duration;
    /// let at_two = tenure::Period::daily(Duration::from_secs(2 * 3_600));
    /// ```
    pub fn daily(at: Duration) -> Self {
        Self { windows: Windows::Every { length: DAY, offset: at }, open_for: None }
    }

    /// Windows computed by a function, which returns the window that contains the given time. For wall
    /// clocks, calendars and time zones, using a library that knows them.
    ///
    /// The function decides what happens when the clocks change. With "from 02:00 to 02:00 of the next day",
    /// one window has 23 hours and one has 25, and the job runs once in each. It must return the same window
    /// for the same time on all hosts.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime, UNIX_EPOCH};
    ///
    /// // Days that begin at 02:00 in a zone two hours ahead of UTC, at midnight UTC.
    /// let daily = tenure::Period::new(|now: SystemTime| {
    ///     let day = Duration::from_secs(86_400);
    ///     let days = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400;
    ///     let from = UNIX_EPOCH + day * days as u32;
    ///     from..from + day
    /// });
    /// ```
    pub fn new(windows: impl Fn(SystemTime) -> Range<SystemTime> + Send + Sync + 'static) -> Self {
        Self { windows: Windows::Of(Arc::new(windows)), open_for: None }
    }

    /// Limits how long after the start of a window the job may begin. Default: until the end of the window,
    /// so a program deployed at 14:00 runs the job of 02:00 if it has not run yet.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let at_two = tenure::Period::daily(Duration::from_secs(7_200)).open_for(Duration::from_secs(600));
    /// ```
    pub fn open_for(self, open_for: Duration) -> Self {
        Self { open_for: Some(open_for), ..self }
    }

    /// Returns the window that contains `now`, or a description of the problem.
    pub(crate) fn window(&self, now: u64) -> Result<Window, String> {
        let (from, to) = match &self.windows {
            Windows::Every { length, offset } => {
                if *length < LENGTHS[0] || *length > LENGTHS[1] {
                    return Err(format!("a period must be between 10ms and ten years, got {length:?}"));
                }
                let (length, offset) = (micros(*length), micros(*offset) % micros(*length));
                // Times before `offset` belong to the first window.
                let from = now.saturating_sub(offset) / length * length + offset;
                let from = if from > now { 0 } else { from };
                (from, from.saturating_add(length))
            }
            Windows::Of(window) => {
                let window = window(moment(now));
                (unix_us(window.start), unix_us(window.end))
            }
        };
        if !(from..to).contains(&now) {
            return Err(format!(
                "the window of a moment must contain it: {:?} is not in {:?}..{:?}",
                moment(now),
                moment(from),
                moment(to)
            ));
        }
        let open_to = self.open_for.map_or(to, |open_for| to.min(from.saturating_add(micros(open_for))));
        Ok(Window { from, to, open_to })
    }
}

impl From<Duration> for Period {
    fn from(length: Duration) -> Self {
        Self::every(length)
    }
}

impl fmt::Debug for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut period = f.debug_struct("Period");
        match &self.windows {
            Windows::Every { length, offset } => period.field("length", length).field("offset", offset),
            Windows::Of(_) => &mut period,
        };
        period.field("open_for", &self.open_for).finish()
    }
}

/// A time of the store's clock.
pub(crate) fn moment(unix_us: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(unix_us)
}

fn unix_us(moment: SystemTime) -> u64 {
    moment.duration_since(UNIX_EPOCH).map_or(0, micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn windows_lie_one_behind_the_other() {
        let minute = Period::every(Duration::from_secs(60));
        let window = |from, to| Ok(Window { from: from * SECOND, to: to * SECOND, open_to: to * SECOND });
        assert_eq!(minute.window(119 * SECOND), window(60, 120));
        assert_eq!(minute.window(120 * SECOND), window(120, 180));
        let at_two = Period::daily(Duration::from_secs(7_200));
        let day = 86_400;
        assert_eq!(at_two.window((10 * day + 7_199) * SECOND), window(9 * day + 7_200, 10 * day + 7_200));
        assert_eq!(at_two.window((10 * day + 7_200) * SECOND), window(10 * day + 7_200, 11 * day + 7_200));
        let open = at_two.open_for(Duration::from_secs(60)).window((10 * day + 9_000) * SECOND);
        assert_eq!(open.expect("a window").open_to, (10 * day + 7_260) * SECOND);
    }

    #[test]
    fn a_window_without_its_moment_is_refused() {
        let wrong = Period::new(|now| now + Duration::from_secs(1)..now + Duration::from_secs(2));
        assert!(wrong.window(7).expect_err("not in it").contains("must contain it"));
        assert!(Period::every(Duration::ZERO).window(7).expect_err("too short").contains("10ms"));
    }
}
