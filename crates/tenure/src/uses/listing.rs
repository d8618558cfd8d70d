//! Enumerates the records of one kind.

use std::future::Future;
use std::sync::Arc;

use futures_util::future::try_join_all;

use super::RecordHandle;
use crate::engine::engine_handle::EngineHandle;
use crate::error::{Error, Result};
use crate::events::{event, text};
use crate::name::LockName;
use crate::options::Options;
use crate::protocol::LockSpec;
use crate::protocol::record::{Record, names_of, user_name};
use crate::store::{Cursor, RecordPage, SETUP};

/// Number of locks that a listing looks at together.
const TOGETHER: usize = 64;

/// A position in the records of this kind whose names begin with `prefix`, and what they tell.
#[derive(Debug)]
pub(super) struct RecordListing<T> {
    shared: Arc<EngineHandle>,
    options: Arc<Options>,
    kind: &'static str,
    spec: LockSpec,
    prefix: String,
    found: std::vec::IntoIter<T>,
    page: std::vec::IntoIter<(LockName, Record)>,
    now_us: u64,
    next: Option<Cursor>,
}

impl<T> RecordListing<T> {
    pub(super) fn new(
        shared: &Arc<EngineHandle>,
        options: &Arc<Options>,
        kind: &'static str,
        spec: LockSpec,
        prefix: &str,
    ) -> Result<Self> {
        if !prefix.is_empty() {
            options.full_name(&LockName::new(prefix)?)?;
        }
        let (shared, options, prefix) = (Arc::clone(shared), Arc::clone(options), prefix.to_owned());
        let (found, page) = (Vec::new().into_iter(), Vec::new().into_iter());
        Ok(Self {
            shared,
            options,
            kind,
            spec,
            prefix,
            found,
            page,
            now_us: 0,
            next: Some(Cursor::default()),
        })
    }

    /// What the next readable record tells to `look`, which gets it with its handle and the store's clock.
    pub(super) async fn next<Look>(
        &mut self,
        look: impl Fn(RecordHandle, Record, u64) -> Look,
    ) -> Result<Option<T>>
    where
        Look: Future<Output = Result<Option<T>>>,
    {
        loop {
            if let Some(found) = self.found.next() {
                return Ok(Some(found));
            }
            let Some((part, now_us)) = self.part().await? else { return Ok(None) };
            let looks = part.into_iter().map(async |(name, record)| {
                let handle =
                    RecordHandle::new(&self.shared, &self.options, self.kind, name.clone(), self.spec)?;
                let found = look(handle, record, now_us).await?;
                if found.is_none() {
                    self.warn_unreadable(&name);
                }
                Ok::<_, Error>(found)
            });
            let found: Vec<T> = try_join_all(looks).await?.into_iter().flatten().collect();
            self.found = found.into_iter();
        }
    }

    /// The next records with their names, and the store's clock; `None` after the last ones.
    async fn part(&mut self) -> Result<Option<(Vec<(LockName, Record)>, u64)>> {
        loop {
            let part: Vec<_> = self.page.by_ref().take(TOGETHER).collect();
            if !part.is_empty() {
                return Ok(Some((part, self.now_us)));
            }
            let Some(from) = &self.next else { return Ok(None) };
            let store = &self.shared.engine.store;
            let page = store.records(&names_of(self.kind), from.clone(), self.options.op_timeout).await;
            let page = page.map_err(|failure| Error::silent(None, store.url(), failure))?;
            let RecordPage { records, now_us, next } = page;
            let named = records.into_iter().filter_map(|(lock, record)| {
                let name = user_name(self.kind, &lock)?.strip_prefix(&self.options.prefix)?;
                let name = LockName::new(name).ok().filter(|name| name.as_str().starts_with(&self.prefix))?;
                Some((name, record))
            });
            let named: Vec<_> = named.collect();
            (self.page, self.now_us, self.next) = (named.into_iter(), now_us, next);
        }
    }

    /// Warns of a record that another version may have written.
    fn warn_unreadable(&self, name: &LockName) {
        event!(
            WARN,
            target: SETUP,
            "record_not_listed",
            "job or election not listed: another version may have written its record",
            lock = text(name),
            store = text(self.shared.engine.store.url()),
        );
    }
}
