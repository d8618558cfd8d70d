//! Stores that wrap another store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Capabilities, Cursor, Listener, Page, Placement, RecordPage, Signals, Store, StoreFuture, StoreReply,
    StoreRequest, Topic,
};
use crate::name::LockName;
use crate::protocol::{Found, LockSpec};

/// A store that wraps another store. Every method forwards to [`inner`](Self::inner) unless it is overridden.
///
/// A required method that is added to [`Store`] must be added here too, or this crate does not compile, so no
/// decorator can miss one.
pub trait Decorator: fmt::Debug + Send + Sync + 'static {
    /// The wrapped store.
    fn inner(&self) -> &dyn Store;

    /// As [`Store::call`].
    fn call(&self, request: StoreRequest, within: Duration) -> StoreFuture<StoreReply> {
        self.inner().call(request, within)
    }

    /// As [`Store::subscribe`].
    fn subscribe(&self, topic: Topic<'_>, within: Duration) -> StoreFuture<Listener> {
        self.inner().subscribe(topic, within)
    }

    /// As [`Store::list`].
    fn list(&self, prefix: &str, from: Cursor, within: Duration) -> StoreFuture<Page> {
        self.inner().list(prefix, from, within)
    }

    /// As [`Store::waiting`].
    fn waiting(&self, locks: &[(LockName, Found)], within: Duration) -> StoreFuture<Vec<Option<u64>>> {
        self.inner().waiting(locks, within)
    }

    /// As [`Store::records`].
    fn records(&self, prefix: &str, from: Cursor, within: Duration) -> StoreFuture<RecordPage> {
        self.inner().records(prefix, from, within)
    }

    /// As [`Store::ready`].
    fn ready(&self, within: Duration) -> StoreFuture<()> {
        self.inner().ready(within)
    }

    /// As [`Store::capabilities`].
    fn capabilities(&self) -> Capabilities {
        self.inner().capabilities()
    }

    /// As [`Store::placement`].
    fn placement(&self, name: &LockName, spec: LockSpec) -> Placement {
        self.inner().placement(name, spec)
    }

    /// As [`Store::signals`].
    fn signals(&self) -> &Signals {
        self.inner().signals()
    }

    /// As [`Store::url`].
    fn url(&self) -> &Arc<str> {
        self.inner().url()
    }
}

impl<D: Decorator> Store for D {
    fn call(&self, request: StoreRequest, within: Duration) -> StoreFuture<StoreReply> {
        Decorator::call(self, request, within)
    }

    fn subscribe(&self, topic: Topic<'_>, within: Duration) -> StoreFuture<Listener> {
        Decorator::subscribe(self, topic, within)
    }

    fn list(&self, prefix: &str, from: Cursor, within: Duration) -> StoreFuture<Page> {
        Decorator::list(self, prefix, from, within)
    }

    fn waiting(&self, locks: &[(LockName, Found)], within: Duration) -> StoreFuture<Vec<Option<u64>>> {
        Decorator::waiting(self, locks, within)
    }

    fn records(&self, prefix: &str, from: Cursor, within: Duration) -> StoreFuture<RecordPage> {
        Decorator::records(self, prefix, from, within)
    }

    fn ready(&self, within: Duration) -> StoreFuture<()> {
        Decorator::ready(self, within)
    }

    fn capabilities(&self) -> Capabilities {
        Decorator::capabilities(self)
    }

    fn placement(&self, name: &LockName, spec: LockSpec) -> Placement {
        Decorator::placement(self, name, spec)
    }

    fn signals(&self) -> &Signals {
        Decorator::signals(self)
    }

    fn url(&self) -> &Arc<str> {
        Decorator::url(self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures_util::future::{FutureExt, ready};

    use super::*;
    use crate::owner::Owner;
    use crate::protocol::record::{RecordAnswer, RecordOp, RecordVerb};
    use crate::protocol::{Answer, Kind, Op, Verb};
    use crate::store::Failure;
    use crate::store::{HoldLiveness, Kinds, LeaseClock, Purpose, SETUP, StoreExt, StoreReply};

    /// Answers differently from every default and records the calls.
    #[derive(Debug)]
    struct RecordingStore {
        asked: Mutex<Vec<&'static str>>,
        signals: Signals,
        url: Arc<str>,
    }

    impl RecordingStore {
        fn ask(&self, what: &'static str) {
            self.asked.lock().expect("no panic").push(what);
        }
    }

    const CAPABILITIES: Capabilities = Capabilities {
        kinds: Kinds::Only(&[Kind::Fair], "it is fair"),
        clock: LeaseClock::Members,
        values: Err("no value"),
        client_decides: false,
        liveness: HoldLiveness::Handle,
        messages_grant: false,
        reports_records: true,
        reports_expiry: true,
        shares_leases: false,
        place_max: Duration::from_secs(3),
        place_kept: Some(Duration::from_secs(9)),
        restart_grace: Some(Duration::from_secs(7)),
        confirms: true,
        member: Err("no member"),
        renewals: 7,
    };

    impl Store for RecordingStore {
        fn call(&self, request: StoreRequest, _: Duration) -> StoreFuture<StoreReply> {
            self.ask("call");
            let reply = match request {
                StoreRequest::Lock(op) => StoreReply::Lock(Answer::Behind { ballot: op.request }),
                StoreRequest::Record(_) => StoreReply::Record(RecordAnswer::Voided),
                StoreRequest::Renewals(_) => StoreReply::Lock(Answer::Free),
            };
            ready(Ok(reply)).boxed()
        }

        fn subscribe(&self, _: Topic<'_>, _: Duration) -> StoreFuture<Listener> {
            self.ask("subscribe");
            ready(Err(Failure::impossible("subscribe"))).boxed()
        }

        fn list(&self, _: &str, _: Cursor, _: Duration) -> StoreFuture<Page> {
            self.ask("list");
            ready(Err(Failure::impossible("list"))).boxed()
        }

        fn waiting(&self, _: &[(LockName, Found)], _: Duration) -> StoreFuture<Vec<Option<u64>>> {
            self.ask("waiting");
            ready(Err(Failure::impossible("waiting"))).boxed()
        }

        fn records(&self, _: &str, _: Cursor, _: Duration) -> StoreFuture<RecordPage> {
            self.ask("records");
            ready(Ok(RecordPage { now_us: 7, ..RecordPage::default() })).boxed()
        }

        fn ready(&self, _: Duration) -> StoreFuture<()> {
            self.ask("ready");
            ready(Err(Failure::impossible("ready"))).boxed()
        }

        fn capabilities(&self) -> Capabilities {
            self.ask("capabilities");
            CAPABILITIES
        }

        fn placement(&self, _: &LockName, _: LockSpec) -> Placement {
            self.ask("placement");
            Placement { supported: Err(SETUP), ..Placement::default() }
        }

        fn signals(&self) -> &Signals {
            self.ask("signals");
            &self.signals
        }

        fn url(&self) -> &Arc<str> {
            self.ask("url");
            &self.url
        }
    }

    #[derive(Debug)]
    struct PlainStore(RecordingStore);

    impl Decorator for PlainStore {
        fn inner(&self) -> &dyn Store {
            &self.0
        }
    }

    #[test]
    fn a_decorator_forwards_all_that_it_does_not_override() {
        let plain = PlainStore(RecordingStore {
            asked: Mutex::default(),
            signals: Signals::default(),
            url: "told:".into(),
        });
        let store: &dyn Store = &plain;
        let (name, spec, second) =
            (LockName::new("x").expect("a name"), LockSpec::Mutex, Duration::from_secs(1));
        let op = Op {
            name: name.clone(),
            spec,
            owner: Owner::new("a").expect("an owner"),
            request: 7,
            verb: Verb::Inspect,
        };
        let now = "it completes at once";
        let answer = store.request(op.clone(), second).now_or_never().expect(now).expect("an answer");
        assert_eq!(answer, Answer::Behind { ballot: 7 });
        let record = RecordOp { lock: name.clone(), granted: None, verb: RecordVerb::Void };
        let answer = store.record(record, second).now_or_never().expect(now).expect("an answer");
        assert_eq!(answer, RecordAnswer::Voided);
        let answers = store.renew(vec![op; 2], second).now_or_never().expect(now);
        assert!(
            matches!(answers[..], [Err(Failure::Refused(_)), Err(Failure::Refused(_))]),
            "another answer"
        );
        assert!(
            store
                .subscribe(Topic::new(&name, spec, Purpose::Watch), second)
                .now_or_never()
                .expect(now)
                .is_err()
        );
        assert!(store.list("", Cursor::default(), second).now_or_never().expect(now).is_err());
        assert!(store.waiting(&[], second).now_or_never().expect(now).is_err());
        let records = store.records("", Cursor::default(), second).now_or_never().expect(now);
        assert_eq!(records.expect("a page").now_us, 7);
        assert!(store.ready(second).now_or_never().expect(now).is_err());
        assert_eq!(store.capabilities(), CAPABILITIES);
        assert_eq!(store.placement(&name, spec).supported, Err(SETUP));
        store.signals().interrupt();
        assert_eq!(plain.0.signals.interruptions(), 1);
        assert_eq!(&**store.url(), "told:");
        let all = "call call call subscribe list waiting records ready capabilities placement signals url";
        assert_eq!(plain.0.asked.lock().expect("no panic").join(" "), all);
    }

    #[test]
    fn a_kind_that_a_store_does_not_keep_has_its_reason() {
        assert_eq!(CAPABILITIES.kinds.keep(Kind::Fair), Ok(()));
        assert_eq!(CAPABILITIES.kinds.keep(Kind::Mutex), Err("it is fair"));
        assert_eq!(Kinds::All.keep(Kind::Reentrant), Ok(()));
    }
}
