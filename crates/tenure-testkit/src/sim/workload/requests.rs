//! Options, limits and cancellation of an acquisition.

use super::*;

impl Task {
    pub(super) fn options(&self) -> Options {
        let (sim, plan) = (self.sim(), self.workload.plan);
        let mut options = Options::new().ttl(plan.ttl).patience(plan.patience);
        if let Some(labels) = &self.workload.labels {
            // A new label for each acquisition, so that the remains of an earlier one are not taken for its
            // own.
            let mut labels = lock(labels);
            *labels += 1;
            options = options.label(format!("a{labels}"));
        }
        if sim.chance(plan.unrenewed) {
            options = options.renewal(Renewal::Off);
        }
        let (share, most) = plan.limited;
        if sim.chance(share) {
            options = options.max_hold(Duration::from_nanos(sim.between(SHORTEST, most)));
        }
        if sim.chance(150) {
            let lease = options.ttl.min(options.max_hold.unwrap_or(options.ttl));
            options = options.grace(lease / 3);
        }
        options
    }

    /// Draws how the next future ends.
    pub(super) fn cut(&self) -> Cut {
        let (sim, plan) = (self.sim(), self.workload.plan);
        if !sim.chance(plan.cancel) {
            return Cut::Never;
        }
        let now = sim.now();
        match sim.choose(5) {
            0..3 => Cut::Polls(1 + sim.choose(6)),
            3 if !plan.regime.is_calm() && now < plan.heals_at => {
                Cut::Neglect(1 + sim.choose(4), sim.between(now, plan.heals_at))
            }
            _ => Cut::At(now + sim.between(0, plan.ttl.as_nanos() as TrueTime)),
        }
    }

    /// A future's output, unless it is cut short.
    pub(super) async fn cut_short<F: Future>(&self, cut: Cut, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        match cut {
            Cut::Never => Some(future.await),
            Cut::Polls(most) => {
                let mut polls = 0;
                poll_fn(|cx| {
                    polls += 1;
                    match future.as_mut().poll(cx) {
                        Poll::Ready(output) => Poll::Ready(Some(output)),
                        Poll::Pending if polls >= most => Poll::Ready(None),
                        Poll::Pending => Poll::Pending,
                    }
                })
                .await
            }
            Cut::At(at) => {
                let mut end = pin!(self.sim().sleep_until(at));
                poll_fn(|cx| match future.as_mut().poll(cx) {
                    Poll::Ready(output) => Poll::Ready(Some(output)),
                    Poll::Pending => end.as_mut().poll(cx).map(|()| None),
                })
                .await
            }
            Cut::Neglect(most, until) => {
                let mut polls = 0;
                let first = poll_fn(|cx| {
                    polls += 1;
                    match future.as_mut().poll(cx) {
                        Poll::Ready(output) => Poll::Ready(Some(output)),
                        Poll::Pending if polls >= most => Poll::Ready(None),
                        Poll::Pending => Poll::Pending,
                    }
                })
                .await;
                if first.is_some() {
                    return first;
                }
                self.sim().sleep_until(until).await;
                Some(future.await)
            }
        }
    }

    /// Acquires in one of the three ways, and checks what each of them guarantees.
    pub(super) async fn acquire(
        &self,
        locks: &Locks,
        request: &LockRequest,
        name: Option<&LockName>,
        cut: Cut,
        told: &mut Told,
    ) -> Result<Option<Got>, Error> {
        let (sim, plan) = (self.sim(), self.workload.plan);
        let (since, begun) = (sim.now(), self.process.now());
        match sim.choose(8) {
            0..5 => {
                let waiting = match cut {
                    Cut::Neglect(..) => None,
                    _ => Some(self.oracle().waits(self.process.id(), name)),
                };
                let lock = async {
                    let _waiting = waiting;
                    request.lock().await
                };
                let Some(outcome) = self.cut_short(cut, lock).await else { return Ok(None) };
                let patience = locks.options().patience;
                let gave_up =
                    outcome.as_ref().is_err_and(|error| !error.is_lost() && !self.is_too_much(error));
                if gave_up && self.process.now().since(begun) < patience {
                    self.accuse(format!("`lock` gave up before {patience:?}: {:?}", outcome.as_ref().err()));
                }
                outcome.map(Some)
            }
            5 => {
                let Some(outcome) = self.cut_short(cut, request.try_lock()).await else { return Ok(None) };
                told.is_fresh &= self.has_time(begun, locks.options().op_timeout);
                // Several locks are acquired one after the other, and released the same way.
                let times = if name.is_some() { 1 } else { 2 * plan.names };
                self.check_in_time(cut, since, begun, locks.options().op_timeout * times);
                if let (Ok(None), Some(name)) = (&outcome, name) {
                    self.oracle().said_busy(name, request.weight(), &locks.options().label, since);
                }
                outcome
            }
            _ => {
                let limit = self.limit(name);
                sim.note(|| format!("p{}: waits for at most {limit:?}", self.process.id()));
                // The first request may take a second even if the limit is shorter.
                let most = limit.max(locks.options().op_timeout.min(Duration::from_secs(1)));
                let Some(outcome) = self.cut_short(cut, request.try_lock_for(limit)).await else {
                    return Ok(None);
                };
                let giving_back = if name.is_some() { 0 } else { plan.names };
                self.check_in_time(cut, since, begun, most + locks.options().op_timeout * giving_back);
                told.is_fresh &= self.has_time(begun, limit);
                outcome
            }
        }
    }

    /// Draws a limit: any, or close to the end of a lease.
    pub(super) fn limit(&self, name: Option<&LockName>) -> Duration {
        let (sim, plan) = (self.sim(), self.workload.plan);
        let edge = if sim.chance(plan.brink) { name.and_then(|name| self.oracle().edge(name)) } else { None };
        let now = sim.now();
        Duration::from_nanos(match (edge.filter(|edge| *edge > now), plan.brief) {
            (Some(edge), _) => (edge + sim.between(0, 6 * MS)).saturating_sub(now + 3 * MS),
            // Makes the waits of several tasks end together.
            (None, Some(brief)) => (now + plan.span(sim, brief)).next_multiple_of(brief / 8) - now,
            (None, None) => plan.span(sim, 2 * plan.ttl.as_nanos() as TrueTime),
        })
    }

    /// Whether the request could have been repeated within the limit. If not, a grant that took too long is
    /// not requested again, and may be stale.
    pub(super) fn has_time(&self, begun: tenure::internals::Moment, limit: Duration) -> bool {
        self.process.now().since(begun) * 2 < limit
    }

    /// A call with a limit ends within it, unless its process was paused or the future was not polled.
    pub(super) fn check_in_time(
        &self,
        cut: Cut,
        since: TrueTime,
        begun: tenure::internals::Moment,
        most: Duration,
    ) {
        let took = self.process.now().since(begun);
        let is_excused = matches!(cut, Cut::Neglect(..)) || self.sim().resumed_at(self.process.id()) > since;
        if took > most + Duration::from_millis(5) && !is_excused {
            self.accuse(format!("a call with a limit of {most:?} took {took:?}"));
        }
    }
}
