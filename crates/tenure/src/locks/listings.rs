//! The jobs and elections of a store.

use super::{Locks, checked};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::uses::elections::Elections;
use crate::uses::jobs::{self, JobStatus, Jobs};

impl Locks {
    /// Lists the [jobs](Self::once_per) that have run and whose names begin with `prefix`, until their record
    /// [is dropped](crate::OncePer::last). Reads the records, a few hundred at a time, and looks at the locks of
    /// those that run. Redis scans all keys, as for [`list`](Self::list), once.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let minute = std::time::Duration::from_secs(60);
    /// let locks = tenure::Locks::memory();
    /// locks.once_per("report", minute)?.run(async |_| Err::<(), _>("no disk")).await?;
    /// let mut jobs = locks.jobs("")?;
    /// while let Some(job) = jobs.next().await? {
    ///     println!("{}: {:?}, due at {:?}", job.name, job.last.outcome, job.next);
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `is_invalid` if no valid name begins with the prefix.
    pub fn jobs(&self, prefix: &str) -> Result<Jobs> {
        Jobs::new(&self.shared, &self.options, prefix)
    }

    /// Returns the state of a job, with its last runs, or `None` if it has not run.
    ///
    /// # Cancel safety
    /// Safe to drop: the request changes nothing.
    ///
    /// # Errors
    /// As [`once_per`](Self::once_per), and those of the store: `is_unreachable` and `is_refused`.
    pub async fn job(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Option<JobStatus>> {
        jobs::job(&self.shared, &self.options, checked(name)?).await
    }

    /// Lists the [elections](Self::election) whose names begin with `prefix`, also those that nobody leads at
    /// present, and looks at the lock of each. Redis scans all keys, as for [`list`](Self::list), once.
    ///
    /// # Errors
    /// As [`jobs`](Self::jobs).
    pub fn elections(&self, prefix: &str) -> Result<Elections> {
        Elections::new(&self.shared, &self.options, prefix)
    }
}
