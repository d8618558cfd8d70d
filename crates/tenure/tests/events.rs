//! What a `Locks` says of itself: the names and fields that dashboards are built on.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::{Locks, Options, Renewal, block_on};
use tenure_testkit::servers::{Server, eventually};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// One event: its level, its message and the names of its fields.
type Said = (Level, String, Vec<&'static str>);

/// Keeps what is said with the target `tenure`.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<Said>>>);

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Subscriber for Ear {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tenure"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let message = fields.0.remove("message").unwrap_or_default();
        let said = (*event.metadata().level(), message, fields.0.into_keys().collect());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(said);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Ear {
    fn fields_of(&self, message: &str) -> Option<(Level, Vec<&'static str>)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().find(|(_, said, _)| said == message).map(|(level, _, fields)| (*level, fields.clone()))
    }
}

#[test]
fn events_keep_their_names_and_fields() {
    let ear = Ear::default();
    // The thread of a `Locks` speaks too, so the ear is everybody's.
    tracing::subscriber::set_global_default(ear.clone()).expect("the only one in this program");
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
        let ear = &ear;
        move || ear.fields_of(message).is_some()
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
        assert_eq!(ear.fields_of(message), Some((level, fields)), "{message}");
    }
}
