use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select};

use super::RecordHandle;
use super::log::{Leader, Log, LogEntry, Word, unreadable};
use crate::error::Result;
use crate::planted::{Bug, planted};
use crate::store::{Failure, Listener};

/// Follows who leads: see [`Election::observe`](crate::Election::observe).
///
/// It needs no message to be delivered: a change whose message was lost is told within a second.
/// That is also the time on the `file:` store.
#[must_use = "it tells nothing unless it is asked"]
pub struct Observer {
    record: RecordHandle,
    listener: Option<Listener>,
    /// The last change that was told or is about to be.
    last: Option<LogEntry>,
    has_read: bool,
    changes: VecDeque<Change>,
}

/// A change of who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// This one leads now.
    Elected(Leader),
    /// The leader says something else of itself.
    Updated(Leader),
    /// It has resigned. A leader that dies says nothing: the next is elected.
    Resigned(Leader),
    /// So many changes came before the next one and are not known any more: the log keeps 256, and
    /// 32 KiB.
    Missed(u64),
    /// The store has lost changes that were told, as a failover can. What follows is told from the
    /// newest on.
    Rewritten,
}

/// How often the log is looked at without a message.
const LOOK: Duration = Duration::from_secs(1);

impl Observer {
    pub(super) fn new(record: RecordHandle) -> Self {
        Self { record, listener: None, last: None, has_read: false, changes: VecDeque::new() }
    }

    /// The next change. The first is who leads at that time, if anyone does.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let election = tenure::Locks::memory().election("scheduler", "host-1")?;
    /// let mut observer = election.observe();
    /// let term = election.campaign().await?;
    /// println!("{:?}", observer.next().await?); // elected
    /// term.resign().await?;
    /// println!("{:?}", observer.next().await?); // resigned
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Nothing is lost: what was not returned is told by the next call.
    ///
    /// # Errors
    /// Those of the store: `is_unreachable`, `is_refused`. It can be called again, and goes on
    /// where it was.
    pub async fn next(&mut self) -> Result<Change> {
        loop {
            if let Some(change) = self.changes.pop_front() {
                return Ok(change);
            }
            let (lock, engine) = (&self.record.lock, self.record.engine());
            // Listening first: what changes from then on is heard.
            if self.listener.is_none() {
                match engine.store.listen(&lock.full, lock.rule, lock.options.op_timeout).await {
                    Ok(listener) => self.listener = Some(listener),
                    // Repeated looks replace messages that this user may not hear.
                    Err(Failure::Refused(_)) if self.has_read => {
                        engine.runtime.sleep_until(engine.now() + LOOK).await;
                    }
                    Err(Failure::Refused(_)) => {}
                    Err(failure) => return Err(engine.silent(&lock.name, failure)),
                }
            } else if self.has_read {
                let at = engine.now() + LOOK;
                let timer = engine.runtime.sleep_until(at);
                let listener = self.listener.as_mut().expect("it listens");
                let is_over = match select(listener.next().boxed(), timer).await {
                    Either::Left((message, _)) => message.is_none(),
                    Either::Right(_) => false,
                };
                if is_over {
                    self.listener = None;
                    continue;
                }
            }
            self.look().await?;
        }
    }

    /// The next change that is in the store already, or `None`. It reads the log at most once and
    /// does not wait, so that a program can tell at its end what it was not told yet.
    ///
    /// ```
    /// # tenure::block_on(async {
    /// let election = tenure::Locks::memory().election("scheduler", "host-1")?;
    /// let mut observer = election.observe();
    /// assert_eq!(observer.try_next().await?, None);
    /// election.campaign().await?.resign().await?;
    /// while let Some(change) = observer.try_next().await? {
    ///     println!("{change:?}"); // elected, then resigned
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// As [`next`](Self::next).
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn try_next(&mut self) -> Result<Option<Change>> {
        if self.changes.is_empty() {
            self.look().await?;
        }
        Ok(self.changes.pop_front())
    }

    /// Reads the log, and goes on where it was.
    async fn look(&mut self) -> Result<()> {
        let seen = self.record.read().await?;
        let log = Log::decode(seen.record.as_ref()).ok_or_else(|| unreadable(&self.record))?;
        let is_first = !std::mem::replace(&mut self.has_read, true);
        let mut news = log.entries.as_slice();
        match &self.last {
            // Who leads now, and not how that came about.
            None if is_first => {
                news = &news[news.len().saturating_sub(1)..];
                if matches!(news, [LogEntry { word: Word::Resigned, .. }]) {
                    self.last = news.first().cloned();
                    return Ok(());
                }
                if let [only] = news {
                    self.last = Some(only.clone());
                    self.changes.push_back(Change::Elected(only.leader.clone()));
                }
                return Ok(());
            }
            None => {}
            Some(last) => match news.iter().position(|entry| entry.number == last.number) {
                Some(at) if news[at] == *last => news = &news[at + 1..],
                // All of the kept ones are newer.
                None if news.first().is_some_and(|first| first.number > last.number) => {}
                _ => {
                    self.changes.push_back(Change::Rewritten);
                    self.last = None;
                    news = &news[news.len().saturating_sub(1)..];
                }
            },
        }
        if planted(Bug::TermSkipped) {
            news = &news[news.len().saturating_sub(1)..];
        }
        for entry in news {
            let expected = self.last.as_ref().map(|last| last.number + 1);
            if let Some(expected) = expected.filter(|expected| entry.number > *expected)
                && !planted(Bug::TermSkipped)
            {
                self.changes.push_back(Change::Missed(entry.number - expected));
            }
            let leader = entry.leader.clone();
            self.changes.push_back(match entry.word {
                Word::Elected => Change::Elected(leader),
                Word::Updated => Change::Updated(leader),
                Word::Resigned => Change::Resigned(leader),
            });
            self.last = Some(entry.clone());
        }
        Ok(())
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observer").field(&self.record.lock.name).finish()
    }
}
