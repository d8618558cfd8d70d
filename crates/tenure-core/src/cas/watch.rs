//! Watches the changes of one lock and notifies its waiters and holders.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select};

use super::backend::{LockWatch, Session, Stored, WatchNotice, Watched};
use super::client::CasClient;
use super::holders::{HoldSubscriber, Holders};
use super::leases::{KeptSession, OpenWatches, PLACE_WAIT};
use super::lock_snapshot::LockSnapshot;
use crate::moment::Moment;
use crate::name::LockName;
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::{Data, Notification, parse_value};
use crate::store::{Failure, Listener, Publisher};

/// Delay before restarting a failed watch.
const PAUSE: Duration = Duration::from_millis(200);

/// Starts a watch, then notifies a waiter of what it reports.
pub(super) async fn listen(client: Arc<CasClient>, name: LockName) -> Result<Listener, Failure> {
    if planted(Bug::CasWatchAfterLook) {
        return Ok(Listener::new(|publisher| {
            let runtime = Arc::clone(&client.runtime);
            let late = async move {
                client.runtime.sleep_until(client.runtime.now() + PAUSE).await;
                if let Ok(watch) = client.backend.watch(&name, Watched::Lock).await {
                    tell(client, name, Audience::waiter(publisher), watch, None).await;
                }
            };
            runtime.spawn(late.boxed());
            Box::new(())
        }));
    }
    let watch = client.backend.watch(&name, Watched::Lock).await?;
    let first = client.backend.read(&name).await?;
    Ok(Listener::new(|publisher| {
        let runtime = Arc::clone(&client.runtime);
        runtime.spawn(tell(client, name, Audience::waiter(publisher), watch, first).boxed());
        Box::new(())
    }))
}

/// Notifies an observer of each write of the record beside a lock.
pub(super) async fn observe(client: Arc<CasClient>, name: LockName) -> Result<Listener, Failure> {
    let watch = client.backend.watch(&name, Watched::Record).await?;
    Ok(Listener::new(|publisher| {
        let runtime = Arc::clone(&client.runtime);
        runtime.spawn(tell(client, name, Audience::Observer(publisher), watch, None).boxed());
        Box::new(())
    }))
}

/// Notifies an owner when its hold may have ended. All holders of one lock share a watch, so a change costs
/// the same however many there are.
pub(super) async fn listen_while_held(
    client: Arc<CasClient>,
    name: LockName,
    owner: Owner,
) -> Result<Listener, Failure> {
    let member = HoldSubscriber::new(&client.holders, &name);
    let holders = &member.holders;
    let watch = || async {
        let watch = client.backend.watch(&name, Watched::Lock).await?;
        let first = client.backend.read(&name).await?;
        holders.table().snapshot = LockSnapshot::read(first.as_ref());
        let audience = Audience::Holders(Arc::clone(holders));
        client.runtime.spawn(tell(Arc::clone(&client), name.clone(), audience, watch, first).boxed());
        Ok::<_, Failure>(())
    };
    holders.watched.get_or_try_init(watch).await?;
    Ok(Listener::new(|publisher| {
        let mut table = member.holders.table();
        if !holds(table.snapshot.as_ref(), &owner) {
            publish_end(&client, &name, &owner, &publisher);
        }
        table.listeners.insert(member.id, (owner, publisher));
        drop(table);
        Box::new(member)
    }))
}

/// Notifies a holder whose hold seems to have ended, and makes its next renewal read the lock.
fn publish_end(client: &CasClient, name: &LockName, owner: &Owner, publisher: &Publisher) {
    client.table.lock().doubt(name, owner);
    publisher.say(Notification::Free { by: None });
}

/// The receivers of a watch's notifications.
enum Audience {
    Waiter { publisher: Publisher, reported: Reported },
    Holders(Arc<Holders>),
    Observer(Publisher),
}

/// What a watch has reported to waiters.
#[derive(Default)]
struct Reported {
    /// The tickets that hold.
    tickets: BTreeSet<u64>,
    /// The owner of a reentrant mutex.
    owner: Option<Owner>,
}

impl Audience {
    fn waiter(publisher: Publisher) -> Self {
        Self::Waiter { publisher, reported: Reported::default() }
    }

    fn watched(&self) -> Watched {
        if let Self::Observer(_) = self { Watched::Record } else { Watched::Lock }
    }

    /// Completes when no receiver is left.
    async fn over(&self) {
        match self {
            Self::Waiter { publisher, .. } | Self::Observer(publisher) => publisher.over().await,
            Self::Holders(holders) => holders.over.notified().await,
        }
    }

    /// Whether waiters rely on it for the changes of their places.
    fn reports_places(&self) -> bool {
        matches!(self, Self::Waiter { .. })
    }

    async fn tell(&mut self, client: &CasClient, name: &LockName, snapshot: Option<LockSnapshot>) {
        match self {
            Self::Observer(publisher) => publisher.say(Notification::Free { by: None }),
            Self::Waiter { publisher, reported } => {
                let are_waiting =
                    snapshot.as_ref().is_some_and(|snapshot| client.places_wait(name, snapshot));
                let news = news(snapshot, reported);
                if !are_waiting || matches!(news, Some(Notification::Reconnected)) {
                    client.table.lock().doubt_places(name, client.runtime.now());
                }
                let Some(mut news) = news else { return };
                if let Notification::Granted { tickets } = &news
                    && !client.still_lives(name, tickets).await
                {
                    news = Notification::Reconnected;
                }
                publisher.say(news);
            }
            Self::Holders(holders) => {
                let mut table = holders.table();
                let ended = table.listeners.values().filter(|(owner, _)| !holds(snapshot.as_ref(), owner));
                ended.for_each(|(owner, publisher)| publish_end(client, name, owner, publisher));
                table.snapshot = snapshot;
            }
        }
    }

    /// Reports that events may have been missed.
    fn tell_to_ask(&self, client: &CasClient, name: &LockName) {
        if self.reports_places() {
            client.table.lock().doubt_places(name, client.runtime.now());
        }
        match self {
            Self::Waiter { publisher, .. } | Self::Observer(publisher) => {
                publisher.say(Notification::Reconnected);
            }
            Self::Holders(holders) => {
                let table = holders.table();
                let publishers = table.listeners.values().map(|(_, publisher)| publisher);
                publishers.for_each(|publisher| publisher.say(Notification::Reconnected));
            }
        }
    }
}

impl CasClient {
    /// Whether the places of this client wait according to this snapshot, so that their next refreshes need not
    /// read the lock. A place whose number is unknown may have been granted.
    fn places_wait(&self, name: &LockName, snapshot: &LockSnapshot) -> bool {
        let table = self.table.lock();
        let holds = table.holds.get(name).into_iter().flat_map(BTreeMap::values);
        let mut places = holds.filter(|hold| hold.is_place());
        places.all(|place| place.ticket.is_some_and(|ticket| snapshot.may_wait(ticket)))
    }

    /// Proves the sessions of granted places alive where nothing has proven that since their last refresh.
    async fn still_lives(&self, name: &LockName, granted: &[u64]) -> bool {
        if !self.backend.keeps_sessions() || planted(Bug::CasPlaceUnproven) {
            return true;
        }
        let mut relied: BTreeMap<Session, Moment> = BTreeMap::new();
        for hold in self.table.lock().holds.get(name).into_iter().flat_map(BTreeMap::values) {
            if hold.ticket.is_some_and(|ticket| granted.contains(&ticket)) {
                let until = relied.entry(hold.session).or_default();
                *until = (*until).max(hold.refreshed + PLACE_WAIT);
            }
        }
        for (session, until) in relied {
            let Some(KeptSession { life, .. }) = self.lease_of(session) else { return false };
            let proven = self.lease_of_life(life, until.since(self.runtime.now()), None).await;
            if !proven.is_ok_and(|lease| lease.session == session) {
                return false;
            }
        }
        true
    }
}

/// An open watch that reports each change of the places of a lock.
struct OpenWatch {
    client: Arc<CasClient>,
    name: LockName,
}

impl OpenWatch {
    fn new(client: &Arc<CasClient>, name: &LockName) -> Self {
        let now = client.runtime.now();
        let mut table = client.table.lock();
        let watched = table.watched.entry(name.clone()).or_default();
        *watched = OpenWatches { count: watched.count + 1, opened: now, since: now };
        drop(table);
        Self { client: Arc::clone(client), name: name.clone() }
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        let mut table = self.client.table.lock();
        let Some(watched) = table.watched.get_mut(&self.name) else { return };
        let now = self.client.runtime.now();
        *watched = OpenWatches { count: watched.count - 1, opened: now, since: now };
        if watched.count == 0 {
            table.watched.remove(&self.name);
        }
    }
}

/// Forwards events until no receiver is left.
async fn tell(
    client: Arc<CasClient>,
    name: LockName,
    mut audience: Audience,
    mut watch: Box<dyn LockWatch>,
    mut stands: Option<Stored>,
) {
    let mut _open = audience.reports_places().then(|| OpenWatch::new(&client, &name));
    loop {
        let next = match select(watch.next(), audience.over().boxed()).await {
            Either::Left((next, _)) => next,
            // The last receiver has left.
            Either::Right(_) => return,
        };
        match next {
            // The lock has changed.
            Ok(WatchNotice::Lock(stored)) => {
                let snapshot = LockSnapshot::read(stored.as_ref());
                if let (Some(Data::Queue(_)), Some(stored)) =
                    (snapshot.as_ref().and_then(|snapshot| snapshot.data.as_ref()), &stored)
                {
                    client.saw(&name, stored);
                }
                audience.tell(&client, &name, snapshot).await;
                stands = stored;
            }
            // A client has died: its holds and places here may be next.
            Ok(WatchNotice::Gone(session)) => {
                client.lost(session);
                if is_bound(stands.as_ref(), session) {
                    audience.tell_to_ask(&client, &name);
                }
            }
            // The watch has ended, as with its connection: watch again, and then tell what may have been missed.
            Err(_) => {
                _open = None;
                watch = loop {
                    let pause = client.runtime.sleep_until(client.runtime.now() + PAUSE);
                    if let Either::Right(_) = select(pause, audience.over().boxed()).await {
                        return;
                    }
                    let again = async {
                        let watch = client.backend.watch(&name, audience.watched()).await?;
                        let stored = match audience.watched() {
                            Watched::Lock => client.backend.read(&name).await?,
                            Watched::Record => None,
                        };
                        Ok::<_, Failure>((watch, stored))
                    };
                    match select(again.boxed(), audience.over().boxed()).await {
                        // The value is read after the watch began, so no change is missed.
                        Either::Left((Ok((watch, stored)), _)) => {
                            stands = stored;
                            break watch;
                        }
                        Either::Left((Err(_), _)) => {}
                        Either::Right(_) => return,
                    }
                };
                if let Audience::Holders(_) = audience {
                    audience.tell(&client, &name, LockSnapshot::read(stands.as_ref())).await;
                }
                _open = audience.reports_places().then(|| OpenWatch::new(&client, &name));
                audience.tell_to_ask(&client, &name);
            }
        }
    }
}

/// Whether a hold or place of this lock is bound to the session.
fn is_bound(stored: Option<&Stored>, session: u64) -> bool {
    let snapshot = LockSnapshot::read(stored).unwrap_or_default();
    snapshot.bindings.values().any(|binding| binding.session == session)
}

/// Whether an owner has a hold or a place in this snapshot.
fn holds(snapshot: Option<&LockSnapshot>, owner: &Owner) -> bool {
    match snapshot.and_then(|snapshot| snapshot.data.as_ref()) {
        None => false,
        Some(Data::Text(value)) => parse_value(value.as_bytes()).is_some_and(|(known, _)| known == *owner),
        Some(Data::Hash(hash)) => hash.contains_key(owner.as_str()),
        Some(Data::Queue(queue)) => queue.number(owner).is_some(),
    }
}

/// The notification for a new value. Each grant is reported once.
fn news(snapshot: Option<LockSnapshot>, reported: &mut Reported) -> Option<Notification> {
    // The next request reports a value that cannot be parsed.
    let Some(snapshot) = snapshot else { return Some(Notification::Reconnected) };
    match &snapshot.data {
        None => {
            *reported = Reported::default();
            Some(Notification::Free { by: None })
        }
        Some(Data::Queue(queue)) => {
            let holding: BTreeSet<u64> = queue.holding().collect();
            let tickets: Vec<u64> = holding.difference(&reported.tickets).copied().collect();
            reported.tickets = holding;
            match queue.is_due() {
                true => Some(Notification::Reconnected),
                false => (!tickets.is_empty()).then_some(Notification::Granted { tickets }),
            }
        }
        // One write may remove a dead owner and grant to the next, which may have waiters in other processes.
        Some(Data::Hash(_)) => {
            let owner = snapshot.entries().into_iter().next().map(|(_, owner, _)| owner);
            let before = mem::replace(&mut reported.owner, owner);
            let has_passed = before.is_some() && before != reported.owner && !planted(Bug::CasNewOwnerUntold);
            has_passed.then_some(Notification::Reconnected)
        }
        Some(Data::Text(_)) => None,
    }
}

#[cfg(all(test, tenure_planted))]
mod tests {
    use super::*;
    use crate::planted::plant;

    #[test]
    fn the_next_owner_of_a_reentrant_mutex_is_reported() {
        let held = |owner: u32| {
            let owner = format!("o@h:1/{owner:032x}");
            let hash = BTreeMap::from([(owner, "1".to_owned()), ("#1".to_owned(), "1".to_owned())]);
            Some(LockSnapshot { data: Some(Data::Hash(hash)), ..LockSnapshot::default() })
        };
        let reported = || {
            let mut reported = Reported::default();
            [1, 1, 2].map(|owner| news(held(owner), &mut reported).is_some())
        };
        assert_eq!(reported(), [false, false, true]);
        plant(Some(Bug::CasNewOwnerUntold));
        let outcome = reported();
        plant(None);
        assert_eq!(outcome, [false; 3], "the planted bug is not seen");
    }
}
