//! `tenure jobs`: the jobs of a store, or one with its last runs.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::time::SystemTime;

use tenure::{JobStatus, Locks, Outcome, PastRun};

use crate::cli::Jobs;
use crate::exit::{BUSY, FREE, Failure};
use crate::output::{self, Line, Span};
use crate::{clock, json, store, table, uses};

/// Prints the jobs; returns the exit code.
pub(crate) async fn jobs(args: &Jobs) -> Result<u8, Failure> {
    let locks = store::open_existing(&args.store)?;
    let Some(name) = &args.name else {
        let found = store::unless_absent(&locks, all(&locks)).await??;
        output::print(match args.json {
            true => found.iter().map(|job| json::job(&locks, job)).collect(),
            false => list(&found, io::stdout().is_terminal()),
        })?;
        return Ok(0);
    };
    let Some(job) = store::unless_absent(&locks, locks.job(name.as_str())).await?? else {
        output::complain(format_args!("no run of a job {name:?} is recorded"));
        return Ok(FREE);
    };
    if !args.forget {
        output::print(if args.json { json::job(&locks, &job) } else { detail(&locks, &job) })?;
        return Ok(0);
    }
    if job.is_running() {
        let who = table::who(&job.last.owner);
        let message = format!("job {name:?} is run by {who}; `tenure stop --job` ends it");
        return Err(Failure::new(BUSY, message));
    }
    locks.once_per(name.as_str(), uses::ANY_PERIOD)?.reset().await?;
    output::print("forgotten\n").map(|()| 0)
}

/// All jobs, by name.
async fn all(locks: &Locks) -> tenure::Result<Vec<JobStatus>> {
    let (mut jobs, mut found) = (locks.jobs("")?, Vec::new());
    while let Some(job) = jobs.next().await? {
        found.push(job);
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// A table with a header, or lines with tabs.
fn list(found: &[JobStatus], is_table: bool) -> String {
    const HEADER: [&str; 6] = ["NAME", "LAST RUN", "HOST", "LAST SUCCESS", "NEXT", "SCHEDULE"];
    let rows: Vec<[String; 6]> = found.iter().map(row).collect();
    if !is_table {
        return rows.iter().map(|row| row.join("\t") + "\n").collect();
    }
    let mut widths = HEADER.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count()).min(40);
        }
    }
    let line = |cells: &[String; 6]| {
        let cells: Vec<_> =
            cells.iter().zip(widths).map(|(cell, width)| table::fitted(cell, width)).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    std::iter::once(&HEADER.map(str::to_owned)).chain(&rows).map(line).collect()
}

fn row(job: &JobStatus) -> [String; 6] {
    let last = &job.runs[0];
    let ran = match &last.outcome {
        Outcome::Running => format!("running for {}", since(last.begun)),
        outcome => format!("{} {} ago", uses::outcome(outcome).0, since(last.ended.unwrap_or(last.begun))),
    };
    [
        Line(job.name.as_str()).to_string(),
        ran,
        Line(&last.host).to_string(),
        job.last.succeeded.map_or_else(|| "-".to_owned(), |at| format!("{} ago", since(at))),
        next(job),
        job.schedule.as_deref().map_or_else(|| "-".to_owned(), |schedule| Line(schedule).to_string()),
    ]
}

fn next(job: &JobStatus) -> String {
    let ahead = clock::since_1970(job.next).saturating_sub(clock::unix());
    match job.overdue {
        Some(overdue) => format!("overdue for {}", Span(overdue)),
        None if ahead.is_zero() => "now".to_owned(),
        None => format!("in {}", Span(ahead)),
    }
}

fn since(time: SystemTime) -> Span {
    Span(clock::unix().saturating_sub(clock::since_1970(time)))
}

/// One job with a line for each of its last runs.
fn detail(locks: &Locks, job: &JobStatus) -> String {
    let [_, ran, _, succeeded, next, schedule] = row(job);
    let who = table::who(&job.last.owner);
    let who = Line(&who);
    let mut text = format!("last run: {ran}, by {who}\nlast success: {succeeded}\nnext run: {next}\n");
    let _ = write!(text, "schedule: {schedule}\nstore: {}\n\n", Line(locks.url()));
    for run in &job.runs {
        let took = run.ended.and_then(|ended| ended.duration_since(run.begun).ok());
        let took = took.map_or_else(|| "-".to_owned(), |took| Span(took).to_string());
        let _ = writeln!(text, "{} ago\t{took}\t{}\t{}", since(run.begun), Line(&run.host), told(run));
    }
    text
}

/// The outcome with its exit code and reason.
fn told(run: &PastRun) -> String {
    let (outcome, why) = uses::outcome(&run.outcome);
    let code = run.code.map_or_else(String::new, |code| format!(", code {code}"));
    let why =
        why.map_or_else(String::new, |why| format!(": {}", Line(why.lines().next().unwrap_or_default())));
    format!("{outcome}{code}{why}")
}

#[cfg(test)]
mod tests {
    use std::fmt::Error;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_job_is_a_line_and_its_runs_are_listed() {
        let locks = Locks::memory();
        let found = tenure::block_on(async {
            let job = locks.once_per("digest", Duration::from_secs(86_400))?;
            job.try_begin().await?.expect("the first").exit_code(3).fail("no disk\nat all").await?;
            job.run(async |_| Ok::<_, Error>(())).await?;
            all(&locks).await
        });
        let found = found.expect("jobs");
        let line = list(&found, false);
        let cells: Vec<_> = line.trim_end().split('\t').collect();
        let [name, ran, _, succeeded, next, schedule] = cells[..] else { panic!("{line}") };
        assert!(name == "digest" && schedule.starts_with("every "), "{line}");
        assert!(ran.starts_with("done ") && succeeded.ends_with(" ago") && next.starts_with("in "), "{line}");
        assert!(list(&found, true).starts_with("NAME    LAST RUN"));
        let detail = detail(&locks, &found[0]);
        assert!(detail.ends_with("failed, code 3: no disk\n"), "{detail}");
        assert_eq!(detail.lines().filter(|line| line.contains('\t')).count(), 2, "{detail}");
    }
}
