use std::time::Duration;

use crate::error::{Error, Result};
use crate::metrics::Groups;
use crate::name::{LockName, Quoted};
use crate::owner::check_text;
use crate::protocol::Liveness;
use crate::protocol::lease::{TTL_MAX, TTL_MIN, margin};

/// How locks are held. The defaults suit a service on a network.
///
/// Change them if a lease of 15 s is wrong: longer if a process may be paused for longer, shorter if others
/// must not wait that long after a crash.
///
/// [`Locks::with`](crate::Locks::with) changes the options of all locks; [`Mutex::with`](crate::Mutex::with)
/// and its counterparts change those of one lock. Both start from the options in force, so earlier settings
/// are kept, and both validate the result:
///
/// ```
/// use std::time::Duration;
/// use tenure::Locks;
///
/// let locks = Locks::memory()
///     .with(|options| options.ttl(Duration::from_secs(60)).label("reports"))?;
/// assert_eq!(locks.options().ttl, Duration::from_secs(60));
/// let nightly = locks.mutex("nightly")?
///     .with(|options| options.max_hold(Duration::from_secs(600)))?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The lease: how long the lock outlives a holder that is gone. 50 ms to 365 days, and at most the
    /// `restart-grace` of the store's URL. Default: 15 s, or `restart-grace` if that is shorter. The client
    /// ends the lease 1 % and 2 ms early, because clocks run at different speeds.
    pub ttl: Duration,
    /// Whether the lease is renewed while the guard lives. Default: automatic, after a third of the lease,
    /// and at most a minute after the last renewal.
    pub renewal: Renewal,
    /// Maximum time one guard may hold the lock, however often it is renewed. 50 ms to 365 days. Default: no
    /// limit.
    pub max_hold: Option<Duration>,
    /// How long before another client can get the lock its loss is announced, so that work can stop in time.
    /// At most a third of the lease. Default: zero.
    pub grace: Duration,
    /// Binds the hold to the child processes as well, where the store is on this machine (`file:`): the lock
    /// is freed when the last process of the work has ended. Default: off. Other stores support leases only.
    pub inherit_liveness: bool,
    /// Timeout of one request to the store. 1 ms to 365 days. Default: 1 s.
    pub op_timeout: Duration,
    /// How long [`lock`](crate::Mutex::lock) keeps retrying while the store does not answer at all. A full
    /// server ([`is_full`](crate::Error::is_full)) is waited for without this limit. At most 365 days. Default:
    /// 60 s.
    pub patience: Duration,
    /// Text shown to people beside the holder's user, host and process, such as the URL of a job. Anyone who
    /// can inspect the lock can read it, so do not put secrets here. At most 256 bytes without control
    /// characters. Default: empty.
    pub label: String,
    /// Prepended to each name to form the store's key. At most 32 KiB, and at most 64 KiB together with the
    /// name; must not start with `tenure:`. Default: empty.
    pub prefix: String,
    /// Allows a mutex without a fencing token on a server that forbids scripts, where
    /// [`Guard::fence`](crate::Guard::fence) is then 0. Default: off, which makes such a server
    /// [unsupported](crate::Error::is_unsupported). No effect where scripts are allowed.
    ///
    /// Without scripts, the mutex uses `SET NX` and the server's own compare commands, or `WATCH` on a
    /// dedicated connection, one request at a time. Exclusion is the same, but nothing protects a resource
    /// from a holder that was paused for longer than its lease. Other kinds of locks, and quorums, are
    /// rejected on such a server in any case.
    pub unfenced: bool,
    /// Which locks are counted separately in [`Locks::metrics`](crate::Locks::metrics). Default: one group
    /// for all.
    pub groups: Groups,
}

/// The options that a hold keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldOptions {
    pub(crate) ttl: Duration,
    pub(crate) renewal: Renewal,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) bind: Liveness,
    pub(crate) op_timeout: Duration,
}

impl HoldOptions {
    pub(crate) fn of(options: &Options) -> Self {
        // Exhaustive: whoever adds an option decides here whether a hold keeps it.
        let &Options {
            ttl,
            renewal,
            max_hold,
            grace,
            inherit_liveness,
            op_timeout,
            patience: _,
            label: _,
            prefix: _,
            unfenced: _,
            groups: _,
        } = options;
        let bind = if inherit_liveness { Liveness::Work } else { Liveness::Process };
        Self { ttl, renewal, max_hold, grace, bind, op_timeout }
    }

    /// These options, and the remaining ones of `others`.
    pub(crate) fn and(self, others: Options) -> Options {
        let Self { ttl, renewal, max_hold, grace, bind, op_timeout } = self;
        let inherit_liveness = bind == Liveness::Work;
        Options { ttl, renewal, max_hold, grace, inherit_liveness, op_timeout, ..others }
    }

    /// Whether a hold with the wanted options would be renewed the same way as one with these.
    pub(crate) fn covers(self, wanted: Self) -> bool {
        let Self { ttl, renewal, max_hold, grace, bind, op_timeout: _ } = wanted;
        [self.renewal, renewal] == [Renewal::Automatic; 2]
            && [self.max_hold, max_hold] == [None; 2]
            && ttl <= self.ttl
            && (grace, bind) == (self.grace, self.bind)
    }
}

/// Whether a lease is renewed while its guard lives.
///
/// ```
/// # tenure::block_on(async {
/// # let locks = tenure::Locks::memory();
/// use tenure::Renewal;
///
/// let by_hand = locks.with(|options| options.renewal(Renewal::Off))?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewal {
    /// Renew in the background until the guard is released or dropped, its lease is lost, or `max_hold` is
    /// reached.
    Automatic,
    /// Renew only by [`Guard::renew`](crate::Guard::renew).
    Off,
}

impl Options {
    /// Returns the default options.
    ///
    /// ```
    /// assert_eq!(tenure::Options::new(), tenure::Options::default());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`ttl`](Self::ttl).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use std::time::Duration;
    ///
    /// let locks = locks.with(|options| options.ttl(Duration::from_secs(60)))?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// Sets [`renewal`](Self::renewal).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use tenure::Renewal;
    ///
    /// let locks = locks.with(|options| options.renewal(Renewal::Off))?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn renewal(self, renewal: Renewal) -> Self {
        Self { renewal, ..self }
    }

    /// Sets [`max_hold`](Self::max_hold).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use std::time::Duration;
    ///
    /// let locks = locks.with(|options| options.max_hold(Duration::from_secs(600)))?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self { max_hold: Some(max_hold), ..self }
    }

    /// Sets [`grace`](Self::grace).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use std::time::Duration;
    ///
    /// let locks = locks.with(|options| options.grace(Duration::from_secs(3)))?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// Sets [`inherit_liveness`](Self::inherit_liveness).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let locks = locks.with(|options| options.inherit_liveness(true))?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn inherit_liveness(self, inherit_liveness: bool) -> Self {
        Self { inherit_liveness, ..self }
    }

    /// Sets [`op_timeout`](Self::op_timeout).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use std::time::Duration;
    ///
    /// let locks = locks.with(|options| options.op_timeout(Duration::from_millis(500)))?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn op_timeout(self, op_timeout: Duration) -> Self {
        Self { op_timeout, ..self }
    }

    /// Sets [`patience`](Self::patience).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use std::time::Duration;
    ///
    /// let locks = locks.with(|options| options.patience(Duration::from_secs(10)))?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Sets [`label`](Self::label).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let locks = locks.with(|options| options.label("reports"))?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn label(self, label: impl Into<String>) -> Self {
        Self { label: label.into(), ..self }
    }

    /// Sets [`prefix`](Self::prefix).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let locks = locks.with(|options| options.prefix("shop:"))?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// Sets [`unfenced`](Self::unfenced).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let locks = locks.with(|options| options.unfenced(true))?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn unfenced(self, unfenced: bool) -> Self {
        Self { unfenced, ..self }
    }

    /// Sets [`groups`](Self::groups).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// use tenure::metrics::Groups;
    ///
    /// let locks = locks.with(|options| options.groups(Groups::by_prefix(':')))?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn groups(self, groups: Groups) -> Self {
        Self { groups, ..self }
    }

    /// Rejects invalid options and invalid combinations.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::invalid(what));
        if self.ttl < TTL_MIN || self.ttl > TTL_MAX {
            return wrong(format!("ttl must be between 50ms and 365d, got {:?}", self.ttl));
        }
        if let Some(hold) = self.max_hold.filter(|hold| *hold < TTL_MIN || *hold > TTL_MAX) {
            return wrong(format!("max_hold must be between 50ms and 365d, got {hold:?}"));
        }
        let lease = self.lease();
        if self.grace > lease / 3 {
            let most = lease / 3;
            return wrong(format!(
                "grace must be at most a third of the lease, {most:?}, got {:?}",
                self.grace
            ));
        }
        if self.op_timeout < Duration::from_millis(1) || self.op_timeout > TTL_MAX {
            return wrong(format!("op_timeout must be between 1ms and 365d, got {:?}", self.op_timeout));
        }
        if self.patience > TTL_MAX {
            return wrong(format!("patience must be at most 365d, got {:?}", self.patience));
        }
        if self.prefix.starts_with("tenure:") || self.prefix.len() > LockName::MAX_BYTES / 2 {
            let shown = Quoted(&self.prefix);
            return wrong(format!(
                "prefix must be at most 32 KiB and must not begin with `tenure:`, got {shown}"
            ));
        }
        check_text("a label", &self.label)?;
        debug_assert!(margin(lease) + self.grace < lease, "the checks leave something of every lease");
        Ok(())
    }

    /// The initial lease: the ttl, capped by `max_hold`.
    pub(crate) fn lease(&self) -> Duration {
        self.ttl.min(self.max_hold.unwrap_or(self.ttl))
    }

    /// The lock's name in the store: the prefix and `name`.
    pub(crate) fn full_name(&self, name: &LockName) -> Result<LockName> {
        if self.prefix.is_empty() {
            Ok(name.clone())
        } else {
            LockName::new(&format!("{}{}", self.prefix, name.as_str()))
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(15),
            renewal: Renewal::Automatic,
            max_hold: None,
            grace: Duration::ZERO,
            inherit_liveness: false,
            op_timeout: Duration::from_secs(1),
            patience: Duration::from_secs(60),
            label: String::new(),
            prefix: String::new(),
            unfenced: false,
            groups: Groups::none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_cannot_be_right_are_refused_with_what_would_be() {
        let ms = Duration::from_millis;
        let wrong = [
            Options::new().ttl(Duration::ZERO),
            Options::new().ttl(ms(49)),
            Options::new().ttl(Duration::MAX),
            Options::new().max_hold(ms(1)),
            Options::new().ttl(ms(300)).grace(ms(101)),
            Options::new().max_hold(ms(300)).grace(ms(101)),
            Options::new().op_timeout(Duration::ZERO),
            Options::new().patience(Duration::MAX),
            Options::new().label("a\nb"),
            Options::new().prefix("tenure:x"),
        ];
        for options in wrong {
            let error = options.check().expect_err("no options");
            assert!(error.is_invalid() && error.to_string().contains("must "), "{error}");
        }
        assert!(Options::new().ttl(ms(50)).grace(ms(16)).check().is_ok());
    }
}
