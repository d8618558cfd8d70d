//! Durations and times of the day as text, in the text of a period.

use std::time::Duration;

const UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// Whole numbers with units, largest first: `1h30m`.
pub(super) fn written(duration: Duration) -> String {
    let mut left = super::micros(duration);
    let mut text = String::new();
    for (unit, length) in UNITS {
        if left >= length {
            text += &format!("{}{unit}", left / length);
            left %= length;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Reads what [`written`] writes.
pub(super) fn read(text: &str) -> Option<Duration> {
    let (mut rest, mut units, mut duration) = (text, &UNITS[..], Duration::ZERO);
    while !rest.is_empty() {
        let (number, behind) = rest.split_at(rest.find(|symbol: char| !symbol.is_ascii_digit())?);
        let end = behind.find(|symbol: char| symbol.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, next) = behind.split_at(end);
        let at = units.iter().position(|(name, _)| *name == unit)?;
        let micros = number.parse::<u64>().ok()?.checked_mul(units[at].1)?;
        duration = duration.checked_add(Duration::from_micros(micros))?;
        (rest, units) = (next, &units[at + 1..]);
    }
    (!text.is_empty()).then_some(duration)
}

/// A time of the day: `02:00`, or `02:00:30`. `None` for fractions of a second.
pub(super) fn clock(after_midnight: Duration) -> Option<String> {
    let seconds = after_midnight.as_secs();
    let (hours, minutes, rest) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    match (after_midnight.subsec_nanos(), rest) {
        (0, 0) => Some(format!("{hours:02}:{minutes:02}")),
        (0, rest) => Some(format!("{hours:02}:{minutes:02}:{rest:02}")),
        _ => None,
    }
}

/// Reads what [`clock`] writes.
pub(super) fn read_clock(text: &str) -> Option<Duration> {
    let parts: Option<Vec<u64>> = text.split(':').map(|part| part.parse().ok()).collect();
    let (hours, minutes, seconds) = match parts?[..] {
        [hours, minutes] => (hours, minutes, 0),
        [hours, minutes, seconds] => (hours, minutes, seconds),
        _ => return None,
    };
    let is_time = hours < 24 && minutes < 60 && seconds < 60;
    is_time.then(|| Duration::from_secs(hours * 3_600 + minutes * 60 + seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_and_a_time_read_back() {
        for (text, micros) in
            [("0s", 0), ("10ms", 10_000), ("1h30m", 5_400_000_000), ("1d2h3m4s5ms6us", 93_784_005_006)]
        {
            let duration = Duration::from_micros(micros);
            assert_eq!((written(duration).as_str(), read(text)), (text, Some(duration)));
        }
        for text in ["", "5", "h", "1m1h", "1w", "-1s", "99999999999999999999s", "9999999999999999d"] {
            assert_eq!(read(text), None, "{text}");
        }
        for text in ["00:00", "02:00", "23:59:59"] {
            assert_eq!(clock(read_clock(text).expect("a time")).as_deref(), Some(text));
        }
        for text in ["", "2", "24:00", "02:60", "02:00:00:00", "aa:bb"] {
            assert_eq!(read_clock(text), None, "{text}");
        }
        assert_eq!(clock(Duration::from_millis(1)), None);
    }
}
