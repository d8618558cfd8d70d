//! Durations on the command line.

use std::time::Duration;

/// Parses seconds with up to three decimals (`90`, `0.5`), or whole numbers with units, largest first
/// (`1500ms`, `30s`, `1h30m`, `1d`), up to about 136 years.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let is_number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    let duration = if text.bytes().all(is_number) { seconds(text) } else { parts(text) };
    match duration {
        Some(duration) if duration <= LONGEST => Ok(duration),
        Some(_) => Err(format!("too long: at most {}d, and 365d for a lease", LONGEST.as_secs() / 86_400)),
        None => {
            Err("expected seconds, or whole numbers with units, as in 90, 0.5, 1500ms, 30s, 1h30m or 1d"
                .into())
        }
    }
}

/// Like `duration`, but rejects zero.
pub(crate) fn some_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be more than 0".into()),
        time => Ok(time),
    }
}

const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

const UNITS: [(&str, u64); 5] =
    [("d", 24 * 60 * 60 * 1000), ("h", 60 * 60 * 1000), ("m", 60 * 1000), ("s", 1000), ("ms", 1)];

fn seconds(text: &str) -> Option<Duration> {
    let seconds = text.parse::<f64>().ok()?;
    Some(Duration::from_millis((seconds * 1000.0).round() as u64))
}

/// Parses numbers with units, each smaller than the one before.
fn parts(text: &str) -> Option<Duration> {
    let (mut rest, mut units, mut ms) = (text, &UNITS[..], 0_u64);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, behind) = rest.split_at(digits);
        let letters = behind.bytes().take_while(|byte| !byte.is_ascii_digit()).count();
        let (unit, next) = behind.split_at(letters);
        let at = units.iter().position(|(name, _)| *name == unit)?;
        if number.is_empty() {
            return None;
        }
        // An overflow is too long for a duration in any case.
        let number = number.parse::<u64>().unwrap_or(u64::MAX);
        ms = ms.saturating_add(number.saturating_mul(units[at].1));
        (rest, units) = (next, &units[at + 1..]);
    }
    Some(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use tenure_testkit::fuzz::fuzz;

    use super::*;

    #[test]
    fn a_duration_is_seconds_or_numbers_with_their_units() {
        for (text, ms) in [
            ("1500ms", 1_500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("0s", 0),
            ("1h30m", 5_400_000),
            ("1d", 86_400_000),
            ("1d2h3m4s5ms", 93_784_005),
            ("90m", 5_400_000),
            ("90", 90_000),
            ("0", 0),
            ("0.5", 500),
            (".25", 250),
            ("3.", 3_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_told_what_one_is() {
        for text in [
            "", ".", "-1", "-1s", "+1s", "NaN", "inf", "1e3", "9e99s", "1.5s", "1.2.3", " 5s", "5 s", "s",
            "5S", "5w", "30m1h", "1s1s", "1h30", "1m5", "٣s",
        ] {
            let error = duration(text).expect_err(text);
            assert!(error.contains("30s") && !error.contains('\n'), "{text}: {error}");
        }
        for text in [
            "18446744073709551616ms",
            "99999999999999999999h",
            "18446744073709551615h",
            "4294967296",
            "49711d",
        ] {
            assert!(duration(text).expect_err(text).contains("365d"), "{text}");
        }
    }

    #[test]
    fn any_text_is_a_duration_or_an_error_that_says_what_is_valid() {
        let words = ["ms", "s", "m", "h", "d", ".", "-", "+", "e9", "NaN", "inf", "٣"];
        fuzz("duration", &[], &words, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let read = duration(&text);
            match &read {
                Ok(time) => {
                    assert_eq!(duration(&time.as_secs_f64().to_string()), Ok(*time), "{text}");
                }
                Err(error) => assert!(error.len() < 100 && !error.contains(char::is_control), "{error}"),
            }
            format!("{:?}", read.map(drop))
        });
    }
}
