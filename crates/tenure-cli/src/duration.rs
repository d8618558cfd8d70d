//! Durations and seconds as they are written on the command line.

use std::time::Duration;

/// Reads `1500ms`, `30s`, `5m` or `2h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let ms_per_unit: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        _ => return Err(WHAT_WOULD_BE_RIGHT.into()),
    };
    if number.is_empty() {
        return Err(WHAT_WOULD_BE_RIGHT.into());
    }
    let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(ms_per_unit));
    ms.map(Duration::from_millis)
        .ok_or_else(|| "longer than any duration can be; the longest lease is 8760h".into())
}

const WHAT_WOULD_BE_RIGHT: &str = "a duration is a whole number and its unit, as in 1500ms, 30s, 5m or 2h";

/// Reads seconds, which may have a fraction, up to some 136 years.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    match text.parse::<f64>() {
        Ok(seconds) if plain && seconds <= f64::from(u32::MAX) => Ok(Duration::from_secs_f64(seconds)),
        Ok(seconds) if plain && seconds > 0.0 => Err(format!("at most {} seconds", u32::MAX)),
        _ => Err("a number of seconds, as in 30 or 0.5".into()),
    }
}

#[cfg(test)]
mod tests {
    use tenure_testkit::fuzz::fuzz;

    use super::*;

    #[test]
    fn a_duration_is_a_number_and_its_unit() {
        for (text, ms) in [("1500ms", 1500), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("0s", 0)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_told_what_one_is() {
        for text in
            ["", "0", "15", "-1", "-1s", "NaN", "inf", "9e99s", "1.5s", " 5s", "5 s", "s", "5S", "5d", "٣s"]
        {
            let error = duration(text).expect_err(text);
            assert!(error.contains("30s") && !error.contains('\n'), "{text}: {error}");
        }
        for text in ["18446744073709551616ms", "18446744073709551615h"] {
            assert!(duration(text).expect_err(text).contains("8760h"), "{text}");
        }
    }

    #[test]
    fn any_text_is_a_time_or_an_error_that_says_what_is_valid() {
        fuzz("duration", &[], &["ms", "s", "m", "h", ".", "-", "+", "e9", "NaN", "inf", "٣"], |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let whole = duration(&text);
            if let Ok(time) = &whole {
                assert_eq!(duration(&format!("{}ms", time.as_millis())), Ok(*time), "{text}");
            }
            let fraction = seconds(&text);
            if let Ok(time) = &fraction {
                assert_eq!(seconds(&time.as_secs_f64().to_string()), Ok(*time), "{text}");
            }
            for error in [&whole, &fraction].into_iter().filter_map(|read| read.as_ref().err()) {
                assert!(error.len() < 100 && !error.contains(char::is_control), "{error}");
            }
            format!("{:?} {:?}", whole.map(drop), fraction.map(drop))
        });
    }

    #[test]
    fn seconds_may_have_a_fraction() {
        for (text, ms) in [("0", 0), ("0.5", 500), (".25", 250), ("3.", 3000), ("86400", 86_400_000)] {
            assert_eq!(seconds(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", ".", "-1", "NaN", "inf", "1e3", "9e99", "5s", "99999999999", "1.2.3"] {
            let error = seconds(text).expect_err(text);
            assert!(error.contains("seconds") && !error.contains('\n'), "{text}: {error}");
        }
    }
}
