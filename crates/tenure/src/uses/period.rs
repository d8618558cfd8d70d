use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(feature = "schedule")]
use super::schedule::Schedule;
use super::{duration, micros};
use crate::error::{Error, Result};

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
#[cfg_attr(
    feature = "schedule",
    doc = r#"
With the feature `schedule`, windows follow the wall clock of a time zone:

```
# use std::time::Duration;
# use tenure::Period;
let at_two = Period::cron("0 2 * * *")?.in_zone("Europe/Berlin")?;
let same = Period::daily(Duration::from_secs(2 * 3_600)).in_zone("Europe/Berlin")?;
let weekdays = Period::cron("30 7 * * MON-FRI")?.in_zone("America/New_York")?;
# Ok::<(), tenure::Error>(())
```

A time that is skipped when the clocks are set forward begins its window at that moment, and one that comes twice
begins it once. A schedule of every hour, such as `*/15 * * * *`, counts the hours that pass instead. A window's key in
the store is its beginning in UTC.
"#
)]
#[derive(Clone)]
pub struct Period {
    windows: Windows,
    open_for: Option<Duration>,
}

#[derive(Clone)]
enum Windows {
    Every {
        length: Duration,
        offset: Duration,
    },
    #[cfg(feature = "schedule")]
    Schedule(Arc<Schedule>),
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
const WEEK: Duration = Duration::from_secs(7 * 86_400);
/// The days of a week, from that of 1 January 1970.
const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
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

    /// One window per day, beginning at this time after midnight UTC, or of another zone (`in_zone`).
    ///
    /// ```
    /// # use std::time::Duration;
    /// let at_two = tenure::Period::daily(Duration::from_secs(2 * 3_600));
    /// ```
    pub fn daily(at: Duration) -> Self {
        Self { windows: Windows::Every { length: DAY, offset: at }, open_for: None }
    }

    /// One window per week, beginning at this time after midnight of Monday, UTC or of
    /// another zone (`in_zone`).
    ///
    /// ```
    /// # use std::time::Duration;
    /// let on_tuesdays = tenure::Period::weekly(Duration::from_secs(86_400));
    /// assert_eq!(on_tuesdays.text().unwrap(), "every 1w at Tue 00:00 UTC");
    /// ```
    pub fn weekly(at: Duration) -> Self {
        let offset = 4 * DAY + Duration::from_micros(micros(at) % micros(WEEK));
        Self { windows: Windows::Every { length: WEEK, offset }, open_for: None }
    }

    /// One window per month, beginning at this time after midnight of its first day, UTC or of
    /// [another zone](Self::in_zone).
    ///
    /// ```
    /// # use std::time::Duration;
    /// let invoices = tenure::Period::monthly(Duration::from_secs(2 * 3_600))?.in_zone("Europe/Berlin")?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `is_invalid` unless the time is in whole minutes and within the first 28 days. For the last day of the
    /// month use [`cron`](Self::cron) with `L`.
    #[cfg(feature = "schedule")]
    #[cfg_attr(docsrs, doc(cfg(feature = "schedule")))]
    pub fn monthly(at: Duration) -> Result<Self> {
        if at >= 28 * DAY {
            let at = duration::written(at);
            return Err(Error::invalid(format!(
                "time of a monthly period: got {at}, expected less than 28d"
            )));
        }
        let (minute, hour) = minute_and_hour(at)?;
        Self::cron(&format!("{minute} {hour} {} * *", at.as_secs() / DAY.as_secs() + 1))
    }

    /// Windows that begin at the times of a cron expression, UTC or of another zone (`in_zone`).
    ///
    /// The expression has five fields: minute, hour, day of the month, month and weekday (0 and 7 are Sunday),
    /// with lists, ranges, steps, names (`JAN`, `MON-FRI`), `L` for the last day of the month, `5L` for its
    /// last Friday and `5#2` for its second. `@hourly`, `@daily`, `@weekly`, `@monthly` and `@yearly` work
    /// too. If the day of the month and the weekday are both restricted, either may match.
    ///
    /// ```
    /// let last_day = tenure::Period::cron("0 22 L * *")?.in_zone("Europe/Berlin")?;
    /// let error = tenure::Period::cron("0 25 * * *").unwrap_err();
    /// assert!(error.to_string().contains("expected 0 to 23"));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `is_invalid` if it is no such expression, or if its day never comes.
    #[cfg(feature = "schedule")]
    #[cfg_attr(docsrs, doc(cfg(feature = "schedule")))]
    pub fn cron(expression: &str) -> Result<Self> {
        let schedule = Schedule::new(expression).map_err(Error::invalid)?;
        Ok(Self { windows: Windows::Schedule(Arc::new(schedule)), open_for: None })
    }

    /// The same windows by the wall clock of a time zone, such as `Europe/Berlin`: those of a
    /// [cron expression](Self::cron), or a [daily](Self::daily), [weekly](Self::weekly) or
    /// [monthly](Self::monthly) period.
    ///
    /// The rules of the zone are those of the system, or of this build if the system has none.
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    ///
    /// let daily = tenure::Period::daily(Duration::from_secs(2 * 3_600)).in_zone("Asia/Tokyo")?;
    /// let window = daily.window_at(UNIX_EPOCH)?;
    /// assert_eq!(window.end, UNIX_EPOCH + Duration::from_secs(17 * 3_600)); // 02:00 in Tokyo
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `is_invalid` if there is no such zone, or for any other period.
    #[cfg(feature = "schedule")]
    #[cfg_attr(docsrs, doc(cfg(feature = "schedule")))]
    pub fn in_zone(self, zone: &str) -> Result<Self> {
        let schedule = match self.windows {
            Windows::Schedule(schedule) => (*schedule).clone(),
            Windows::Every { length: length @ (DAY | WEEK), offset } => {
                let (minute, hour) = minute_and_hour(offset)?;
                let weekday = match length {
                    DAY => "*",
                    _ => DAYS[(offset.as_secs() / DAY.as_secs() % 7) as usize],
                };
                Schedule::new(&format!("{minute} {hour} * * {weekday}")).map_err(Error::invalid)?
            }
            windows => {
                let period = Self { windows, open_for: None }.text();
                let period = period.unwrap_or_else(|| "windows of a function".to_owned());
                let expected = "expected a cron expression, or a daily, weekly or monthly period";
                return Err(Error::invalid(format!("period in a time zone: got {period}, {expected}")));
            }
        };
        let schedule = schedule.in_zone(zone).map_err(Error::invalid)?;
        Ok(Self { windows: Windows::Schedule(Arc::new(schedule)), ..self })
    }

    /// Windows computed by a function, which returns the window that contains the given time. For calendars
    /// that `cron` and `in_zone` do not know, using a library that knows them.
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
    /// so a program deployed at 14:00 runs the job of 02:00 if it has not run yet. With a minute, as with
    /// `--missed skip`, a window in which no host asked at its start is skipped.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let at_two = tenure::Period::daily(Duration::from_secs(7_200)).open_for(Duration::from_secs(600));
    /// ```
    pub fn open_for(self, open_for: Duration) -> Self {
        Self { open_for: Some(open_for), ..self }
    }

    /// The window that contains this time.
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    ///
    /// let hour = Duration::from_secs(3_600);
    /// let window = tenure::Period::every(hour).window_at(UNIX_EPOCH + hour / 2)?;
    /// assert_eq!(window, UNIX_EPOCH..UNIX_EPOCH + hour);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `is_invalid` if the period is invalid: too short or too long, or with a function that returns another
    /// window.
    pub fn window_at(&self, time: SystemTime) -> Result<Range<SystemTime>> {
        let Window { from, to, .. } = self.window(unix_us(time)).map_err(Error::invalid)?;
        Ok(moment(from)..moment(to))
    }

    /// The first window that begins after this time.
    ///
    /// # Errors
    /// As [`window_at`](Self::window_at).
    pub fn next_window(&self, time: SystemTime) -> Result<Range<SystemTime>> {
        self.window_at(self.window_at(time)?.end)
    }

    /// The period as a text, from which it can be [parsed](str::parse): `every 1h`, `every 1d at 02:00 UTC` or
    /// `cron 0 2 * * * Europe/Berlin`, followed by `for 10m` if it is [limited](Self::open_for). `None` if a
    /// [function](Self::new) computes the windows.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let text = tenure::Period::daily(Duration::from_secs(7_200)).text().unwrap();
    /// assert_eq!(text, "every 1d at 02:00 UTC");
    /// let same: tenure::Period = text.parse()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn text(&self) -> Option<String> {
        let windows = match &self.windows {
            Windows::Every { length, offset } => every(*length, *offset),
            #[cfg(feature = "schedule")]
            Windows::Schedule(schedule) => schedule.text(),
            Windows::Of(_) => return None,
        };
        Some(match self.open_for {
            Some(open_for) => format!("{windows} for {}", duration::written(open_for)),
            None => windows,
        })
    }

    /// Returns the window that contains `now`, or a description of the problem.
    pub(crate) fn window(&self, now: u64) -> std::result::Result<Window, String> {
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
            #[cfg(feature = "schedule")]
            Windows::Schedule(schedule) => match schedule.window(now) {
                Some(window) => (window.start, window.end),
                None => return Err(format!("{} has no window at {:?}", schedule.text(), moment(now))),
            },
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

impl FromStr for Period {
    type Err = Error;

    /// Parses the [text](Self::text) of a period.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            let expected =
                "expected as in \"every 1h\", \"every 1d at 02:00 UTC\" or \"cron 0 2 * * * Europe/Berlin\"";
            Error::invalid(format!("period: got {text:?}, {expected}"))
        };
        let (windows, open_for) = match text.rsplit_once(" for ") {
            Some((windows, open_for)) => (windows, Some(duration::read(open_for).ok_or_else(wrong)?)),
            None => (text, None),
        };
        let windows = match windows.split_once(' ') {
            Some(("every", every)) => read_every(every).ok_or_else(wrong)?,
            #[cfg(feature = "schedule")]
            Some(("cron", cron)) => {
                let (expression, zone) = cron.rsplit_once(' ').ok_or_else(wrong)?;
                Self::cron(expression)?.in_zone(zone)?.windows
            }
            _ => return Err(wrong()),
        };
        Ok(Self { windows, open_for })
    }
}

/// The text of windows of one length.
fn every(length: Duration, offset: Duration) -> String {
    let offset = Duration::from_micros(micros(offset).checked_rem(micros(length)).unwrap_or(0));
    let clock = duration::clock(Duration::from_micros(micros(offset) % micros(DAY)));
    match (length, clock) {
        (DAY, Some(clock)) => format!("every 1d at {clock} UTC"),
        (WEEK, Some(clock)) => {
            format!("every 1w at {} {clock} UTC", DAYS[(offset.as_secs() / DAY.as_secs()) as usize])
        }
        _ if offset.is_zero() => format!("every {}", duration::written(length)),
        _ => format!("every {} at {}", duration::written(length), duration::written(offset)),
    }
}

fn read_every(text: &str) -> Option<Windows> {
    let (length, offset) = match text.split(' ').collect::<Vec<_>>()[..] {
        ["1d", "at", clock, "UTC"] => (DAY, duration::read_clock(clock)?),
        ["1w", "at", day, clock, "UTC"] => {
            let day = DAYS.iter().position(|name| *name == day)?;
            (WEEK, day as u32 * DAY + duration::read_clock(clock)?)
        }
        [length] => (duration::read(length)?, Duration::ZERO),
        [length, "at", offset] => (duration::read(length)?, duration::read(offset)?),
        _ => return None,
    };
    Some(Windows::Every { length, offset })
}

#[cfg(feature = "schedule")]
fn minute_and_hour(at: Duration) -> Result<(u64, u64)> {
    match micros(at) % 60_000_000 {
        0 => Ok((at.as_secs() / 60 % 60, at.as_secs() / 3_600 % 24)),
        _ => {
            let at = duration::written(at);
            Err(Error::invalid(format!("time of a period in a time zone: got {at}, expected whole minutes")))
        }
    }
}

impl fmt::Debug for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Period").field(&self.text().as_deref().unwrap_or("windows of a function")).finish()
    }
}

/// A time of the store's clock.
pub(crate) fn moment(unix_us: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(unix_us)
}

pub(crate) fn unix_us(moment: SystemTime) -> u64 {
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
    fn a_period_reads_back_from_its_text() {
        let second = Duration::from_secs;
        for (period, text) in [
            (Period::every(second(3_600)), "every 1h"),
            (Period::every(second(3_600)).open_for(second(90)), "every 1h for 1m30s"),
            (Period::every(DAY), "every 1d at 00:00 UTC"),
            (Period::every(WEEK), "every 1w at Thu 00:00 UTC"),
            (Period::every(second(10 * 86_400)), "every 10d"),
            (Period::daily(second(9_000)), "every 1d at 02:30 UTC"),
            (Period::daily(second(86_400 + 5)), "every 1d at 00:00:05 UTC"),
            (Period::daily(Duration::from_millis(5)), "every 1d at 5ms"),
            (Period::weekly(second(7_200)), "every 1w at Mon 02:00 UTC"),
            (Period::weekly(6 * DAY), "every 1w at Sun 00:00 UTC"),
        ] {
            assert_eq!(period.text().as_deref(), Some(text));
            let read: Period = text.parse().expect(text);
            assert_eq!(read.text().as_deref(), Some(text));
            for now in [0, 1, 1_795_000_000_123_456] {
                assert_eq!(read.window(now), period.window(now), "{text}");
            }
        }
        for text in
            ["", "every", "every 1x", "hourly", "every 1d at 25:00 UTC", "every 1h for", "every 1h for x"]
        {
            let error = text.parse::<Period>().expect_err(text);
            assert!(error.is_invalid() && error.to_string().contains("expected as in"), "{error}");
        }
    }

    #[test]
    fn a_window_without_its_moment_is_refused() {
        let wrong = Period::new(|now| now + Duration::from_secs(1)..now + Duration::from_secs(2));
        assert!(wrong.window(7).expect_err("not in it").contains("must contain it"));
        assert!(Period::every(Duration::ZERO).window(7).expect_err("too short").contains("10ms"));
    }

    #[cfg(feature = "schedule")]
    #[test]
    fn a_period_of_a_zone_reads_back_from_its_text() {
        let hours = |hours: u64| Duration::from_secs(hours * 3_600);
        let read = |period: Result<Period>| period.and_then(|period| period.in_zone("Europe/Berlin"));
        for (period, text) in [
            (read(Period::cron("0  2 * * MON-FRI")), "cron 0 2 * * MON-FRI Europe/Berlin"),
            (read(Period::cron("@daily")), "cron @daily Europe/Berlin"),
            (Period::cron("*/5 * * * *"), "cron */5 * * * * UTC"),
            (read(Ok(Period::daily(hours(2)))), "cron 0 2 * * * Europe/Berlin"),
            (read(Ok(Period::weekly(hours(50)))), "cron 0 2 * * Wed Europe/Berlin"),
            (read(Ok(Period::every(DAY).open_for(hours(1)))), "cron 0 0 * * * Europe/Berlin for 1h"),
            (Period::monthly(hours(51)), "cron 0 3 3 * * UTC"),
            (read(Period::monthly(Duration::ZERO)), "cron 0 0 1 * * Europe/Berlin"),
        ] {
            let period = period.expect(text);
            assert_eq!(period.text().as_deref(), Some(text));
            let read: Period = text.parse().expect(text);
            assert_eq!(read.text().as_deref(), Some(text));
            assert_eq!(read.window(1_795_000_000_123_456), period.window(1_795_000_000_123_456));
        }
        for (period, problem) in [
            (read(Ok(Period::every(hours(6)))), "got every 6h, expected a cron expression, or a daily"),
            (read(Ok(Period::new(|now| now..now))), "got windows of a function, expected"),
            (read(Ok(Period::daily(Duration::from_secs(1)))), "got 1s, expected whole minutes"),
            (Period::monthly(hours(28 * 24)), "got 28d, expected less than 28d"),
            (Period::daily(hours(2)).in_zone("Berlin"), "time zone: got \"Berlin\", expected a name"),
            ("cron 0 2 * * *".parse(), "expected five fields"),
            ("cron 0 2 * * * Berlin".parse(), "time zone: got"),
        ] {
            let error = period.expect_err(problem);
            assert!(error.is_invalid() && error.to_string().contains(problem), "{error}");
        }
    }
}
