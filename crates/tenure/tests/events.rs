//! The events of a `Locks`: names and fields that dashboards rely on.

#[path = "common/subscriber.rs"]
mod subscriber;

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::FutureExt;
use subscriber::{Hears, Said};
use tenure::{Locks, Options, Renewal, block_on};
use tenure_testkit::servers::{Server, eventually};

/// Collects the events.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<Said>>>);

/// The level of an event, and its fields without its name.
type Told = (String, Vec<String>);

impl Listener {
    fn of(&self, event: &str) -> Option<Told> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let said = all.iter().find(|said| said.fields.get("event").is_some_and(|name| name == event))?;
        let fields = said.fields.keys().filter(|name| **name != "event").map(|name| (*name).to_owned());
        Some((said.level.to_string().to_lowercase(), fields.collect()))
    }
}

/// What book/operate/monitoring.md documents for an event or a span.
fn documented(name: &str) -> Option<Told> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../book/operate/monitoring.md");
    let page = fs::read_to_string(page).expect("the page");
    let row = page.lines().find(|line| line.starts_with(&format!("| `{name}` |")))?;
    let cells: Vec<_> = row.split('|').map(str::trim).collect();
    let mut fields: Vec<_> = cells[3].trim_matches('`').split(' ').map(str::to_owned).collect();
    fields.sort();
    Some((cells[2].to_owned(), fields))
}

#[test]
fn events_and_the_span_are_as_the_page_has_them() {
    let listener = Listener::default();
    // The thread of a `Locks` emits events too, so the subscriber is global.
    let kept = listener.clone();
    let keep = move |said| kept.0.lock().unwrap_or_else(PoisonError::into_inner).push(said);
    tracing::subscriber::set_global_default(Hears(keep)).expect("the only one in this program");
    let locks = Locks::memory();
    let short = Options::new().ttl(Duration::from_millis(60)).renewal(Renewal::Off);
    let brief = locks.with(|_| short).expect("options");
    let mutex = locks.mutex("x").expect("a name");

    let lost = block_on(brief.mutex("x").expect("a name").lock()).expect("a free lock");
    // Waits for the end of the lease that is not renewed.
    let guard = block_on(mutex.lock()).expect("a grant");
    assert!(block_on(lost.lost()).is_lost());
    assert!(block_on(mutex.try_lock()).expect("an answer").is_none());
    assert!(block_on(mutex.try_lock_for(Duration::from_millis(1))).expect("an answer").is_none());
    drop(mutex.lock().now_or_never());
    assert!(block_on(locks.fair_mutex("x").expect("a name").lock()).is_err());
    block_on(guard.release()).expect("a release");

    // A server that revokes the rights for renewals and releases.
    let server = Server::start();
    let locks = block_on(Locks::connect(&server.url())).expect("a server");
    let locks = locks.with(|options| options.ttl(Duration::from_secs(3))).expect("options");
    let guard = block_on(locks.mutex("y").expect("a name").lock()).expect("a free lock");
    assert!(server.command(&["ACL", "SETUSER", "default", "-pexpire", "-del"]) == "OK");
    let is_said = |event| {
        let listener = &listener;
        move || listener.of(event).is_some()
    };
    eventually("a renewal fails", Duration::from_secs(10), is_said("renewal_failed"));
    drop(guard);
    eventually("a release is refused", Duration::from_secs(10), is_said("release_refused"));

    let events = "lock_acquired lock_busy lock_timed_out lock_cancelled lock_failed lock_waiting lock_lost \
                  lock_released renewal_failed release_refused acquire";
    for event in events.split_whitespace() {
        let told = listener.of(event);
        assert!(told.is_some() && told == documented(event), "{event}: {told:?}");
    }
}
