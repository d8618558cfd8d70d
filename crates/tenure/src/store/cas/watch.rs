//! Hears of the changes of one lock, and tells those who wait for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select};

use super::backend::{Seen, Stored, Watch};
use super::client::Client;
use super::view::View;
use crate::name::LockName;
use crate::owner::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::{Data, Notification, parse_value};
use crate::store::{Failure, Listener, Publisher};

/// How long after a watch ended the next one is begun.
const PAUSE: Duration = Duration::from_millis(200);

/// Begins to watch, and then tells what it sees. `holder`: only whether this owner holds no more.
pub(super) async fn listen(
    client: Arc<Client>,
    name: LockName,
    holder: Option<Owner>,
) -> Result<Listener, Failure> {
    if planted(Bug::CasWatchAfterLook) {
        return Ok(Listener::new(|publisher| {
            let runtime = Arc::clone(&client.runtime);
            let late = async move {
                client.runtime.sleep_until(client.runtime.now() + PAUSE).await;
                if let Ok(watch) = client.backend.watch(&name).await {
                    tell(client, name, holder, watch, None, publisher).await;
                }
            };
            runtime.spawn(late.boxed());
            Box::new(())
        }));
    }
    let watch = client.backend.watch(&name).await?;
    let first = client.backend.read(&name).await?;
    if let Some(holder) = &holder {
        ended(&client, &name, View::read(first.as_ref()), holder);
    }
    Ok(Listener::new(|publisher| {
        let runtime = Arc::clone(&client.runtime);
        runtime.spawn(tell(client, name, holder, watch, first, publisher).boxed());
        Box::new(())
    }))
}

/// Tells until no client listens any more.
async fn tell(
    client: Arc<Client>,
    name: LockName,
    holder: Option<Owner>,
    mut watch: Box<dyn Watch>,
    mut stands: Option<Stored>,
    publisher: Publisher,
) {
    let mut told = BTreeSet::new();
    loop {
        let next = match select(watch.next(), publisher.over().boxed()).await {
            Either::Left((next, _)) => next,
            Either::Right(_) => return,
        };
        match next {
            Ok(Seen::Lock(stored)) => {
                let view = View::read(stored.as_ref());
                if let (Some(Data::Queue(_)), Some(stored)) =
                    (view.as_ref().and_then(|view| view.data.as_ref()), &stored)
                {
                    client.saw(&name, stored);
                }
                let news = match &holder {
                    Some(holder) => ended(&client, &name, view, holder),
                    None => news(view, &mut told),
                };
                if let Some(wake) = news {
                    publisher.say(wake);
                }
                stands = stored;
            }
            Ok(Seen::Gone(handle)) => {
                client.table.lock().saw(handle, None);
                if is_bound(stands.as_ref(), handle) {
                    publisher.say(Notification::Reconnected);
                }
            }
            Err(_) => {
                watch = loop {
                    let pause = client.runtime.sleep_until(client.runtime.now() + PAUSE);
                    if let Either::Right(_) = select(pause, publisher.over().boxed()).await {
                        return;
                    }
                    let again = async {
                        let watch = client.backend.watch(&name).await?;
                        Ok::<_, Failure>((watch, client.backend.read(&name).await?))
                    };
                    match select(again.boxed(), publisher.over().boxed()).await {
                        Either::Left((Ok((watch, stored)), _)) => {
                            stands = stored;
                            break watch;
                        }
                        Either::Left((Err(_), _)) => {}
                        Either::Right(_) => return,
                    }
                };
                if let Some(holder) = &holder {
                    ended(&client, &name, View::read(stands.as_ref()), holder);
                }
                publisher.say(Notification::Reconnected);
            }
        }
    }
}

/// Whether something at this lock is bound to the handle.
fn is_bound(stored: Option<&Stored>, handle: u64) -> bool {
    let view = View::read(stored).unwrap_or_default();
    view.bindings.values().any(|binding| binding.handle == handle)
}

/// What to tell one that holds of what stands there now: only that it holds no more. Then its next
/// renewal reads the lock.
fn ended(client: &Client, name: &LockName, view: Option<View>, holder: &Owner) -> Option<Notification> {
    let holds = match view.and_then(|view| view.data) {
        None => false,
        Some(Data::Text(value)) => parse_value(value.as_bytes()).is_some_and(|(owner, _)| owner == *holder),
        Some(Data::Hash(hash)) => hash.contains_key(holder.as_str()),
        Some(Data::Queue(queue)) => queue.number(holder).is_some(),
    };
    if holds {
        return None;
    }
    client.table.lock().doubt(name, holder);
    Some(Notification::Free { by: None })
}

/// What to tell of what stands there now. Each grant is told once.
fn news(view: Option<View>, told: &mut BTreeSet<u64>) -> Option<Notification> {
    let free = Some(Notification::Free { by: None });
    // What cannot be read is told by the next request.
    let Some(view) = view else { return Some(Notification::Reconnected) };
    match view.data {
        None => {
            told.clear();
            free
        }
        Some(Data::Queue(queue)) => {
            let holding: BTreeSet<u64> = queue.holding().collect();
            let tickets: Vec<u64> = holding.difference(told).copied().collect();
            *told = holding;
            match queue.is_due() {
                true => Some(Notification::Reconnected),
                false => (!tickets.is_empty()).then_some(Notification::Granted { tickets }),
            }
        }
        Some(_) => None,
    }
}
