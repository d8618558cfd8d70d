//! Schedulers: `run_each_until` and `lead_until`, on tokio's paused clock.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures_util::future::{join, pending};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use tenure::internals::testing_client;
use tenure::testing::{Control, store};
use tenure::{Frees, Locks, Outcome, Period, Result};
use tokio::time::{Instant, sleep, timeout};

use super::summer::first_moment;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// The windows of the runs, and how late each was.
type Runs = Arc<Mutex<Vec<(SystemTime, Duration)>>>;

/// A scheduler in a process of its own, for this time, whose jobs take so long.
fn scheduler(
    control: &Control,
    period: Period,
    runs: &Runs,
    takes: Duration,
    ends: Duration,
) -> tokio::task::JoinHandle<Result<()>> {
    let (locks, runs) = (testing_client(control).0, Arc::clone(runs));
    tokio::spawn(async move {
        let job = locks.once_per("job", period)?;
        let run = job.run_each_until(sleep(ends), async |turn| {
            runs.lock().expect("no panic").push((turn.window().start, turn.late_by()));
            sleep(takes).await;
            Ok::<_, String>(())
        });
        run.await
    })
}

/// A store whose clock shows this time after a full period of this length.
async fn store_at(period: Duration, after: Duration) -> (Locks, Control) {
    let (locks, control) = store();
    let passed = first_moment().as_second().unsigned_abs() % period.as_secs();
    control.advance(period - Duration::from_secs(passed) + after).await;
    (locks, control)
}

fn taken(runs: &Runs) -> Vec<(SystemTime, Duration)> {
    std::mem::take(&mut *runs.lock().expect("no panic"))
}

#[tokio::test(start_paused = true)]
async fn schedulers_run_each_window_once_when_it_opens() -> Result<()> {
    let ((_locks, control), runs) = (store_at(10 * MINUTE, 5 * MINUTE).await, Runs::default());
    let period = || Period::every(10 * MINUTE);
    let all: Vec<_> = (0..5).map(|_| scheduler(&control, period(), &runs, MINUTE, 5 * HOUR)).collect();
    for scheduler in all {
        scheduler.await.expect("no panic")?;
    }
    let runs = taken(&runs);
    assert!((30..=31).contains(&runs.len()), "{runs:?}");
    // The first one came in the middle of its window.
    assert!(runs.windows(2).all(|two| two[0].0 + 10 * MINUTE == two[1].0), "{runs:?}");
    assert!(runs[1..].iter().all(|(_, late)| *late < SECOND), "{runs:?}");
    // A host that waits asks rarely.
    let asked = control.requests().len();
    assert!(asked < 5 * 31 * 30, "{asked} requests");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_failed_job_is_repeated_after_a_time_that_doubles() -> Result<()> {
    let (locks, control) = store_at(DAY, SECOND).await;
    let (begun, hosts) = (Mutex::new(Vec::new()), [locks, testing_client(&control).0]);
    let fails = async |locks: &Locks| {
        let job = locks.once_per("job", Period::every(DAY).open_for(DAY))?;
        let started = Instant::now();
        let end = sleep(HOUR);
        let run = job.run_each_until(end, async |_| {
            begun.lock().expect("no panic").push(started.elapsed().as_secs());
            Err::<(), _>("no disk")
        });
        run.await
    };
    let (one, other) = join(fails(&hosts[0]), fails(&hosts[1])).await;
    one.and(other)?;
    let begun = begun.into_inner().expect("no panic");
    let pauses: Vec<_> = begun.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses[0] >= 10 && pauses.windows(2).take(3).all(|two| two[1] > two[0]), "{pauses:?}");
    // One of the two looks again within a minute after the pause of at most 5 minutes.
    assert!(pauses.iter().all(|pause| *pause <= 361) && begun.len() >= 12, "{begun:?}");
    assert!(begun.len() < 30, "{begun:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_end_lets_the_running_job_finish_and_loses_none() -> Result<()> {
    let ((locks, control), runs) = (store_at(DAY, HOUR).await, Runs::default());
    let scheduler = scheduler(&control, Period::every(DAY), &runs, HOUR, MINUTE);
    let started = Instant::now();
    scheduler.await.expect("no panic")?;
    assert!(started.elapsed() >= HOUR, "{:?}", started.elapsed());
    let job = locks.once_per("job", DAY)?;
    assert_eq!(job.last().await?.expect("it ran").outcome, Outcome::Done);
    // One that waits ends at once.
    let waits = job.begin_until(sleep(MINUTE));
    assert!(timeout(61 * SECOND, waits).await.expect("at once")?.is_none());
    // One that has ended leaves the window open.
    job.reset().await?;
    assert!(job.begin_until(async {}).await?.is_none());
    assert!(job.begin_until(pending()).await?.is_some());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_job_goes_on_after_the_store_was_away_for_an_hour() -> Result<()> {
    let (locks, control) = store_at(HOUR, 5 * MINUTE).await;
    // A scheduler may start before its store.
    let outage = control.outage();
    let runs = Runs::default();
    let every = scheduler(&control, Period::every(10 * MINUTE), &runs, SECOND, 6 * HOUR);
    control.advance(HOUR).await;
    assert_eq!(taken(&runs), []);
    drop(outage);
    control.advance(61 * SECOND).await;
    assert_eq!(taken(&runs).len(), 1, "within a minute");
    control.advance(2 * HOUR).await;
    assert!((11..=13).contains(&taken(&runs).len()));
    let outage = control.outage();
    control.advance(HOUR).await;
    drop(outage);
    let missed = taken(&runs).len();
    assert!(missed <= 1);
    control.advance(HOUR).await;
    let after = taken(&runs);
    assert!((5..=7).contains(&after.len()), "{after:?}");
    every.await.expect("no panic")?;
    assert!(locks.once_per("job", MINUTE)?.last().await?.is_some());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_missed_window_is_skipped_where_it_is_open_for_a_minute() -> Result<()> {
    for (skips, expected) in [(false, [2, 1]), (true, [1, 0])] {
        let ((_locks, control), runs) = (store_at(HOUR, 10 * MINUTE).await, Runs::default());
        let period = Period::every(HOUR);
        let period = if skips { period.open_for(MINUTE) } else { period };
        let scheduler = scheduler(&control, period, &runs, SECOND, 4 * HOUR);
        control.advance(90 * MINUTE).await;
        assert_eq!(taken(&runs).len(), expected[0], "the window of its start, and the next");
        // The store is away at the next start.
        let outage = control.outage();
        control.advance(65 * MINUTE).await;
        drop(outage);
        control.advance(2 * MINUTE).await;
        let late = taken(&runs);
        assert_eq!(late.len(), expected[1], "{late:?}");
        assert!(late.iter().all(|(_, late)| *late > 40 * MINUTE), "{late:?}");
        control.advance(15 * MINUTE).await;
        assert_eq!(taken(&runs).len(), 1, "the next window is on time");
        scheduler.await.expect("no panic")?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_job_that_outlasts_its_window_never_overlaps_itself() -> Result<()> {
    let ((_locks, control), runs) = (store_at(10 * MINUTE, 5 * MINUTE).await, Runs::default());
    let period = || Period::every(10 * MINUTE);
    let all: Vec<_> = (0..3).map(|_| scheduler(&control, period(), &runs, 25 * MINUTE, 5 * HOUR)).collect();
    for scheduler in all {
        scheduler.await.expect("no panic")?;
    }
    let runs = taken(&runs);
    assert!((10..=12).contains(&runs.len()), "{runs:?}");
    let begun: Vec<_> = runs.iter().map(|(window, late)| *window + *late).collect();
    let apart = |two: &[SystemTime]| two[1].duration_since(two[0]).expect("later");
    assert!(begun.windows(2).all(|two| apart(two) >= 25 * MINUTE), "{runs:?}");
    // The next one is found within a tenth of the time for which its window was open.
    assert!(begun.windows(2).all(|two| apart(two) <= 28 * MINUTE), "{runs:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_scheduler_runs_each_night_once_where_the_clocks_of_summer_change() -> Result<()> {
    let zone = TimeZone::get("Europe/Berlin").expect("a zone");
    let nightly = || Period::cron("30 2 * * *").and_then(|period| period.in_zone("Europe/Berlin"));
    let mut begins = Vec::new();
    let changes: Vec<_> = zone.following(first_moment()).take(2).map(|change| change.timestamp()).collect();
    for change in changes {
        let ((_locks, control), runs) = (store(), Runs::default());
        let until = Duration::try_from(change.duration_since(first_moment())).expect("it is to come");
        control.advance(until - 2 * DAY).await;
        let hosts: Vec<_> = (0..3)
            .map(|_| nightly().map(|nightly| scheduler(&control, nightly, &runs, MINUTE, 4 * DAY)))
            .collect::<Result<_>>()?;
        for host in hosts {
            host.await.expect("no panic")?;
        }
        let runs = taken(&runs);
        assert!((4..=6).contains(&runs.len()), "{runs:?}");
        for (window, _) in &runs[1..] {
            let local = zone.to_datetime(Timestamp::try_from(*window).expect("a time"));
            begins.push(local.strftime("%H:%M").to_string());
        }
        let ends = |window: &SystemTime| nightly()?.window_at(*window).map(|window| window.end);
        for two in runs.windows(2) {
            assert_eq!(ends(&two[0].0)?, two[1].0, "{runs:?}");
        }
    }
    assert_eq!(begins.iter().filter(|begin| **begin == "03:00").count(), 1, "{begins:?}");
    assert!(begins.iter().all(|begin| ["02:30", "03:00"].contains(&begin.as_str())), "{begins:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn hosts_whose_zones_have_other_rules_run_a_job_once_a_night() -> Result<()> {
    let ((_locks, control), runs) = (store(), Runs::default());
    let night = |hour: u32| Period::daily(hour * HOUR);
    // The second host leads for some nights, while the first is away, and the other way around.
    let on = |hour, ends| scheduler(&control, night(hour), &runs, MINUTE, ends);
    let mut hosts = vec![on(1, 8 * DAY), on(2, 20 * DAY)];
    control.advance(12 * DAY).await;
    hosts.extend([on(1, 16 * DAY), on(1, 16 * DAY)]);
    control.advance(10 * DAY).await;
    hosts.push(on(2, 6 * DAY));
    for host in hosts {
        host.await.expect("no panic")?;
    }
    let runs = taken(&runs);
    let begun: Vec<_> = runs.iter().map(|(window, late)| *window + *late).collect();
    let apart = |two: &[SystemTime]| two[1].duration_since(two[0]).expect("later");
    // The first run is that of the night before.
    let nights = &begun[1..];
    assert!(nights.windows(2).all(|two| apart(two) >= 22 * HOUR && apart(two) <= 26 * HOUR), "{runs:?}");
    assert!((26..=29).contains(&runs.len()), "{} runs", runs.len());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_scheduler_ends_on_what_no_retry_can_mend() -> Result<()> {
    let (locks, _control) = store_at(DAY, HOUR).await;
    let job = locks.once_per("job", Duration::from_millis(1))?;
    let error = job.run_each(async |_| Ok::<_, String>(())).await.expect_err("too short");
    assert!(error.is_invalid(), "{error}");
    // A run by hand is none that is repeated.
    let job = locks.once_per("job", DAY)?.again(true).frees(Frees::Nothing);
    let runs = Mutex::new(0);
    let run = job.run_each_until(sleep(HOUR), async |_| {
        *runs.lock().expect("no panic") += 1;
        Err::<(), _>("once only")
    });
    run.await?;
    assert_eq!(*runs.lock().expect("no panic"), 1);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_candidate_leads_again_after_a_loss_an_error_and_an_outage() -> Result<()> {
    let (locks, control) = store();
    let terms = Arc::new(Mutex::new(Vec::new()));
    let led = Arc::clone(&terms);
    let candidate = tokio::spawn(async move {
        let election = locks.election("scheduler", "one")?;
        let lead = election.lead_until(sleep(2 * HOUR), async |term| {
            let count = {
                let mut led = led.lock().expect("no panic");
                led.push(term.fence());
                led.len()
            };
            match count {
                2 => Err("no disk"),
                3 => Ok(()),
                _ => pending().await,
            }
        });
        lead.await
    });
    let count = || terms.lock().expect("no panic").len();
    let election = control.elsewhere().election("scheduler", "other")?;
    control.advance(MINUTE).await;
    assert_eq!(count(), 1);
    // The term is lost while the store is away.
    let outage = control.outage();
    control.advance(HOUR).await;
    drop(outage);
    control.advance(3 * MINUTE).await;
    assert_eq!(count(), 4, "after the loss, the error and the return");
    assert_eq!(election.leader().await?.expect("it leads").payload, "one");
    let started = Instant::now();
    candidate.await.expect("no panic")?;
    assert!(started.elapsed() < HOUR);
    assert_eq!(election.leader().await?, None, "it has resigned");
    let terms = terms.lock().expect("no panic");
    assert!(terms.windows(2).all(|two| two[0] < two[1]), "{terms:?}");
    Ok(())
}
