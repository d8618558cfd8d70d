//! A nightly job by wall-clock time across changes of daylight saving time, with windows of a function.

use std::time::{Duration, SystemTime};

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use tenure::testing::store;
use tenure::{Period, Result};

/// When the clock of a store for tests begins: the year 2000.
pub(super) fn first_moment() -> Timestamp {
    Timestamp::from_second(946_684_800).expect("a moment of our time")
}

const HOUR: Duration = Duration::from_secs(3_600);

/// From 02:30 in Berlin to 02:30 of the next day.
fn nightly() -> Period {
    let zone = TimeZone::get("Europe/Berlin").expect("a zone");
    Period::new(move |now| {
        let begins = |day: Date| {
            let zoned = day.at(2, 30, 0, 0).to_zoned_datetime(zone.clone()).expect("a day of our time");
            SystemTime::try_from(zoned.timestamp()).expect("a moment of our time")
        };
        let moment = Timestamp::try_from(now).expect("a moment of our time");
        let today = moment.to_zoned_datetime(zone.clone()).date();
        let day = if begins(today) <= now { today } else { today - 1.day() };
        begins(day)..begins(day + 1.day())
    })
}

#[tokio::test(start_paused = true)]
async fn a_nightly_job_runs_once_a_night_where_the_clocks_of_summer_change() -> Result<()> {
    let zone = TimeZone::get("Europe/Berlin").expect("a zone");
    let (locks, control) = store();
    let job = locks.once_per("nightly", nightly())?;
    let mut clock = first_moment();
    let changes: Vec<_> = zone.following(clock).take(2).map(|change| change.timestamp()).collect();
    let mut told = Vec::new();
    for change in changes {
        // From two nights before the change to two after it, a host tries twice an hour.
        let first = change - 48.hours();
        let until = Duration::try_from(first.duration_since(clock)).expect("it is to come");
        control.advance(until).await;
        clock = first;
        let mut windows = Vec::new();
        for _ in 0..4 * 48 {
            if let Some(turn) = job.try_begin().await? {
                windows.push(turn.window().clone());
                turn.succeed().await?;
            }
            control.advance(HOUR / 2).await;
            clock += 30.minutes();
        }
        // No night is left out or has two runs.
        assert!(windows.windows(2).all(|two| two[0].end == two[1].start), "{windows:?}");
        let hours: Vec<_> = windows
            .iter()
            .map(|window| window.end.duration_since(window.start).expect("a window").as_secs() / 3_600)
            .collect();
        let local = |moment: SystemTime| {
            let zoned = Timestamp::try_from(moment).expect("a moment").to_zoned_datetime(zone.clone());
            zoned.strftime("%H:%M").to_string()
        };
        let begins: Vec<_> = windows.iter().map(|window| local(window.start)).collect();
        told.push((hours, begins));
    }
    let begins_around = |length: u64| {
        let found = told.iter().find(|(hours, _)| hours.contains(&length));
        found.map(|(_, begins)| begins.iter().map(String::as_str).collect::<Vec<_>>()).unwrap_or_default()
    };
    // In spring there is no 02:30: the night begins at 03:30 and lasts 23 hours.
    let spring = begins_around(23);
    assert_eq!(spring.iter().filter(|begin| **begin == "03:30").count(), 1, "{told:?}");
    // In autumn there are two 02:30s, and the night that begins at the first lasts 25 hours.
    let autumn = begins_around(25);
    assert!(autumn.iter().all(|begin| *begin == "02:30"), "{told:?}");
    assert!(told.iter().all(|(hours, _)| hours.len() >= 4), "{told:?}");
    Ok(())
}
