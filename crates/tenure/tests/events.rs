//! What a `Locks` says of itself: the names and fields that dashboards are built on.

#[path = "common/subscriber.rs"]
mod subscriber;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use subscriber::{Hears, Said};
use tenure::{Locks, Options, Renewal, block_on};
use tenure_testkit::servers::{Server, eventually};
use tracing::Level;

/// Keeps what is said.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<Said>>>);

impl Listener {
    fn fields_of(&self, message: &str) -> Option<(Level, Vec<&'static str>)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let said = all.iter().find(|said| said.message == message)?;
        Some((said.level, said.fields.keys().copied().collect()))
    }
}

#[test]
fn events_keep_their_names_and_fields() {
    let listener = Listener::default();
    // The thread of a `Locks` speaks too, so the listener is every client's.
    let kept = listener.clone();
    let keep = move |said| kept.0.lock().unwrap_or_else(PoisonError::into_inner).push(said);
    tracing::subscriber::set_global_default(Hears(keep)).expect("the only one in this program");
    let locks = Locks::memory();
    let short = Options::new().ttl(Duration::from_millis(60)).renewal(Renewal::Off);
    let brief = locks.with(|_| short).expect("options");

    let lost = block_on(brief.mutex("x").expect("a name").lock()).expect("a free lock");
    // Waits for the lease of the one that is not renewed.
    let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a grant");
    assert!(block_on(lost.lost()).is_lost());
    block_on(guard.release()).expect("a release");

    // A server that takes back what renewals and releases need.
    let server = Server::start();
    let locks = block_on(Locks::connect(&server.url())).expect("a server");
    let locks = locks.with(|options| options.ttl(Duration::from_secs(3))).expect("options");
    let guard = block_on(locks.mutex("y").expect("a name").lock()).expect("a free lock");
    assert!(server.command(&["ACL", "SETUSER", "default", "-pexpire", "-del"]) == "OK");
    let is_said = |message| {
        let listener = &listener;
        move || listener.fields_of(message).is_some()
    };
    eventually("a renewal fails", Duration::from_secs(10), is_said("renewal failed"));
    drop(guard);
    eventually("a release is refused", Duration::from_secs(10), is_said("release refused"));

    let expected = [
        ("acquired", Level::DEBUG, vec!["fence", "lock", "owner", "waited_ms"]),
        ("waiting", Level::DEBUG, vec!["holder", "left_ms", "lock"]),
        ("lost", Level::WARN, vec!["fence", "lock", "owner", "reason"]),
        ("released", Level::DEBUG, vec!["left", "lock", "owner"]),
        ("renewal failed", Level::WARN, vec!["failure", "left_ms", "lock", "owner"]),
        ("release refused", Level::WARN, vec!["cause", "lock", "owner"]),
    ];
    for (message, level, fields) in expected {
        assert_eq!(listener.fields_of(message), Some((level, fields)), "{message}");
    }
}
