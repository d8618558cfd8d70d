//! What an operator does with locks that others hold: inspect, list, request a stop, release by force.

use std::future::Future;

use super::{Locks, checked};
use crate::engine::call::Call;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::name::LockName;
use crate::owner::{Owner, check_text};
use crate::protocol::{Answer, Fence, Found, Holding, Kind, LockSpec, ReleaseScope, Verb, parse_value};
use crate::status::{ForcedRelease, Holder, Listing, Status, foreign, with_waiting};
use crate::uses::stop::{self, StopRequest};

impl Locks {
    /// Returns the state of a lock with its holders, or `None` if it is free.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("nightly")?.lock().await?;
    /// let status = locks.inspect("nightly").await?.expect("it is held");
    /// assert_eq!(status.holders[0].owner.as_ref(), Some(guard.owner()));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Safe to drop: the request changes nothing.
    ///
    /// # Errors
    /// `is_invalid` if the name is not valid; `is_unreachable` and `is_refused`; `is_mismatch` if the kind of
    /// lock at the name changed during the call; `is_unsupported` if a lock there requires scripts and the
    /// server forbids them.
    pub async fn inspect(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Option<Status>> {
        self.ask_as_anyone(checked(name)?, Verb::Inspect).await
    }

    /// Lists the held locks whose names begin with `prefix`. Locks that are acquired or released meanwhile
    /// may or may not be included.
    ///
    /// On a server this scans all keys of the database three times, a few hundred at a time, regardless of
    /// the prefix, because there is no index of names. A cluster scans every master, a quorum every member. A
    /// lock may be listed twice. With neither a `prefix` nor the [prefix option](crate::Options::prefix), only
    /// locks of this library are listed; otherwise the listing includes what other programs keep at matching
    /// names.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("orders:42")?.lock().await?;
    /// let mut listing = locks.list("orders:")?;
    /// while let Some(status) = listing.next().await? {
    ///     println!("{} is held by {:?}", status.name, status.holders);
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `is_invalid` if no valid name begins with the prefix.
    pub fn list(&self, prefix: &str) -> Result<Listing> {
        if !prefix.is_empty() {
            self.options.full_name(&LockName::new(prefix)?)?;
        }
        Ok(Listing::new(&self.shared, &self.options, prefix))
    }

    /// Asks all holders of a lock to stop, and returns the holders, or `None` if the lock is free. This does
    /// not end any hold: a holder that waits for [`stop_requested`](Self::stop_requested) learns of it within
    /// 2 s, and the command of `tenure run` gets a SIGTERM. Use [`inspect`](Self::inspect) to see whether
    /// they have stopped.
    ///
    /// The request names the holders, so it does not stop later ones. It is kept beside the lock for an hour,
    /// and replaces the previous request. `reason` is for people: at most 256 bytes without control
    /// characters.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("deploy")?.lock().await?;
    /// let asked = locks.request_stop("deploy", "a hotfix waits").await?.expect("it is held");
    /// assert_eq!(asked.holders[0].owner.as_ref(), Some(guard.owner()));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// The request may still be made.
    ///
    /// # Errors
    /// As [`cache`](Self::cache), [`inspect`](Self::inspect) and [`Mutex::lock`](crate::Mutex::lock); also `is_invalid` if the
    /// reason is not valid, and `is_mismatch` if the name is in use by something other than a lock of this
    /// library.
    pub async fn request_stop(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        reason: &str,
    ) -> Result<Option<Status>> {
        check_text("a reason", reason)?;
        let name = checked(name)?;
        let record = stop::record(&self.shared, &self.options, name.clone())?;
        let Some(status) = self.inspect(name).await? else { return Ok(None) };
        if let Some(what) = status.foreign() {
            return Err(self.no_lock(&status.name, &what));
        }
        stop::request(&record, &status.owners(), reason).await?;
        Ok(Some(status))
    }

    /// Waits until the holder of this guard is [asked to stop](Self::request_stop): by a message from
    /// Redis, PostgreSQL, etcd and ZooKeeper, and by polling other stores every 2 s. `guard` must belong to a
    /// lock of this `Locks`.
    ///
    /// ```no_run
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("deploy")?.lock().await?;
    /// let request = locks.stop_requested(&guard).await?; // beside the work, in a `select!`
    /// println!("{} asks to stop: {}", request.by, request.reason);
    /// guard.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Nothing is lost: the request remains in the store.
    ///
    /// # Errors
    /// As [`cache`](Self::cache); also `is_refused` if the user may not read the record. Retries while the
    /// store does not answer.
    pub fn stop_requested(&self, guard: &Guard) -> impl Future<Output = Result<StopRequest>> + Send + use<> {
        let record = stop::record(&self.shared, &self.options, guard.name().clone());
        stop::requested(record, guard.owner().clone())
    }

    /// Ends all holds of a lock, and returns its holders, or `None` if the lock was free. For operators: it
    /// breaks exclusion until the holders notice. A holder that has held the lock for a second notices at
    /// once if it can receive messages. Any other holder notices at the end of its first second or at its
    /// next renewal.
    ///
    /// A lock of another program is left alone: see [`force_release_foreign`](Self::force_release_foreign).
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # let locks = tenure::Locks::memory();
    /// let stuck = locks.mutex("nightly")?.lock().await?;
    /// let status = locks.force_release("nightly").await?.expect("it was held");
    /// assert_eq!(status.holders[0].fence, stuck.fence());
    /// assert!(stuck.verify().await.unwrap_err().is_lost());
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// The request may still be carried out.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect); also `is_mismatch` if the name is in use by something other than a lock
    /// of this library, and `is_unknown` if no answer came.
    pub async fn force_release(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
    ) -> Result<Option<Status>> {
        self.force(checked(name)?, ReleaseScope::Any).await
    }

    /// Does what [`force_release`](Self::force_release) does, and also ends a plain lock of another client: a
    /// string at the name, whatever its bytes. A key of another type is left alone.
    ///
    /// # Cancel safety
    /// The request may still be carried out.
    ///
    /// # Errors
    /// As [`force_release`](Self::force_release).
    pub async fn force_release_foreign(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
    ) -> Result<Option<Status>> {
        self.force(checked(name)?, ReleaseScope::Foreign).await
    }

    /// Ends the hold with this token and no other, in case another client has acquired the lock meanwhile.
    /// Returns the holder, or the current state of the lock if no hold has this token.
    ///
    /// A Redis server does not store the token of a lock that a busy client acquired within a second of another,
    /// except of a reentrant mutex. Once another client asks for a lock with a queue, the server has a later
    /// number for such a hold.
    ///
    /// # Cancel safety
    /// The request may still be carried out.
    ///
    /// # Errors
    /// As [`force_release`](Self::force_release); also `is_unsupported` if the store does not keep the token
    /// of the hold.
    pub async fn force_release_token(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        token: u64,
    ) -> Result<ForcedRelease> {
        let is_meant = |holder: &Holder| token > 0 && holder.fence == token;
        self.force_hold(checked(name)?, is_meant, true).await
    }

    /// Ends the hold of this owner and no other. Returns the holder, or the current state of the lock if the
    /// owner does not hold it.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// # use tenure::ForcedRelease;
    /// # let locks = tenure::Locks::memory();
    /// let stuck = locks.mutex("nightly")?.lock().await?;
    /// let ended = locks.force_release_owner("nightly", stuck.owner()).await?;
    /// assert!(matches!(ended, ForcedRelease::Ended(_)));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// The request may still be carried out.
    ///
    /// # Errors
    /// As [`force_release`](Self::force_release).
    pub async fn force_release_owner(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        owner: &Owner,
    ) -> Result<ForcedRelease> {
        self.force_hold(checked(name)?, |holder| holder.owner.as_ref() == Some(owner), false).await
    }

    /// Ends the hold selected by `is_meant`; `by_token` if it is selected by its token.
    async fn force_hold(
        &self,
        name: LockName,
        is_meant: impl Fn(&Holder) -> bool,
        by_token: bool,
    ) -> Result<ForcedRelease> {
        let Some(mut status) = self.inspect(&name).await? else { return Ok(ForcedRelease::Free) };
        if let Some(what) = status.foreign() {
            return Err(self.no_lock(&status.name, &what));
        }
        let Some(at) = status.holders.iter().position(is_meant) else {
            let untold = status.holders.iter().find(|holder| by_token && holder.fence == 0);
            return match untold.and_then(|holder| holder.owner.as_ref()) {
                Some(owner) => Err(Error::unsupported(
                    self.shared.engine.store.url(),
                    format!("the token of lock {name} is not at the store; use its owner, {owner}"),
                )),
                None => Ok(ForcedRelease::Other(status)),
            };
        };
        let holder = status.holders.swap_remove(at);
        let ended = match &holder.owner {
            // For other kinds an owner has one grant, so releasing as that owner ends no other hold.
            Some(owner) if status.kind != Kind::Reentrant => self.release_as(&status, owner).await?,
            _ => self.force_reentrant(&name, holder.fence).await?,
        };
        if ended {
            (status.holders, status.waiters, status.unlisted) = (vec![holder], Vec::new(), 0);
            status.waiting = None;
            return Ok(ForcedRelease::Ended(status));
        }
        Ok(self.inspect(name).await?.map_or(ForcedRelease::Free, ForcedRelease::Other))
    }

    /// Releases the hold of this owner; returns whether it held the lock.
    async fn release_as(&self, status: &Status, owner: &Owner) -> Result<bool> {
        let full = self.options.full_name(&status.name)?;
        let spec = LockSpec::of(status.kind, status.capacity);
        let verb = Verb::Release { hold: 0, fence: Fence::Assign, whose: ReleaseScope::Named };
        self.ends(&Call::new(&full, spec, owner, verb)).await
    }

    /// Ends all holds of the reentrant mutex with this token; returns whether there were any.
    async fn force_reentrant(&self, name: &LockName, token: u64) -> Result<bool> {
        let full = self.options.full_name(name)?;
        let owner = Owner::fresh(&self.options.label, &*self.shared.engine.runtime);
        let verb = Verb::Release { hold: token, fence: Fence::Assign, whose: ReleaseScope::Any };
        self.ends(&Call::new(&full, LockSpec::Reentrant, &owner, verb)).await
    }

    async fn force(&self, name: LockName, whose: ReleaseScope) -> Result<Option<Status>> {
        let verb = Verb::Release { hold: 0, fence: Fence::Assign, whose };
        let ended = self.ask_as_anyone(name, verb).await?;
        // Most members of a quorum may report something that they have not ended.
        match ended.as_ref().and_then(|status| Some((status, status.foreign()?))) {
            Some((status, what)) if whose != ReleaseScope::Foreign => Err(self.no_lock(&status.name, &what)),
            _ => Ok(ended),
        }
    }

    fn no_lock(&self, name: &LockName, what: &str) -> Error {
        Error::no_lock(name, self.shared.engine.store.url(), what)
    }

    async fn ask_as_anyone(&self, name: LockName, verb: Verb) -> Result<Option<Status>> {
        let full = self.options.full_name(&name)?;
        let engine = &self.shared.engine;
        let owner = Owner::fresh(&self.options.label, &*engine.runtime);
        let mut spec = LockSpec::Mutex;
        loop {
            let call = Call::new(&full, spec, &owner, verb.clone());
            let call = if verb == Verb::Inspect { call.idempotent() } else { call };
            match engine.call(&call, engine.now(), self.options.op_timeout).await {
                Ok(Answer::Found(mut found)) => {
                    let is_reentrant = found.kind == Kind::Reentrant;
                    for holder in found.holders.iter_mut().filter(|_| is_reentrant) {
                        // The store does not know about re-entries through this `Locks`.
                        let owner = parse_value(&holder.value).map(|(owner, _)| owner);
                        holder.weight += owner.map_or(0, |owner| engine.more_holds(&full, &owner));
                    }
                    if verb != Verb::Inspect {
                        return Ok(Some(Status::new(name, found)));
                    }
                    let found = vec![(full, name, found)];
                    return Ok(with_waiting(&*engine.store, found, self.options.op_timeout).await.pop());
                }
                Ok(Answer::Free) => return Ok(None),
                // A key of another type, on a server that forbids scripts.
                Ok(Answer::Busy { holder, left_ms }) if verb == Verb::Inspect => {
                    let holder = Holding { value: holder.into_bytes(), left_ms, weight: 1 };
                    return Ok(Some(Status::new(name, Found::one(Kind::Mutex, holder))));
                }
                Ok(Answer::Busy { holder, .. }) => {
                    return Err(self.no_lock(&name, &foreign(spec.kind(), holder.as_bytes())));
                }
                Ok(Answer::Mismatch { kind, capacity }) => {
                    spec = self.other_rule(&full, spec, LockSpec::of(kind, capacity))?;
                }
                Ok(answer) => return Err(engine.unexpected_answer(&full, &answer)),
                Err(failure) if verb == Verb::Inspect => return Err(engine.silent(&full, failure)),
                Err(failure) => return Err(engine.failed(&full, failure)),
            }
        }
    }
}
