use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use crate::engine::acquire::{Wait, acquire};
use crate::engine::acquisition::Wanted;
use crate::engine::engine_handle::EngineHandle;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::name::LockName;
use crate::options::Options;
use crate::owner::Owner;
use crate::protocol::LockSpec;

/// What every lock handle wraps: a name in a store, the kind of lock to request, and the options.
#[derive(Clone)]
pub(crate) struct LockHandle {
    pub(crate) shared: Arc<EngineHandle>,
    pub(crate) options: Arc<Options>,
    /// Without the prefix.
    pub(crate) name: LockName,
    pub(crate) full: LockName,
    pub(crate) spec: LockSpec,
    /// Set by the caller for reentrant mutexes, which count the holds of an owner.
    pub(crate) owner: Option<Owner>,
}

/// As [`Locks`](crate::Locks).
impl UnwindSafe for LockHandle {}
impl RefUnwindSafe for LockHandle {}

/// Applies `change` and checks the result against the store.
pub(crate) fn changed(
    shared: &EngineHandle,
    options: &Options,
    change: impl FnOnce(Options) -> Options,
) -> Result<Arc<Options>> {
    let options = change(options.clone());
    options.check()?;
    let store = &shared.engine.store;
    if let Some(grace) = store.capabilities().restart_grace
        && options.ttl > grace
    {
        return Err(Error::invalid(format!(
            "ttl must be at most {grace:?}, the restart-grace of store {}, got {:?}",
            store.url(),
            options.ttl
        )));
    }
    Ok(Arc::new(options))
}

impl LockHandle {
    pub(crate) fn new(
        shared: Arc<EngineHandle>,
        options: Arc<Options>,
        name: LockName,
        spec: LockSpec,
        owner: Option<Owner>,
    ) -> Result<Self> {
        let full = options.full_name(&name)?;
        Self::at(shared, options, name, full, spec, owner)
    }

    /// Returns a handle for this name in the store.
    pub(crate) fn at(
        shared: Arc<EngineHandle>,
        options: Arc<Options>,
        name: LockName,
        full: LockName,
        spec: LockSpec,
        owner: Option<Owner>,
    ) -> Result<Self> {
        let store = &shared.engine.store;
        let kinds = store.capabilities().kinds;
        let kept = kinds.keep(spec.kind()).and_then(|()| store.placement(&full, spec).supported);
        kept.map_err(|reason| {
            let (name, kind) = (name.quoted(), spec.kind());
            let what = format!("store {} cannot keep {name} as a {kind}: {reason}", store.url());
            Error::unsupported(store.url(), what)
        })?;
        Ok(Self { shared, options, name, full, spec, owner })
    }

    /// Returns the same lock with changed options.
    pub(crate) fn configured(&self, change: impl FnOnce(Options) -> Options) -> Result<Self> {
        let options = changed(&self.shared, &self.options, change)?;
        Self::new(Arc::clone(&self.shared), options, self.name.clone(), self.spec, self.owner.clone())
    }

    /// Returns the same lock under another spec, such as reader or writer.
    pub(crate) fn with(&self, spec: LockSpec) -> Self {
        Self { spec, ..self.clone() }
    }

    #[expect(clippy::manual_async_fn, reason = "an async fn stores its arguments twice")]
    pub(crate) fn acquire(&self, wait: Wait) -> impl Future<Output = Result<Option<Guard>>> {
        async move {
            let (engine, options) = (&self.shared.engine, &self.options);
            let meter = engine.metrics.meter(&options.groups, &self.name, &self.full, self.spec);
            let (name, spec, owner) = (&self.full, self.spec, self.owner.as_ref());
            let queues = &self.shared.queues;
            let held = acquire(queues, &Wanted { engine, name, spec, owner, options, meter, wait }).await?;
            Ok(held.map(|held| Guard::new(&self.shared, &self.name, held)))
        }
    }

    /// Acquires the lock without a limit on the wait.
    #[expect(clippy::manual_async_fn, reason = "an async fn stores its arguments twice")]
    pub(crate) fn lock(&self) -> impl Future<Output = Result<Guard>> {
        async move {
            match self.acquire(Wait::Forever).await? {
                Some(guard) => Ok(guard),
                None => unreachable!("a wait without a limit ends with a grant or an error"),
            }
        }
    }
}

/// The methods that all mutexes have. The examples open one with `$open`, after `$given`.
macro_rules! mutex {
    (
        $mutex:ident from $from:literal, opened by $given:literal $open:literal;
        lock: $(#[$lock:meta])*
        cancelled: $(#[$cancelled:meta])*
        unsupported: $(#[$unsupported:meta])*
        busy: $busy:literal;
        limited: $(#[$limited:meta])*
    ) => {
        impl $mutex {
            /// The lock's name, without the prefix.
            ///
            /// ```
            /// # tenure::block_on(async {
            #[doc = concat!("# let locks = tenure::Locks::memory();", $given)]
            #[doc = concat!("assert_eq!(", $open, ".name().as_str(), \"nightly\");")]
            /// # Ok::<(), tenure::Error>(()) }).unwrap();
            /// ```
            pub fn name(&self) -> &LockName {
                &self.0.name
            }

            /// Returns the same lock with changed options: see [`Locks::with`](crate::Locks::with).
            ///
            /// ```
            /// # use std::time::Duration;
            #[doc = concat!("# let locks = tenure::Locks::memory();", $given)]
            #[doc = concat!("let lock = ", $open, ";")]
            /// let slow = lock.with(|options| options.ttl(Duration::from_secs(60)))?;
            /// # Ok::<(), tenure::Error>(())
            /// ```
            ///
            /// # Errors
            #[doc = concat!("As [`Locks::with`](crate::Locks::with) and [`", $from, "`](crate::", $from, ").")]
            pub fn with(&self, change: impl FnOnce(Options) -> Options) -> Result<Self> {
                self.0.configured(change).map(Self)
            }

            $(#[$lock])*
            ///
            /// ```
            /// # tenure::block_on(async {
            #[doc = concat!("# let locks = tenure::Locks::memory();", $given)]
            #[doc = concat!("let guard = ", $open, ".lock().await?;")]
            /// # Ok::<(), tenure::Error>(()) }).unwrap();
            /// ```
            ///
            /// # Cancel safety
            $(#[$cancelled])*
            ///
            /// # Errors
            /// `is_unreachable` and `is_refused`; `is_mismatch` if the name is in use by another kind of lock;
            $(#[$unsupported])*
            pub async fn lock(&self) -> Result<Guard> {
                self.0.lock().await
            }

            /// Asks once, for at most [`Options::op_timeout`](crate::Options::op_timeout). Returns `None` if
            #[doc = concat!($busy, ".")]
            ///
            /// ```
            /// # tenure::block_on(async {
            #[doc = concat!("# let locks = tenure::Locks::memory();", $given)]
            #[doc = concat!("let Some(guard) = ", $open, ".try_lock().await? else {")]
            ///     return Ok(()); // busy
            /// };
            /// # Ok::<(), tenure::Error>(()) }).unwrap();
            /// ```
            ///
            /// # Cancel safety
            /// As [`lock`](Self::lock).
            ///
            /// # Errors
            /// As [`lock`](Self::lock).
            pub async fn try_lock(&self) -> Result<Option<Guard>> {
                self.0.acquire(Wait::Once).await
            }

            $(#[$limited])*
            ///
            /// ```
            /// # tenure::block_on(async {
            #[doc = concat!("# let locks = tenure::Locks::memory();", $given)]
            /// use std::time::Duration;
            ///
            #[doc = concat!("let lock = ", $open, ";")]
            /// let guard = lock.try_lock_for(Duration::from_secs(2)).await?;
            /// assert!(guard.is_some());
            /// # Ok::<(), tenure::Error>(()) }).unwrap();
            /// ```
            ///
            /// # Cancel safety
            /// As [`lock`](Self::lock).
            ///
            /// # Errors
            /// As [`lock`](Self::lock); also `is_unreachable` if the store is not answering when the limit is
            /// reached, or if the first request is not answered within 1 s, or
            /// [`op_timeout`](crate::Options::op_timeout) if that is shorter: it has that time even if the
            /// limit is shorter than a round trip.
            pub async fn try_lock_for(&self, limit: Duration) -> Result<Option<Guard>> {
                self.0.acquire(Wait::For(limit)).await
            }
        }

        impl fmt::Debug for $mutex {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($mutex)).field(&self.0.name).finish()
            }
        }
    };
}
pub(crate) use mutex;

#[cfg(test)]
mod tests {
    use crate::{Locks, block_on};

    #[test]
    fn a_resumed_guard_has_the_name_without_the_prefix() {
        let locks = Locks::memory().with(|options| options.prefix("shop:")).expect("options");
        let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a free lock");
        let owner = block_on(guard.detach()).expect("our own");
        let guard = block_on(locks.resume("x", &owner)).expect("an answer").expect("it is held");
        assert_eq!(guard.name().as_str(), "x");
    }

    #[test]
    fn the_future_of_a_lock_is_small() {
        let mutex = Locks::memory().mutex("x").expect("a name");
        let size = size_of_val(&mutex.lock());
        assert!(size < 700, "got {size} bytes");
    }
}
