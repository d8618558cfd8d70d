//! What a task does while it holds.

use tenure::HoldEnd;

use super::*;

impl Task {
    /// Holds for a while, and does what holders do.
    pub(super) async fn hold(
        &self,
        guard: &Guard,
        holding: &Holding,
        index: usize,
        locks: &Locks,
        options: &Options,
    ) {
        let (sim, plan) = (self.sim(), self.workload.plan);
        let begun = self.process.now();
        if sim.chance(plan.overstay) {
            let edge = guard.remaining().as_nanos() as TrueTime + sim.between(0, 6 * MS);
            let time = if sim.chance(500) { edge.saturating_sub(3 * MS) } else { 2 * edge };
            self.stay(guard, std::slice::from_ref(holding), time).await;
            return;
        }
        for _ in 0..=sim.choose(3) {
            let time = plan.span(sim, 3 * plan.ttl.as_nanos() as TrueTime / 2);
            if self.stay(guard, std::slice::from_ref(holding), time).await.is_some() {
                return;
            }
            if options.max_hold.is_some_and(|most| guard.is_held() && self.process.now().since(begun) > most)
            {
                self.accuse(format!("a guard holds for longer than its max_hold {:?}", options.max_hold));
            }
            if plan.kinds[index] == LockKind::Reentrant && sim.chance(400) {
                self.reenter(guard, index, locks).await;
                continue;
            }
            let (since, left) = (sim.now(), guard.remaining());
            let outcome = match sim.choose(6) {
                0 => self.cut_short(self.cut(), guard.verify()).await,
                1 => self.cut_short(self.cut(), guard.renew()).await,
                _ => None,
            };
            if let Some(outcome) = outcome {
                sim.note(|| format!("p{}: `verify` or `renew` said {outcome:?}", self.process.id()));
                let said = said(&outcome);
                self.oracle().said_held(guard.owner(), guard.fence(), since, left, said);
                if said == Said::Lost && holding.look() {
                    self.accuse("a call said that the lock is lost, and the guard that it is held".into());
                }
            }
        }
    }

    /// Stays for `time` on its own clock, or until a lock is lost, and checks the guards whenever it is
    /// woken.
    pub(super) async fn stay(
        &self,
        hand: &impl Hand,
        holdings: &[Holding],
        time: TrueTime,
    ) -> Option<HoldEnd> {
        let mut end = pin!(self.process.sleep_until(self.process.now() + Duration::from_nanos(time)));
        let mut lost = pin!(hand.lost());
        // Of several locks, the loss of one is enough.
        let is_watched = holdings.len() == 1;
        holdings.iter().for_each(|holding| holding.watch(is_watched));
        let lost = poll_fn(|cx| {
            let are_held = holdings.iter().filter(|holding| holding.look()).count() == holdings.len();
            match lost.as_mut().poll(cx) {
                Poll::Ready(error) => {
                    if are_held || !error.is_lost() {
                        self.accuse(format!("`lost` resolved, held: {are_held}: {error}"));
                    }
                    return Poll::Ready(Some(error));
                }
                Poll::Pending if !are_held => {
                    self.accuse("the guard does not hold, and `lost` is silent".into())
                }
                Poll::Pending => {}
            }
            end.as_mut().poll(cx).map(|()| None)
        })
        .await;
        holdings.iter().for_each(|holding| holding.watch(false));
        lost
    }

    /// Gives the guard up, in one of the possible ways.
    pub(super) async fn part(&self, guard: Arc<Guard>, holding: Holding, index: usize) {
        let (sim, name) = (self.sim(), &self.workload.names[index]);
        let is_one_of_many = self.workload.plan.kinds[index] == LockKind::Reentrant;
        let (owner, token) = (guard.owner().clone(), guard.fence());
        let was_held = holding.look();
        // Nothing is claimed from here on.
        drop(holding);
        let Some(guard) = Arc::into_inner(guard) else { return };
        match sim.choose(8) {
            0 | 1 => drop(guard),
            2 => {
                self.oracle().detached(&owner, true);
                let begun = sim.now();
                match self.cut_short(self.cut(), guard.detach()).await {
                    Some(Ok(owner)) => {
                        self.oracle().said_held(&owner, token, begun, Duration::ZERO, Said::Yes);
                        lock(&self.workload.board).push((name.clone(), owner));
                    }
                    _ => self.oracle().detached(&owner, false),
                }
            }
            _ => {
                let begun = sim.now();
                let outcome = self.cut_short(self.cut(), guard.release()).await;
                if let Some(outcome) = outcome {
                    self.sim().note(|| format!("p{}: release said {outcome:?}", self.process.id()));
                    self.oracle().said_released(&owner, begun, was_held, is_one_of_many, said(&outcome));
                    if outcome.is_err_and(|error| !error.is_lost() && !error.is_unknown()) {
                        self.accuse("a release ended neither well, nor lost, nor unknown".into());
                    }
                }
            }
        }
    }
}
