//! The election and the job of a name.

use std::fmt;
use std::time::Duration;

use futures_util::future::join;
use tenure::{LastRun, Leader, Locks, Outcome};

use crate::output::{Line, Span};
use crate::{clock, table};

/// Requests about a running job do not depend on the period.
pub(crate) const ANY_PERIOD: Duration = Duration::from_secs(86_400);

/// The running election and the last run of the job of this name, which are not locks. `None` also if the store
/// does not support them, or if the user may not read them.
pub(crate) struct Uses {
    pub(crate) leader: Option<Leader>,
    pub(crate) last_run: Option<LastRun>,
}

impl Uses {
    pub(crate) async fn of(locks: &Locks, name: &str) -> Self {
        let leader = async { locks.election(name, "").ok()?.leader().await.ok()? };
        let last_run = async { locks.once_per(name, ANY_PERIOD).ok()?.last().await.ok()? };
        let (leader, last_run) = join(leader, last_run).await;
        Self { leader, last_run }
    }
}

/// The outcome of a run for programs, and why it failed.
pub(crate) fn outcome(of: &Outcome) -> (&'static str, Option<&str>) {
    match of {
        Outcome::Running => ("running", None),
        Outcome::Done => ("done", None),
        Outcome::Failed(why) => ("failed", Some(why)),
        _ => ("lost", None),
    }
}

impl fmt::Display for Uses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(leader) = &self.leader {
            let who = table::who(&leader.owner);
            writeln!(f, "election of this name: led by {}; see `tenure leader`", Line(&who))?;
        }
        if let Some(run) = &self.last_run {
            let begun = clock::since_1970(run.begun);
            let (who, ago) = (table::who(&run.owner), Span(clock::unix().saturating_sub(begun)));
            let how = match &run.outcome {
                Outcome::Running => {
                    let left = run.remaining.map_or(String::new(), |left| format!(", {} left", Span(left)));
                    format!("running{left}; see `tenure stop --job`")
                }
                Outcome::Done => "done".to_owned(),
                Outcome::Failed(why) if run.is_open => format!("failed: {}", Line(why)),
                Outcome::Failed(why) => format!("failed: {}; its window stays closed", Line(why)),
                _ => "died or lost its lock".to_owned(),
            };
            write!(f, "job of this name: run by {}, begun {ago} ago: {how}", Line(&who))?;
            match run.succeeded.filter(|_| run.outcome != Outcome::Done) {
                Some(at) => {
                    let ago = clock::unix().saturating_sub(clock::since_1970(at));
                    writeln!(f, "; last done {} ago", Span(ago))?;
                }
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}
