//! Measured times: percentiles and histograms.

use std::time::Duration;

/// Maximum number of times kept per measurement; later ones replace earlier ones.
const KEPT: usize = 200_000;

#[derive(Debug, Default)]
pub(super) struct Times {
    times: Vec<Duration>,
    count: u64,
    /// Total measuring time.
    busy: Duration,
}

/// The sorted times: see [`Times::sorted`].
#[derive(Debug)]
pub(super) struct Sorted {
    times: Vec<Duration>,
    pub(super) count: u64,
    pub(super) per_second: f64,
}

impl Times {
    pub(super) fn add(&mut self, time: Duration) {
        match self.times.len() {
            KEPT.. => self.times[self.count as usize % KEPT] = time,
            _ => self.times.push(time),
        }
        self.count += 1;
    }

    /// Adds times that several clients measured concurrently within `busy`.
    pub(super) fn add_all(&mut self, times: impl IntoIterator<Item = Duration>, busy: Duration) {
        times.into_iter().for_each(|time| self.add(time));
        self.busy += busy;
    }

    /// Adds one time of a client that measures alone.
    pub(super) fn add_alone(&mut self, time: Duration) {
        self.add_all([time], time);
    }

    /// Sorts the times; `None` if there are none.
    pub(super) fn sorted(mut self) -> Option<Sorted> {
        self.times.sort_unstable();
        let seconds = self.busy.as_secs_f64().max(1e-9);
        let per_second = self.count as f64 / seconds;
        (self.count > 0).then_some(Sorted { times: self.times, count: self.count, per_second })
    }
}

/// A bar of a histogram: its upper limit, and its share of all times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bar {
    pub(super) up_to: Duration,
    pub(super) part: f64,
}

impl Sorted {
    /// The time that this share of all times does not exceed.
    pub(super) fn quantile(&self, part: f64) -> Duration {
        let rank = (self.times.len() as f64 * part).ceil() as usize;
        self.times[rank.clamp(1, self.times.len()) - 1]
    }

    /// The range of times without the slowest thousandth.
    fn range(&self) -> (Duration, Duration) {
        (self.times[0], self.quantile(0.999))
    }

    /// The distribution over these limits; the last bar is unbounded.
    pub(super) fn histogram(&self, limits: &[Duration]) -> Vec<Bar> {
        let mut from = 0;
        let all = self.times.len();
        let bar = |(at, limit): (usize, &Duration)| {
            let is_last = at + 1 == limits.len();
            let to = if is_last { all } else { self.times.partition_point(|time| time <= limit) };
            let part = (to - from) as f64 / all as f64;
            from = to;
            Bar { up_to: *limit, part }
        };
        limits.iter().enumerate().map(bar).collect()
    }
}

/// Common bar limits for these measurements, each roughly half again the previous one.
pub(super) fn limits<'a>(all: impl Iterator<Item = &'a Sorted>) -> Vec<Duration> {
    let ranges: Vec<_> = all.map(Sorted::range).collect();
    let least = ranges.iter().map(|(least, _)| *least).min().unwrap_or_default();
    let most = ranges.iter().map(|(_, most)| *most).max().unwrap_or_default();
    // 1, 1.5, 2, 3, 5, 7 times each power of ten, which are easy to read.
    let steps = (0..10).flat_map(|power| [10, 15, 20, 30, 50, 70].map(|step| step * 10_u64.pow(power)));
    let steps: Vec<_> = steps.map(|tenths| Duration::from_nanos(tenths * 100)).collect();
    let first = steps.partition_point(|step| *step < least).min(steps.len() - 1);
    let last = steps.partition_point(|step| *step < most).clamp(first, steps.len() - 1);
    steps[first..=last].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(ms: impl IntoIterator<Item = u64>) -> Sorted {
        let mut times = Times::default();
        ms.into_iter().for_each(|ms| times.add_alone(Duration::from_millis(ms)));
        times.sorted().expect("times")
    }

    #[test]
    fn a_quantile_is_a_time_that_was_measured() {
        let times = sorted((1..=100).rev());
        for (part, ms) in [(0.5, 50), (0.9, 90), (0.99, 99), (0.999, 100), (0.0, 1)] {
            assert_eq!(times.quantile(part), Duration::from_millis(ms), "{part}");
        }
        assert_eq!(sorted([7]).quantile(0.5), Duration::from_millis(7));
        assert!((times.per_second - 100.0 / 5.05).abs() < 0.01, "{}", times.per_second);
        assert!(Times::default().sorted().is_none());
    }

    #[test]
    fn the_bars_of_a_histogram_have_each_time_once() {
        let (fast, slow) = (sorted([1, 1, 2, 3]), sorted([8, 9, 900]));
        let limits = limits([&fast, &slow].into_iter());
        assert_eq!(limits.first(), Some(&Duration::from_millis(1)));
        assert_eq!(limits.last(), Some(&Duration::from_secs(1)));
        for times in [&fast, &slow] {
            let all: f64 = times.histogram(&limits).iter().map(|bar| bar.part).sum();
            assert!((all - 1.0).abs() < 1e-9, "{all}");
        }
        assert_eq!(fast.histogram(&limits)[0].part, 0.5);
    }

    #[test]
    fn what_is_measured_for_long_is_counted_and_takes_no_more_memory() {
        let mut times = Times::default();
        (0..KEPT + 10).for_each(|_| times.add(Duration::from_millis(1)));
        assert_eq!((times.count, times.times.len()), (KEPT as u64 + 10, KEPT));
    }
}
