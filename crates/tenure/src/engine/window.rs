//! Limits the number of renewals in flight, alone or batched in one request. Pure: moments in, moments out.
//!
//! The window grows while answers are about as fast as the fastest, and shrinks while they are slower,
//! because then requests only queue at the store. A fast server thus gets many at once, and so does a distant
//! one, while a slow one gets few enough that each is answered before its timeout.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::moment::Moment;

/// Initial, minimum and maximum window.
const FIRST: usize = 256;
const LEAST: usize = 64;
const MOST: usize = 2_048;
/// The window shrinks when an answer takes more than twice the shortest time plus this.
const SLACK: Duration = Duration::from_millis(10);
/// How long the shortest time is remembered, because the distance to a server may grow.
const PERIOD: Duration = Duration::from_secs(10);
/// Multiple of the usual time, and minimum time, after which an unanswered request no longer counts, so that
/// one silent server of several does not block requests to the others.
const SLOW: (u32, Duration) = (4, Duration::from_millis(50));

/// When a request was sent, and its number.
pub(super) type RequestStamp = (Moment, u64);

pub(super) struct RequestWindow {
    size: usize,
    /// Number of renewals in each request in flight.
    under_way: BTreeMap<RequestStamp, usize>,
    /// Total renewals in flight.
    count: usize,
    next: u64,
    /// Moving average of the response time.
    usual: Duration,
    /// The shortest response times of this period and of the previous one.
    shortest: [Duration; 2],
    period_ends: Moment,
}

impl Default for RequestWindow {
    fn default() -> Self {
        let (under_way, shortest) = (BTreeMap::new(), [Duration::ZERO; 2]);
        let (usual, period_ends) = (Duration::ZERO, Moment(0));
        Self { size: FIRST, under_way, count: 0, next: 0, usual, shortest, period_ends }
    }
}

impl RequestWindow {
    /// How many renewals may be sent now.
    pub(super) fn free(&mut self, now: Moment) -> usize {
        while let Some((&place, _)) = self.under_way.first_key_value()
            && place.0 + self.slow() <= now
        {
            self.left(place);
        }
        self.size.saturating_sub(self.count)
    }

    /// Registers a request with this many renewals.
    pub(super) fn enter(&mut self, now: Moment, count: usize) -> RequestStamp {
        let place = (now, self.next);
        self.next += 1;
        self.count += count;
        self.under_way.insert(place, count);
        place
    }

    /// When another may be sent even if nothing is answered.
    pub(super) fn opens_at(&self) -> Option<Moment> {
        self.under_way.first_key_value().map(|((sent, _), _)| *sent + self.slow())
    }

    /// A request with `count` renewals was answered. `others_wait`: the window did not admit all.
    pub(super) fn answered(&mut self, place: RequestStamp, count: usize, now: Moment, others_wait: bool) {
        self.left(place);
        let took = now.since(place.0);
        self.usual = self.usual * 7 / 8 + took / 8;
        if now >= self.period_ends {
            let is_first = self.period_ends == Moment(0);
            self.shortest = [took, if is_first { took } else { self.shortest[0] }];
            self.period_ends = now + PERIOD;
        }
        self.shortest[0] = self.shortest[0].min(took);
        let shortest = self.shortest[0].min(self.shortest[1]);
        if took > 2 * shortest + SLACK {
            self.size = self.size.saturating_sub(count).max(LEAST);
        } else if others_wait {
            self.size = (self.size + count).min(MOST);
        }
    }

    /// Removes a request that has ended.
    pub(super) fn left(&mut self, place: RequestStamp) {
        self.count -= self.under_way.remove(&place).unwrap_or(0);
    }

    fn slow(&self) -> Duration {
        (SLOW.0 * self.usual).max(SLOW.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Simulates a server that handles one request at a time, each in `service`, at a latency of `distance`.
    /// Returns how many were answered in a second and how many were in flight at its end.
    fn second(
        window: &mut RequestWindow,
        start: Moment,
        service: Duration,
        distance: Duration,
    ) -> (usize, usize) {
        let (mut now, mut free_at, mut answered) = (start, start, 0);
        let mut answers = std::collections::VecDeque::new();
        while now < start + 1_000 * MS {
            while window.free(now) > 0 {
                let place = window.enter(now, 1);
                free_at = free_at.max(now) + service;
                answers.push_back((free_at + distance, place));
            }
            let opens_at = window.opens_at().expect("it is full");
            match answers.front().copied() {
                Some((at, place)) if at <= opens_at => {
                    answers.pop_front();
                    now = at;
                    answered += 1;
                    window.answered(place, 1, now, true);
                }
                _ => now = opens_at,
            }
        }
        let under_way = answers.len();
        answers.into_iter().for_each(|(_, place)| window.left(place));
        (answered, under_way)
    }

    #[test]
    fn a_fast_server_is_kept_busy_and_a_slow_one_answers_in_time() {
        // service, distance, minimum answers in the second second, maximum in flight
        let cases = [
            (MS / 100, MS / 10, 95_000, 1_200),
            (MS / 100, 50 * MS, 30_000, MOST),
            (MS, MS, 950, 2 * LEAST),
            (5 * MS, MS, 190, 2 * LEAST),
        ];
        for (service, distance, least, most) in cases {
            let mut window = RequestWindow::default();
            second(&mut window, Moment(0), service, distance);
            let (answered, under_way) = second(&mut window, Moment(0) + 2_000 * MS, service, distance);
            let what = format!("{service:?} at {distance:?}: {answered} answered, {under_way} under way");
            assert!(answered >= least && under_way <= most, "{what}");
        }
    }

    #[test]
    fn requests_to_a_silent_server_do_not_keep_others_waiting() {
        let mut window = RequestWindow::default();
        assert_eq!(window.free(Moment(0)), FIRST);
        window.enter(Moment(0), FIRST - 1);
        window.enter(Moment(0) + 10 * MS, 1);
        assert_eq!(window.free(Moment(0) + 40 * MS), 0);
        assert_eq!(window.opens_at(), Some(Moment(0) + 50 * MS));
        assert_eq!(window.free(Moment(0) + 50 * MS), FIRST - 1);
        assert_eq!(window.free(Moment(0) + 60 * MS), FIRST);
    }

    #[test]
    fn what_is_answered_late_was_counted_once() {
        let mut window = RequestWindow::default();
        let late = window.enter(Moment(0), 100);
        assert_eq!(window.free(Moment(0) + 60 * MS), FIRST);
        window.left(late);
        assert_eq!(window.free(Moment(0) + 60 * MS), FIRST);
    }
}
