//! The windows of a cron expression in a time zone.
//!
//! `croner` reads the expression and finds its times on a calendar without zones; `jiff` knows the zones.

use std::cmp::Ordering;
use std::ops::Range;

use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};
use croner::{CivilDate, CivilDateTime, CivilTime, Cron, CronDateTime, Resolution, Weekday};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};

/// Windows that begin at the times of a cron expression.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    /// The expression as it was given, with single spaces.
    expression: String,
    cron: Cron,
    /// Whether it runs in every hour, and therefore counts hours that pass instead of those of the wall clock.
    is_hourly: bool,
    zone: TimeZone,
    zone_name: String,
}

/// A field: its name, the values that it may have, and the words that croner knows in it.
struct Field {
    name: &'static str,
    expected: &'static str,
    first: u32,
    last: u32,
    words: &'static [&'static str],
}

const MONTHS: &[&str] = &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const DAYS: &[&str] = &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const FIELDS: [Field; 5] = [
    Field { name: "minute", expected: "0 to 59", first: 0, last: 59, words: &[] },
    Field { name: "hour", expected: "0 to 23", first: 0, last: 23, words: &[] },
    Field {
        name: "day of the month",
        expected: "1 to 31, or L for the last",
        first: 1,
        last: 31,
        words: &["L", "W", "LW"],
    },
    Field { name: "month", expected: "1 to 12, or JAN to DEC", first: 1, last: 12, words: MONTHS },
    Field { name: "weekday", expected: "0 to 7, or SUN to SAT", first: 0, last: 6, words: DAYS },
];
const EXPECTED: &str =
    "five fields as in \"0 2 * * MON-FRI\", or @hourly, @daily, @weekly, @monthly or @yearly";

impl Schedule {
    /// Parses an expression, in UTC, or describes the problem.
    pub(super) fn new(expression: &str) -> Result<Self, String> {
        let fields: Vec<_> = expression.split_whitespace().collect();
        let expression = fields.join(" ");
        let wrong = || format!("cron expression: got {expression:?}, expected {EXPECTED}");
        let cron = match &fields[..] {
            ["@midnight"] => parse("@daily"),
            [nickname] if nickname.starts_with('@') => parse(nickname),
            fields => {
                let fields = <&[&str; 5]>::try_from(fields).map_err(|_| wrong())?;
                check(&expression, fields)?;
                parse(&expression)
            }
        };
        let cron = cron.map_err(|_| wrong())?;
        let is_hourly = cron.pattern.hours.values().len() == 24;
        let schedule = Self { expression, cron, is_hourly, zone: TimeZone::UTC, zone_name: "UTC".to_owned() };
        match schedule.next(&TimeZone::UTC, Timestamp::UNIX_EPOCH) {
            Some(_) => Ok(schedule),
            None => {
                Err(format!("cron expression: got {:?}, expected a day that exists", schedule.expression))
            }
        }
    }

    /// The same times of another zone's wall clock.
    pub(super) fn in_zone(self, name: &str) -> Result<Self, String> {
        // A file of most systems, and another zone on each host.
        let is_of_host = name.eq_ignore_ascii_case("localtime");
        let zone = TimeZone::get(name).ok().filter(|zone| !zone.is_unknown() && !is_of_host);
        let zone = zone.ok_or_else(|| {
            format!("time zone: got {name:?}, expected a name such as \"Europe/Berlin\" or \"UTC\"")
        })?;
        let zone_name = zone.iana_name().unwrap_or(name).to_owned();
        Ok(Self { zone, zone_name, ..self })
    }

    /// The expression and the zone.
    pub(super) fn text(&self) -> String {
        format!("cron {} {}", self.expression, self.zone_name)
    }

    /// The window that contains this time, both in microseconds since 1970.
    pub(super) fn window(&self, now_us: u64) -> Option<Range<u64>> {
        // Known again, because a process may outlive the rules of its zone.
        let zone = TimeZone::get(&self.zone_name).unwrap_or_else(|_| self.zone.clone());
        let now = Timestamp::from_microsecond(i64::try_from(now_us).ok()?).ok()?;
        let next = |after| self.next(&zone, after);
        let mut back = SignedDuration::from_mins(1);
        let mut before = loop {
            let before = now.checked_sub(back).ok()?;
            if next(before)? <= now {
                break before;
            }
            back = back.checked_mul(2)?;
        };
        // The window begins after `before`, and not after `until`.
        let mut until = now;
        loop {
            let from = next(before)?;
            let to = next(from)?;
            if to > now {
                let micros = |at: Timestamp| u64::try_from(at.as_microsecond()).unwrap_or(0);
                return Some(micros(from)..micros(to));
            }
            let middle = before.checked_add(until.duration_since(before) / 2).ok()?;
            match next(middle)? <= now {
                true => before = middle,
                false => until = middle,
            }
        }
    }

    /// The first time after this one.
    fn next(&self, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
        if self.is_hourly {
            return self.next_hourly(zone, after);
        }
        let mut civil = zone.to_datetime(after);
        loop {
            civil = self.next_civil(civil, false)?;
            let ambiguous = zone.to_ambiguous_timestamp(civil);
            let at = match ambiguous.offset() {
                // A skipped time: when the clock was set forward.
                AmbiguousOffset::Gap { after, .. } => {
                    let inside = after.to_timestamp(civil).ok()?;
                    zone.following(inside).next()?.timestamp()
                }
                // The first of two.
                AmbiguousOffset::Fold { before, .. } => before.to_timestamp(civil).ok()?,
                AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(civil).ok()?,
            };
            if at > after {
                return Some(at);
            }
        }
    }

    /// The first time after this one, where the wall clock is followed as it is: what it skips is left out, and
    /// what it shows twice comes twice.
    fn next_hourly(&self, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
        let (mut from, mut inclusive) = (after, false);
        loop {
            let offset = zone.to_offset(from);
            let at = offset.to_timestamp(self.next_civil(offset.to_datetime(from), inclusive)?).ok()?;
            match zone.following(from).next() {
                Some(change) if change.timestamp() <= at => (from, inclusive) = (change.timestamp(), true),
                _ => return Some(at),
            }
        }
    }

    fn next_civil(&self, after: DateTime, inclusive: bool) -> Option<DateTime> {
        Some(self.cron.find_next_occurrence(&Civil(after), inclusive).ok()?.0)
    }
}

fn parse(expression: &str) -> Result<Cron, CronError> {
    CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build().parse(expression)
}

/// Names the field that is wrong. `croner` takes the names of months and days in any field.
fn check(expression: &str, fields: &[&str; 5]) -> Result<(), String> {
    for (at, (text, field)) in fields.iter().zip(&FIELDS).enumerate() {
        let Field { name, expected, words, .. } = field;
        let has_weekdays = at == 4;
        let is_word = |word: &str| {
            let word = word.to_ascii_uppercase();
            let day = if has_weekdays { word.strip_suffix('L').unwrap_or(&word) } else { &word };
            day.is_empty() || words.contains(&day)
        };
        let is_symbol = |symbol| "*/-,".contains(symbol) || has_weekdays && symbol == '#';
        let is_known = text.chars().all(|symbol| symbol.is_ascii_alphanumeric() || is_symbol(symbol))
            && text.split(|symbol: char| !symbol.is_ascii_alphabetic()).all(is_word);
        let mut alone = ["*"; 5];
        alone[at] = text;
        let wrong = || (!is_known || parse(&alone.join(" ")).is_err()).then(|| (*expected).to_owned());
        if let Some(expected) = text.split(',').find_map(|item| field.instead_of(item)).or_else(wrong) {
            return Err(format!(
                "{name} of cron expression {expression:?}: got {text:?}, expected {expected}"
            ));
        }
    }
    Ok(())
}

impl Field {
    /// What to write instead of an item of a list that `croner` refuses without a reason, or takes for another time.
    fn instead_of(&self, item: &str) -> Option<String> {
        let Self { first, last, words, .. } = self;
        let word = |text: &str| words.iter().position(|word| word.eq_ignore_ascii_case(text));
        let value = |text: &str| text.parse().ok().or_else(|| Some(first + word(text)? as u32));
        let (range, step) = item.split_once('/').map_or((item, None), |(range, step)| (range, Some(step)));
        match (range.split_once('-'), step) {
            _ if item.is_empty() => Some("a value on each side of a comma".to_owned()),
            (_, Some(step)) if !step.parse().is_ok_and(|step: u32| (1..=*last).contains(&step)) => {
                Some(format!("a step of 1 to {last}"))
            }
            (None, Some(step)) if range != "*" => Some(format!("{range}-{last}/{step}")),
            (Some((from, to)), _) if value(from)? > value(to)? => {
                Some(format!("{from}-{last} and {first}-{to}, with a comma between"))
            }
            _ => None,
        }
    }
}

/// A time of a calendar without zones, for `croner`.
#[derive(Clone, Copy)]
struct Civil(DateTime);

impl CronDateTime for Civil {
    fn to_civil(&self) -> CivilDateTime {
        let Self(time) = self;
        let date = (i32::from(time.year()), time.month() as u32, time.day() as u32);
        let clock = (time.hour() as u32, time.minute() as u32, time.second() as u32);
        CivilDateTime::new(
            CivilDate::from_parts_unchecked(date.0, date.1, date.2),
            CivilTime::from_parts_unchecked(clock.0, clock.1, clock.2),
        )
    }

    fn civil_weekday(&self) -> Weekday {
        Weekday::from_days_from_sunday(self.0.weekday().to_sunday_zero_offset() as u32)
    }

    fn resolve_civil(&self, civil: CivilDateTime) -> Result<Resolution<Self>, CronError> {
        let year = i16::try_from(civil.year()).map_err(|_| CronError::InvalidDate)?;
        let (month, day) = (civil.month() as i8, civil.day() as i8);
        let (hour, minute, second) = (civil.hour() as i8, civil.minute() as i8, civil.second() as i8);
        let time = DateTime::new(year, month, day, hour, minute, second, 0);
        time.map(|time| Resolution::Single(Self(time))).map_err(|_| CronError::InvalidDate)
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Self> {
        self.0.checked_add(SignedDuration::from_secs(seconds)).ok().map(Self)
    }

    fn cmp_instant(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::ToSpan;
    use jiff::civil::date;

    const ZONES: [&str; 5] = [
        "Europe/Berlin",
        "America/New_York",
        "America/Sao_Paulo",   // the clocks are set at midnight, until 2019
        "Australia/Lord_Howe", // by half an hour
        "Pacific/Apia",        // which skips 30 December 2011
    ];

    fn schedule(expression: &str, zone: &str) -> Schedule {
        Schedule::new(expression).and_then(|schedule| schedule.in_zone(zone)).expect("a schedule")
    }

    /// Each night of ten years by jiff's calendar, where a time that is skipped is the first one after it.
    fn nights(zone: &TimeZone, hour: i8, minute: i8) -> Vec<Timestamp> {
        let days = (0..3_653).map(|day| date(2011, 1, 1).checked_add(day.days()).expect("a day"));
        let mut nights: Vec<_> = days
            .map(|day| {
                let time = day.at(hour, minute, 0, 0);
                let ambiguous = zone.to_ambiguous_timestamp(time);
                match ambiguous.offset() {
                    AmbiguousOffset::Gap { before, .. } => {
                        // Back from the time that the clock would show if it had not been set forward.
                        let mut at = before.to_timestamp(time).expect("a time");
                        while zone.to_datetime(at) > time {
                            at -= 1.minute();
                        }
                        at + 1.minute()
                    }
                    _ => ambiguous.earlier().expect("a time"),
                }
            })
            .collect();
        nights.dedup();
        nights
    }

    #[test]
    fn ten_years_of_nights_are_those_of_the_calendar() {
        for zone_name in ZONES {
            for (hour, minute) in [(0, 0), (2, 15)] {
                let schedule = schedule(&format!("{minute} {hour} * * *"), zone_name);
                let nights = nights(&schedule.zone, hour, minute);
                for (night, two) in nights.windows(2).enumerate() {
                    assert_eq!(schedule.next(&schedule.zone, two[0]), Some(two[1]), "{zone_name}");
                    let is_change = two[1].duration_since(two[0]) != SignedDuration::from_hours(24);
                    if is_change || night % 100 == 0 {
                        let [from, to] = [two[0], two[1]].map(|at| at.as_microsecond() as u64);
                        for now in [from, from + 1, from + (to - from) / 2, to - 1] {
                            assert_eq!(schedule.window(now), Some(from..to), "{zone_name}: {}", two[0]);
                        }
                    }
                }
            }
        }
    }

    fn times(expression: &str, zone: &str, from: &str, hours: i64) -> Vec<String> {
        let (schedule, mut at) = (schedule(expression, zone), from.parse::<Timestamp>().expect("a time"));
        let until = at + SignedDuration::from_hours(hours);
        let mut times = Vec::new();
        loop {
            at = schedule.next(&schedule.zone, at).expect("a time");
            if at > until {
                return times;
            }
            times.push(schedule.zone.to_datetime(at).strftime("%d %H:%M").to_string());
        }
    }

    #[test]
    fn a_skipped_time_runs_at_the_next_instant_and_a_repeated_one_once() {
        let (spring, autumn) = ("2026-03-29T00:00:00Z", "2026-10-24T23:59:00Z");
        let times = |expression, from| times(expression, "Europe/Berlin", from, 4);
        assert_eq!(times("30 2 * * *", spring), ["29 03:00"]);
        assert_eq!(times("0,30 2,3 * * *", spring), ["29 03:00", "29 03:30"]);
        assert_eq!(times("30 2 * * *", autumn), ["25 02:30"]);
        assert_eq!(times("0,30 2,3 * * *", autumn), ["25 02:00", "25 02:30", "25 03:00", "25 03:30"]);
        // Every hour that passes.
        assert_eq!(times("0 * * * *", spring), ["29 03:00", "29 04:00", "29 05:00", "29 06:00"]);
        assert_eq!(times("0 * * * *", autumn), ["25 02:00", "25 02:00", "25 03:00", "25 04:00"]);
        for at in [spring, autumn] {
            let schedule = schedule("*/15 * * * *", "Europe/Berlin");
            let from = at.parse::<Timestamp>().expect("a time").as_microsecond() as u64;
            for minute in 0..240 {
                let window = schedule.window(from + minute * 60_000_000).expect("a window");
                assert_eq!(window.end - window.start, 900_000_000, "{window:?}");
            }
        }
    }

    #[test]
    fn days_months_and_nicknames_are_those_of_cron() {
        let times = |expression| times(expression, "UTC", "2027-12-30T12:00:00Z", 24 * 70);
        assert_eq!(times("0 0 L * *"), ["31 00:00", "31 00:00", "29 00:00"]); // 2028 is a leap year
        assert_eq!(times("0 0 29 feb *"), ["29 00:00"]);
        assert_eq!(times("0 6 * FEB MON#1,5L"), ["07 06:00", "25 06:00"]);
        assert_eq!(times("30 1 13 * fri")[..3], ["31 01:30", "07 01:30", "13 01:30"]); // either one
        assert_eq!(times("0 0 1 1-12/2 *"), ["01 00:00", "01 00:00"]); // of January and March
        for (nickname, fields) in [
            ("@hourly", "0 * * * *"),
            ("@daily", "0 0 * * *"),
            ("@midnight", "0 0 * * *"),
            ("@weekly", "0 0 * * 0"),
            ("@weekly", "0 0 * * 7"),
            ("@monthly", "0 0 1 * *"),
            ("@yearly", "0 0 1 1 *"),
        ] {
            assert_eq!(times(nickname), times(fields), "{nickname}");
        }
    }

    #[test]
    fn a_wrong_expression_is_told_which_field_and_what_is_expected() {
        for (expression, problem) in [
            ("61 * * * *", "minute of cron expression \"61 * * * *\": got \"61\", expected 0 to 59"),
            ("0  MON * * *", "hour of cron expression \"0 MON * * *\": got \"MON\", expected 0 to 23"),
            ("0 2 32 * *", "expected 1 to 31"),
            ("0 2 ? * *", "expected 1 to 31, or L"),
            ("0 2 * MON *", "expected 1 to 12"),
            ("0 2 * * JAN", "expected 0 to 7"),
            ("0 2 * * XL", "expected 0 to 7"),
            ("٣ 2 * * *", "expected 0 to 59"),
            ("*/0 2 * * *", "expected a step of 1 to 59"),
            ("*/90 * * * *", "expected a step of 1 to 59"),
            ("0 2 * JAN-DEC/13 *", "expected a step of 1 to 12"),
            ("1, 2 * * *", "expected a value on each side of a comma"),
            (", 2 * * *", "expected a value on each side of a comma"),
            ("5/15 2 * * *", "expected 5-59/15"),
            ("30-10 2 * * *", "expected 30-59 and 0-10, with a comma between"),
            ("0 2 * * FRI-MON", "expected FRI-6 and 0-MON, with a comma between"),
            ("0 2 30 2 *", "expected a day that exists"),
            ("@reboot", "expected five fields"),
            ("@", "expected five fields"),
            ("0 2 * *", "expected five fields"),
            ("0 0 2 * * *", "expected five fields"),
            ("", "expected five fields"),
        ] {
            let error = Schedule::new(expression).expect_err(expression);
            assert!(error.contains(problem) && !error.contains('\n'), "{error}");
        }
        for zone in ["", "Mars/Olympus", "+02:00", "../Berlin", "Etc/Unknown", "local"] {
            let error = Schedule::new("@daily").expect("one").in_zone(zone).expect_err(zone);
            assert!(error.contains(&format!("{zone:?}, expected a name such as")), "{error}");
        }
        let berlin = schedule("@daily", "europe/berlin");
        assert_eq!(berlin.text(), "cron @daily Europe/Berlin");
    }
}
