//! Stores that wrap another store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::{Capabilities, Client, Cursor, Failure, Listener, Page, QuorumMember, Store};
use crate::name::LockName;
use crate::owner::Owner;
use crate::protocol::record::{RecordAnswer, RecordOp};
use crate::protocol::{Answer, LockSpec, Op};

/// A store that wraps another store. Every method forwards to [`inner`](Self::inner) unless it is overridden.
///
/// A required method that is added to [`Store`] must be added here too, or this crate does not compile, so no
/// decorator can miss one. Batched renewals ([`Store::renews_many`]) are not forwarded, because a decorator
/// would not see them.
pub trait Decorator: fmt::Debug + Send + Sync + 'static {
    /// The wrapped store.
    fn inner(&self) -> &dyn Store;

    /// As [`Store::call`].
    fn call(&self, op: Op, within: Duration) -> BoxFuture<'static, Result<Answer, Failure>> {
        self.inner().call(op, within)
    }

    /// As [`Store::record`].
    fn record(&self, op: RecordOp, within: Duration) -> BoxFuture<'static, Result<RecordAnswer, Failure>> {
        self.inner().record(op, within)
    }

    /// As [`Store::listen`].
    fn listen(
        &self,
        name: &LockName,
        spec: LockSpec,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        self.inner().listen(name, spec, within)
    }

    /// As [`Store::listen_for_turns`].
    fn listen_for_turns(
        &self,
        name: &LockName,
        spec: LockSpec,
        client: Client,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        self.inner().listen_for_turns(name, spec, client, within)
    }

    /// As [`Store::listen_to_ask`].
    fn listen_to_ask(
        &self,
        name: &LockName,
        spec: LockSpec,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        self.inner().listen_to_ask(name, spec, within)
    }

    /// As [`Store::listen_while_held`].
    fn listen_while_held(
        &self,
        name: &LockName,
        spec: LockSpec,
        owner: &Owner,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        self.inner().listen_while_held(name, spec, owner, within)
    }

    /// As [`Store::list`].
    fn list(
        &self,
        prefix: &str,
        from: Cursor,
        within: Duration,
    ) -> BoxFuture<'static, Result<Page, Failure>> {
        self.inner().list(prefix, from, within)
    }

    /// As [`Store::ready`].
    fn ready(&self, within: Duration) -> BoxFuture<'static, Result<(), Failure>> {
        self.inner().ready(within)
    }

    /// As [`Store::capabilities`].
    fn capabilities(&self) -> Capabilities {
        self.inner().capabilities()
    }

    /// As [`Store::supports`].
    ///
    /// # Errors
    /// As for the method of [`Store`].
    fn supports(&self, spec: LockSpec, name: &LockName) -> Result<(), &'static str> {
        self.inner().supports(spec, name)
    }

    /// As [`Store::shard`].
    fn shard(&self, name: &LockName) -> Option<String> {
        self.inner().shard(name)
    }

    /// As [`Store::declare_ttl`].
    fn declare_ttl(&self, ttl: Duration) {
        self.inner().declare_ttl(ttl);
    }

    /// As [`Store::settled`].
    fn settled(&self) -> BoxFuture<'static, ()> {
        self.inner().settled()
    }

    /// As [`Store::interrupted`].
    fn interrupted(&self) -> BoxFuture<'static, ()> {
        self.inner().interrupted()
    }

    /// As [`Store::interruptions`].
    fn interruptions(&self) -> u64 {
        self.inner().interruptions()
    }

    /// As [`Store::member`].
    ///
    /// # Errors
    /// As for the method of [`Store`].
    fn member(&self) -> Result<&dyn QuorumMember, &'static str> {
        self.inner().member()
    }

    /// As [`Store::url`].
    fn url(&self) -> &Arc<str> {
        self.inner().url()
    }
}

impl<D: Decorator> Store for D {
    fn call(&self, op: Op, within: Duration) -> BoxFuture<'static, Result<Answer, Failure>> {
        Decorator::call(self, op, within)
    }

    fn record(&self, op: RecordOp, within: Duration) -> BoxFuture<'static, Result<RecordAnswer, Failure>> {
        Decorator::record(self, op, within)
    }

    fn listen(
        &self,
        name: &LockName,
        spec: LockSpec,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        Decorator::listen(self, name, spec, within)
    }

    fn listen_for_turns(
        &self,
        name: &LockName,
        spec: LockSpec,
        client: Client,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        Decorator::listen_for_turns(self, name, spec, client, within)
    }

    fn listen_to_ask(
        &self,
        name: &LockName,
        spec: LockSpec,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        Decorator::listen_to_ask(self, name, spec, within)
    }

    fn listen_while_held(
        &self,
        name: &LockName,
        spec: LockSpec,
        owner: &Owner,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        Decorator::listen_while_held(self, name, spec, owner, within)
    }

    fn list(
        &self,
        prefix: &str,
        from: Cursor,
        within: Duration,
    ) -> BoxFuture<'static, Result<Page, Failure>> {
        Decorator::list(self, prefix, from, within)
    }

    fn ready(&self, within: Duration) -> BoxFuture<'static, Result<(), Failure>> {
        Decorator::ready(self, within)
    }

    fn capabilities(&self) -> Capabilities {
        Decorator::capabilities(self)
    }

    fn supports(&self, spec: LockSpec, name: &LockName) -> Result<(), &'static str> {
        Decorator::supports(self, spec, name)
    }

    fn shard(&self, name: &LockName) -> Option<String> {
        Decorator::shard(self, name)
    }

    fn declare_ttl(&self, ttl: Duration) {
        Decorator::declare_ttl(self, ttl);
    }

    fn settled(&self) -> BoxFuture<'static, ()> {
        Decorator::settled(self)
    }

    fn interrupted(&self) -> BoxFuture<'static, ()> {
        Decorator::interrupted(self)
    }

    fn interruptions(&self) -> u64 {
        Decorator::interruptions(self)
    }

    fn member(&self) -> Result<&dyn QuorumMember, &'static str> {
        Decorator::member(self)
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
    use crate::protocol::record::RecordVerb;
    use crate::protocol::{Answer, Kind, Verb};
    use crate::store::{HoldLiveness, Incarnation, Kinds, LeaseClock, SETUP};

    /// Answers differently from every default and records the calls.
    #[derive(Debug)]
    struct RecordingStore {
        asked: Mutex<Vec<&'static str>>,
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
        shares_leases: false,
        restart_grace: Some(Duration::from_secs(7)),
    };

    impl Store for RecordingStore {
        fn call(&self, op: Op, _: Duration) -> BoxFuture<'static, Result<Answer, Failure>> {
            self.ask("call");
            ready(Ok(Answer::Behind { ballot: op.request })).boxed()
        }

        fn record(&self, _: RecordOp, _: Duration) -> BoxFuture<'static, Result<RecordAnswer, Failure>> {
            self.ask("record");
            ready(Ok(RecordAnswer::Voided)).boxed()
        }

        fn listen(
            &self,
            _: &LockName,
            _: LockSpec,
            _: Duration,
        ) -> BoxFuture<'static, Result<Listener, Failure>> {
            self.ask("listen");
            ready(Err(Failure::impossible("listen"))).boxed()
        }

        fn listen_for_turns(
            &self,
            _: &LockName,
            _: LockSpec,
            _: Client,
            _: Duration,
        ) -> BoxFuture<'static, Result<Listener, Failure>> {
            self.ask("listen_for_turns");
            ready(Err(Failure::impossible("listen"))).boxed()
        }

        fn listen_to_ask(
            &self,
            _: &LockName,
            _: LockSpec,
            _: Duration,
        ) -> BoxFuture<'static, Result<Listener, Failure>> {
            self.ask("listen_to_ask");
            ready(Err(Failure::impossible("listen"))).boxed()
        }

        fn listen_while_held(
            &self,
            _: &LockName,
            _: LockSpec,
            _: &Owner,
            _: Duration,
        ) -> BoxFuture<'static, Result<Listener, Failure>> {
            self.ask("listen_while_held");
            ready(Err(Failure::impossible("listen"))).boxed()
        }

        fn list(&self, _: &str, _: Cursor, _: Duration) -> BoxFuture<'static, Result<Page, Failure>> {
            self.ask("list");
            ready(Err(Failure::impossible("list"))).boxed()
        }

        fn ready(&self, _: Duration) -> BoxFuture<'static, Result<(), Failure>> {
            self.ask("ready");
            ready(Err(Failure::impossible("ready"))).boxed()
        }

        fn capabilities(&self) -> Capabilities {
            self.ask("capabilities");
            CAPABILITIES
        }

        fn supports(&self, _: LockSpec, _: &LockName) -> Result<(), &'static str> {
            self.ask("supports");
            Err(SETUP)
        }

        fn declare_ttl(&self, _: Duration) {
            self.ask("declare_ttl");
        }

        fn settled(&self) -> BoxFuture<'static, ()> {
            self.ask("settled");
            ready(()).boxed()
        }

        fn interrupted(&self) -> BoxFuture<'static, ()> {
            self.ask("interrupted");
            ready(()).boxed()
        }

        fn interruptions(&self) -> u64 {
            self.ask("interruptions");
            7
        }

        fn member(&self) -> Result<&dyn QuorumMember, &'static str> {
            self.ask("member");
            Ok(self)
        }

        fn url(&self) -> &Arc<str> {
            self.ask("url");
            &self.url
        }
    }

    impl QuorumMember for RecordingStore {
        fn incarnation(&self) -> Incarnation {
            self.ask("incarnation");
            Incarnation::Unknown
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
        let plain = PlainStore(RecordingStore { asked: Mutex::default(), url: "told:".into() });
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
        let answer = store.call(op, second).now_or_never().expect(now).expect("an answer");
        assert_eq!(answer, Answer::Behind { ballot: 7 });
        let op = RecordOp { lock: name.clone(), granted: None, verb: RecordVerb::Void };
        let answer = store.record(op, second).now_or_never().expect(now).expect("an answer");
        assert_eq!(answer, RecordAnswer::Voided);
        assert!(store.listen(&name, spec, second).now_or_never().expect(now).is_err());
        let owner = Owner::new("a").expect("an owner");
        let client = owner.client();
        assert!(store.listen_for_turns(&name, spec, client, second).now_or_never().expect(now).is_err());
        assert!(store.listen_to_ask(&name, spec, second).now_or_never().expect(now).is_err());
        assert!(store.listen_while_held(&name, spec, &owner, second).now_or_never().expect(now).is_err());
        assert!(store.list("", Cursor::default(), second).now_or_never().expect(now).is_err());
        assert!(store.ready(second).now_or_never().expect(now).is_err());
        assert_eq!(store.capabilities(), CAPABILITIES);
        assert_eq!(store.supports(spec, &name), Err(SETUP));
        store.declare_ttl(second);
        store.settled().now_or_never().expect(now);
        store.interrupted().now_or_never().expect(now);
        assert_eq!(store.interruptions(), 7);
        assert_eq!(store.member().expect("a member").incarnation(), Incarnation::Unknown);
        assert_eq!(&**store.url(), "told:");
        let all = "call record listen listen_for_turns listen_to_ask listen_while_held list ready capabilities supports declare_ttl \
                   settled interrupted interruptions member incarnation url";
        assert_eq!(plain.0.asked.lock().expect("no panic").join(" "), all);
    }

    #[test]
    fn a_kind_that_a_store_does_not_keep_has_its_reason() {
        assert_eq!(CAPABILITIES.kinds.keep(Kind::Fair), Ok(()));
        assert_eq!(CAPABILITIES.kinds.keep(Kind::Mutex), Err("it is fair"));
        assert_eq!(Kinds::All.keep(Kind::Reentrant), Ok(()));
    }
}
