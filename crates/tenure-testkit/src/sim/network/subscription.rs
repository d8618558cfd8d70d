//! Subscriptions, and what a process learns about its connection.

use super::*;

impl Network {
    pub(in crate::sim) fn list(&self, prefix: &str) -> Vec<(LockName, Found)> {
        self.inner().server.list(self.sim.now(), prefix)
    }

    /// Draws whether a request with a short timeout also gives the connection up.
    pub(in crate::sim) fn is_impatient(&self) -> bool {
        let share = self.inner().faults.impatient;
        self.sim.chance(share)
    }

    /// Tells all subscribers whether each of them is the only one.
    #[cfg(tenure_planted)]
    pub(in crate::sim) fn tell_alone(&self, is_alone: bool) {
        self.inner().listeners.iter().for_each(|subscriber| subscriber.station.set_alone(is_alone));
    }

    pub(in crate::sim) async fn listen(
        &self,
        process: ProcessId,
        name: &LockName,
        kind: Kind,
        is_counted: bool,
        within: Duration,
    ) -> Result<Listener, Failure> {
        let now = self.sim.now();
        let (id, opens_at, confirmed_at, out_of_time_at, is_lost) = {
            let mut inner = self.inner();
            inner.next_ear += 1;
            let end = &inner.ends[process];
            let out_of_time_at = now + end.clock.lasts(within);
            let parting = end.parting;
            let leaves_at = now.max(end.hears_from).max(inner.stalled_until).max(parting.requests);
            let opens_at = leaves_at + inner.delay(&self.sim, name, leaves_at, None);
            let confirmed_at = opens_at.max(parting.messages) + inner.delay(&self.sim, name, opens_at, None);
            let is_lost =
                end.is_dead || self.sim.chance(inner.faults.lose_reply + inner.faults.lose_subscription);
            (inner.next_ear, opens_at, confirmed_at, out_of_time_at, is_lost)
        };
        let station = Station::default();
        let listener = Listener::new(|publisher| {
            let (name, station) = (name.clone(), station.clone());
            let subscriber =
                Subscriber { id, process, name, kind, publisher, is_counted, station, is_open: false };
            self.inner().listeners.push(subscriber);
            Box::new(Subscription { network: self.clone(), id }) as Box<dyn Any + Send>
        });
        if is_lost || confirmed_at > out_of_time_at {
            self.sim.sleep_until(out_of_time_at).await;
            return Err(unknown());
        }
        let listener = listener.at(station);
        let network = self.clone();
        self.sim.at(opens_at, move || {
            let mut inner = network.inner();
            let at = inner.station();
            if let Some(subscriber) = inner.listeners.iter_mut().find(|subscriber| subscriber.id == id) {
                subscriber.is_open = true;
                subscriber.station.set(at.filter(|_| is_counted));
            }
        });
        self.sim.sleep_until(confirmed_at).await;
        Ok(listener)
    }
}

struct Subscription {
    network: Network,
    id: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut inner = self.network.inner();
        let place = inner.listeners.iter().position(|subscriber| subscriber.id == self.id);
        let subscriber = place.map(|place| inner.listeners.swap_remove(place));
        drop(inner);
        drop(subscriber);
    }
}
