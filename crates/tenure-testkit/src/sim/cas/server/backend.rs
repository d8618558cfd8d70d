//! The requests of a client.

use super::*;

impl Backend for Server {
    fn read(&self, name: &LockName) -> StoreFuture<Option<Stored>> {
        let name = name.clone();
        self.ask("read", move |_, state| state.locks.get(&name).cloned())
    }

    fn record(&self, name: &LockName) -> StoreFuture<Option<String>> {
        let name = name.clone();
        self.ask("record", move |_, state| state.records.get(&name).cloned())
    }

    fn parts(&self, name: &LockName, ids: Vec<u64>) -> StoreFuture<Vec<Option<String>>> {
        let name = name.clone();
        self.ask("parts", move |_, state| {
            ids.iter().map(|id| state.parts.get(&(name.clone(), *id)).cloned()).collect()
        })
    }

    fn commit(&self, change: Swap) -> StoreFuture<Committed> {
        if 2 + change.parts.len() + change.victims.len() > STEPS {
            let refused = Failure::Refused(Failure::cause("too many operations in txn request"));
            return ready(Err(refused)).boxed();
        }
        self.ask("commit", move |server, state| server.commit_now(state, change))
    }

    fn open(&self, life: Duration, is_kept: bool) -> StoreFuture<(Session, u64)> {
        let opened = self.ask("open", move |server, state| {
            // Not consecutive, so that an off-by-one number is not another session.
            state.next += 16;
            state.revision += 1;
            let (session, marker, process) = (state.next, state.revision, server.process);
            state
                .sessions
                .insert(session, Life { life, end: Moment(0), kept_until: Moment(0), marker, process });
            server.set_end(state, session, server.now());
            (session, marker)
        });
        let client = self.clone();
        async move {
            let (session, marker) = opened.await?;
            if is_kept {
                client.ping(session);
            }
            Ok((session, marker))
        }
        .boxed()
    }

    fn keeps_sessions(&self) -> bool {
        self.pings.is_some()
    }

    fn keep(&self, session: Session, _seen: u64) -> StoreFuture<Option<u64>> {
        self.ask("keep", move |server, state| server.set_end(state, session, server.now()))
    }

    fn touch(&self, session: Session) -> StoreFuture<bool> {
        self.ask("touch", move |server, state| server.set_end(state, session, server.now()).is_some())
    }

    fn close(&self, session: Session) -> StoreFuture<()> {
        self.ask("close", move |server, state| server.end(state, session))
    }

    fn bump(&self, sessions: Vec<Session>) -> StoreFuture<Vec<Option<u64>>> {
        // ZooKeeper has no reply to no request.
        assert!(!sessions.is_empty(), "a bump of no marker");
        self.ask("bump", move |_, state| {
            state.revision += 1;
            let version = state.revision;
            let bump = |session: &Session| {
                state.sessions.get_mut(session).map(|life| {
                    life.marker = version;
                    version
                })
            };
            sessions.iter().map(bump).collect()
        })
    }

    fn living(&self, sessions: Vec<Session>) -> StoreFuture<Vec<bool>> {
        self.ask("living", move |_, state| {
            sessions.iter().map(|session| state.sessions.contains_key(session)).collect()
        })
    }

    fn watch(&self, name: &LockName, what: Watched) -> StoreFuture<Box<dyn LockWatch>> {
        let name = name.clone();
        let begun = self.ask("watch", move |server, state| {
            let (sender, seen) = mpsc::unbounded_channel();
            let (process, last) = (server.process, server.now());
            state.watches.push(Watcher { name, what, process, last, coming: Arc::default(), sender });
            seen
        });
        async move { Ok(Box::new(Watching(begun.await?)) as Box<dyn LockWatch>) }.boxed()
    }

    fn list(&self, prefix: &str, _from: Cursor) -> StoreFuture<Listed> {
        let prefix = prefix.to_owned();
        self.ask("list", move |_, state| {
            let locks = state.locks.iter().filter(|(name, _)| name.as_str().starts_with(&prefix));
            let locks = locks.map(|(name, stored)| (name.clone(), stored.clone())).collect();
            Listed { locks, next: None }
        })
    }

    fn records(&self, prefix: &str, _from: Cursor) -> StoreFuture<ListedRecords> {
        let prefix = prefix.to_owned();
        self.ask("records", move |_, state| {
            let records = state.records.iter().filter(|(name, _)| name.as_str().starts_with(&prefix));
            let records = records.map(|(name, text)| (name.clone(), text.clone())).collect();
            ListedRecords { records, next: None }
        })
    }

    fn ready(&self) -> StoreFuture<()> {
        self.ask("ready", |_, _| ())
    }

    fn silent(&self) {}

    fn limit(&self) -> usize {
        100_000
    }

    fn part(&self) -> usize {
        self.inner.part
    }
}

struct Watching(mpsc::UnboundedReceiver<WatchNotice>);

impl LockWatch for Watching {
    fn next(&mut self) -> BoxFuture<'_, Result<WatchNotice, Failure>> {
        async move {
            let cut = || Failure::Unknown(Failure::cause("the watch was cut"));
            self.0.recv().await.ok_or_else(cut)
        }
        .boxed()
    }
}
