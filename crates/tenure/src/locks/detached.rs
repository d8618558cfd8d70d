//! Holds without a guard: of a process that has detached them, or that is gone.

use std::time::Duration;

use super::{Locks, checked};
use crate::engine::acquire::Wait;
use crate::engine::acquisition::{Acquisition, Resumed, Wanted};
use crate::engine::call::Call;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::hold_id::HoldId;
use crate::name::LockName;
use crate::owner::Owner;
use crate::protocol::{Fence, LockSpec, ReleaseScope, Verb};

impl Locks {
    /// Takes over a hold that [`Guard::detach`] gave up, perhaps in another process. Returns `None` if the
    /// hold is over. The lease is extended to the ttl of this `Locks` and renewed from then on. If two
    /// processes resume the same owner, both hold the lock.
    ///
    /// A lease is never shortened. If more than this ttl is left and this process ends without a release, the
    /// store keeps the hold until the original lease is over.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let owner = locks.mutex("deploy")?.lock().await?.detach().await?;
    /// let Some(guard) = locks.resume("deploy", &owner).await? else {
    ///     return Ok(()); // over by now
    /// };
    /// assert_eq!(guard.owner(), &owner);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// The lease may have been renewed; call again. On the `file:` store, the hold may already belong to this
    /// process and end with it. A hold of a reentrant owner that was taken over although the answer was lost
    /// is given up in the background; until then no other client can resume it.
    ///
    /// # Errors
    /// `is_mismatch`, `is_unreachable` and `is_refused`; `is_invalid` for the name; `is_unknown` if no answer
    /// came: call again.
    pub async fn resume(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        owner: &Owner,
    ) -> Result<Option<Guard>> {
        let name = checked(name)?;
        let full = self.options.full_name(&name)?;
        let mut spec = LockSpec::Mutex;
        loop {
            let engine = &self.shared.engine;
            if spec == LockSpec::Reentrant {
                // An earlier call may still be giving up a hold that it took over without getting the answer.
                engine.given_back_within(self.options.op_timeout, &full, owner).await?;
            }
            let meter = engine.metrics.meter(&self.options.groups, &name, &full, spec);
            let (owner, options, wait) = (Some(owner), &self.options, Wait::Once);
            let ask = Acquisition::new(Wanted { engine, name: &full, spec, owner, options, meter, wait });
            match ask.resume().await? {
                Resumed::Held(held) => return Ok(Some(Guard::new(&self.shared, &name, held))),
                Resumed::Over => return Ok(None),
                Resumed::Other(other) => spec = self.other_rule(&full, spec, other)?,
            }
        }
    }

    /// Renews a hold that [`Guard::detach`] gave up, and leaves it detached. Returns how long it is certainly
    /// held from now on, or `None` if it is over. For scripts whose steps are separate processes. The lease
    /// is extended to the ttl of this `Locks`, and never shortened.
    ///
    /// This also detaches a hold that another process still renews: on the `file:` store, it then becomes
    /// free when its lease ends, and no longer when that process does.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let owner = locks.mutex("deploy")?.lock().await?.detach().await?;
    /// let left = locks.renew_detached("deploy", &owner).await?.expect("it is not over yet");
    /// assert!(left > std::time::Duration::from_secs(10)); // of 15 s
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// The lease may have been renewed. Nothing else changes.
    ///
    /// # Errors
    /// `is_mismatch`, `is_unreachable` and `is_refused`; `is_invalid` for the name; `is_unknown` if no answer
    /// came: call again.
    pub async fn renew_detached(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        owner: &Owner,
    ) -> Result<Option<Duration>> {
        let name = checked(name)?;
        let full = self.options.full_name(&name)?;
        let mut spec = LockSpec::Mutex;
        loop {
            let engine = &self.shared.engine;
            let meter = engine.metrics.meter(&self.options.groups, &name, &full, spec);
            let (owner, options, wait) = (Some(owner), &self.options, Wait::Once);
            let ask = Acquisition::new(Wanted { engine, name: &full, spec, owner, options, meter, wait });
            match ask.renew_detached().await? {
                Resumed::Held(left) => return Ok(Some(left)),
                Resumed::Over => return Ok(None),
                Resumed::Other(other) => spec = self.other_rule(&full, spec, other)?,
            }
        }
    }

    /// Releases a hold on behalf of its dead holder, and returns once the hold is over. Waiters are woken as
    /// if the holder had released it.
    ///
    /// For a supervisor that got the [`HoldId`] from [`Guard::hold_id`] while the holder was alive, and that
    /// has made sure that the holder's work has ended too. A holder that is still alive learns that its lock
    /// is lost.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let hold = locks.mutex("nightly")?.lock().await?;
    /// locks.release_hold(&hold.hold_id()).await?;
    /// assert!(locks.mutex("nightly")?.try_lock().await?.is_some());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Guarantees
    /// Ends this hold and no other. If the hold is over already, nothing happens, no matter who holds the
    /// lock by then.
    ///
    /// # Cancel safety
    /// The request may still be carried out.
    ///
    /// # Errors
    /// `is_unreachable` and `is_refused`; `is_unknown` if no answer came: call again.
    pub async fn release_hold(&self, id: &HoldId) -> Result<()> {
        let HoldId { name, spec, owner, hold } = id;
        let verb = Verb::Release { hold: *hold, fence: Fence::Assign, whose: ReleaseScope::Named };
        self.ends(&Call::new(name, *spec, owner, verb).idempotent()).await.map(drop)
    }
}
