//! The requests of a client to a server with compare-and-swap of one key.

use futures_util::stream::{BoxStream, StreamExt, unfold};
use tenure::internals::store::cas::{
    KeyEntry, KeyName, KeyPage, KeyValueServer, KeyWrite, KeyWritten, key_values,
};

use super::*;

impl KeyValueServer for Server {
    fn read(&self, key: &KeyName) -> StoreFuture<Option<KeyEntry>> {
        let key = key.clone();
        self.ask("read", move |_, state| entry(state, &key))
    }

    fn write(&self, key: &KeyName, write: KeyWrite) -> StoreFuture<KeyWritten> {
        let (key, sort) = (key.clone(), if let KeyName::Lock(_) = key { "commit" } else { "keep" });
        self.ask(sort, move |server, state| {
            let found = entry(state, &key);
            if found.as_ref().map(|entry| entry.version) != write.seen {
                return Err(found);
            }
            Ok(match key {
                KeyName::Lock(name) => server.write_lock(state, name, write),
                KeyName::Marker(session) => server.write_marker(state, session, &write),
            })
        })
    }

    fn watch(&self, name: &LockName) -> StoreFuture<BoxStream<'static, Result<KeyEntry, Failure>>> {
        let watch = Backend::watch(self, name, Watched::Lock);
        async move {
            let values = unfold(watch.await?, |mut watch| async move {
                let entry = loop {
                    match watch.next().await {
                        Ok(WatchNotice::Lock(Some(Stored { text, stamp }))) => {
                            break Ok(KeyEntry { version: stamp.version, text });
                        }
                        Ok(_) => {}
                        Err(failure) => break Err(failure),
                    }
                };
                Some((entry, watch))
            });
            Ok(values.boxed())
        }
        .boxed()
    }

    fn list(&self, prefix: &str, _from: Cursor) -> StoreFuture<KeyPage> {
        let prefix = prefix.to_owned();
        self.ask("list", move |_, state| {
            let keys = state.keys.iter().filter(|(name, _)| name.as_str().starts_with(&prefix));
            (keys.map(|(name, entry)| (name.clone(), entry.clone())).collect(), None)
        })
    }

    fn ready(&self) -> StoreFuture<()> {
        Backend::ready(self)
    }

    fn limit(&self) -> usize {
        200_000
    }
}

fn entry(state: &State, key: &KeyName) -> Option<KeyEntry> {
    match key {
        KeyName::Lock(name) => state.keys.get(name).cloned(),
        KeyName::Marker(session) => state
            .sessions
            .get(session)
            .map(|life| KeyEntry { version: life.marker, text: format!("{} marker", life.life.as_millis()) }),
    }
}

impl Server {
    fn write_lock(&self, state: &mut State, name: LockName, write: KeyWrite) -> u64 {
        state.revision += 1;
        let (version, text) = (state.revision, write.text.expect("the key of a lock is never removed"));
        let before = self.host.judge.as_ref().map(|judge| judge.look(state, &name));
        let entry = KeyEntry { version, text };
        let (lock, record) = key_values(&entry);
        let added = match (&lock, state.locks.contains_key(&name)) {
            (Some(lock), false) => lock.stamp.base,
            _ => 0,
        };
        match lock {
            Some(lock) => drop(state.locks.insert(name.clone(), lock)),
            None => drop(state.locks.remove(&name)),
        }
        match record {
            Some(record) => drop(state.records.insert(name.clone(), record)),
            None => drop(state.records.remove(&name)),
        }
        let stamp = Stamp { version, ..Stamp::default() };
        let raw = Stored { text: entry.text.clone(), stamp };
        state.keys.insert(name.clone(), entry);
        if let (Some(judge), Some(before)) = (&self.host.judge, before) {
            judge.committed(state, self.process, &name, before, write.notes.told(), added);
        }
        self.tell(state, |watcher| watcher.name == name, &WatchNotice::Lock(Some(raw)));
        version
    }

    fn write_marker(&self, state: &mut State, session: Session, write: &KeyWrite) -> u64 {
        let Some(life) = write.life.filter(|_| write.text.is_some()) else {
            self.end(state, session);
            return 0;
        };
        state.revision += 1;
        let (marker, process) = (state.revision, self.process);
        let known = state.sessions.entry(session).or_insert(Life {
            life,
            end: Moment(0),
            kept_until: Moment(0),
            marker,
            process,
        });
        known.marker = marker;
        self.set_end(state, session, self.now());
        marker
    }
}
