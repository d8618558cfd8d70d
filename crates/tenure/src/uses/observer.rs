use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use super::log::{Leader, Log, LogEntry, Word, unreadable};
use super::{RecordHandle, Watch};
use crate::error::Result;
use crate::planted::{Bug, planted};

/// A subscription to the changes of an election: see [`Election::observe`](crate::Election::observe).
///
/// It does not depend on messages: a change whose message was lost is reported within a second. On the
/// `file:` store that is the usual delay.
#[must_use = "an observer does nothing unless polled"]
pub struct Observer {
    record: RecordHandle,
    watch: Watch,
    /// The last change reported or about to be.
    last: Option<LogEntry>,
    /// Before `last`: whether the first look found a log without changes.
    sight: FirstSight,
    changes: VecDeque<Change>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FirstSight {
    None,
    Empty,
    /// Some change, which may be older than the log reaches back.
    Some,
}

/// A change of leadership.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// This candidate now leads.
    Elected(Leader),
    /// The leader changed its payload.
    Updated(Leader),
    /// The leader has resigned. A leader that dies leaves no entry: the next change is the election of its
    /// successor.
    Resigned(Leader),
    /// Number of changes before the next one that are no longer known: the log keeps 256 changes and 32 KiB.
    Missed(u64),
    /// The store has lost changes that were already reported, as a failover can. Reporting continues with the
    /// newest.
    Rewritten,
}

/// Polling interval of the log without messages.
const LOOK: Duration = Duration::from_secs(1);

impl Observer {
    pub(super) fn new(record: RecordHandle) -> Self {
        Self {
            record,
            watch: Watch::default(),
            last: None,
            sight: FirstSight::None,
            changes: VecDeque::new(),
        }
    }

    /// Waits for the next change. The first one reports the leader at that time, if any.
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
    /// Nothing is lost: the next call returns what this one did not.
    ///
    /// # Errors
    /// The errors of the store: `is_unreachable` and `is_refused`. A further call resumes where this one
    /// stopped.
    pub async fn next(&mut self) -> Result<Change> {
        loop {
            if let Some(change) = self.changes.pop_front() {
                return Ok(change);
            }
            let (lock, engine) = (&self.record.lock, self.record.engine());
            // Subscribe before reading, so that no later change is missed.
            if !self.watch.is_open() {
                match self.watch.open(lock, lock.options.op_timeout).await {
                    Ok(()) => {}
                    // Polling replaces messages that cannot be had.
                    Err(_) if self.has_read() => self.watch.wait(lock, engine.now() + LOOK).await,
                    Err(_) => {}
                }
            } else if self.has_read() {
                self.watch.wait(lock, engine.now() + LOOK).await;
                if !self.watch.is_open() {
                    continue;
                }
            }
            self.look().await?;
        }
    }

    /// Returns the next change already in the store, or `None`. It reads the log at most once and does not
    /// wait, so a program that ends can report what it has not reported yet.
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

    fn has_read(&self) -> bool {
        self.sight != FirstSight::None
    }

    /// Reads the log and queues what is new.
    async fn look(&mut self) -> Result<()> {
        let seen = self.record.read().await?;
        let log = Log::decode(seen.record.as_ref()).ok_or_else(|| unreadable(&self.record))?;
        let mut news = log.entries.as_slice();
        match &self.last {
            None if !self.has_read() => return self.first_look(news.last()).await,
            None => {}
            Some(last) => match news.iter().position(|entry| entry.number == last.number) {
                Some(at) if news[at] == *last => news = &news[at + 1..],
                // All entries of the log are newer.
                None if news.first().is_some_and(|first| first.number > last.number) => {}
                _ => {
                    self.changes.push_back(Change::Rewritten);
                    (self.last, self.sight) = (None, FirstSight::Some);
                    news = &news[news.len().saturating_sub(1)..];
                }
            },
        }
        if planted(Bug::TermSkipped) {
            news = &news[news.len().saturating_sub(1)..];
        }
        for entry in news {
            let of_empty = (self.sight == FirstSight::Empty).then_some(1);
            let expected = self.last.as_ref().map(|last| last.number + 1).or(of_empty);
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

    /// Reports the current leader, and not the history. A leader that died is still the last in the log.
    async fn first_look(&mut self, last: Option<&LogEntry>) -> Result<()> {
        let Some(last) = last else {
            self.sight = FirstSight::Empty;
            return Ok(());
        };
        if last.word != Word::Resigned {
            let holders = self.record.holders().await?;
            if holders.iter().any(|(owner, _)| *owner == last.leader.owner) {
                self.changes.push_back(Change::Elected(last.leader.clone()));
            }
        }
        (self.last, self.sight) = (Some(last.clone()), FirstSight::Some);
        Ok(())
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observer").field(&self.record.lock.name).finish()
    }
}
