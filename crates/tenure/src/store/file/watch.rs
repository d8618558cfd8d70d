//! Who listens, and what the system says about the directory.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::task::{Context, Poll};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::directory::Directory;
use super::record::{HolderId, RecordId};
use crate::protocol::Wake;
use crate::store::Speaker;

/// The listeners of this store, by lock.
#[derive(Debug, Default)]
pub(super) struct Ears(BTreeMap<RecordId, Ear>);

/// The listeners to one lock. One that was dropped is forgotten when the lock is next looked at.
#[derive(Debug, Default)]
struct Ear {
    listeners: Vec<Speaker>,
    /// The tickets that hold, as was told last. Telling them again would make every change of a queue's record, and each
    /// refresh is one, news for everybody.
    told: BTreeSet<u64>,
}

impl Ears {
    pub(super) fn add(&mut self, id: RecordId, listener: Speaker) {
        self.0.entry(id).or_default().listeners.push(listener);
    }

    /// Tells what a request of this store's own has done.
    pub(super) fn tell(&mut self, id: RecordId, wake: &Wake) {
        let Some(ear) = self.0.get_mut(&id) else { return };
        ear.say(wake);
        if let Wake::Granted { tickets } = wake {
            ear.told.extend(tickets);
        }
    }

    /// Tells what a record says; of the tickets that hold, those that are new.
    pub(super) fn tell_news(&mut self, id: RecordId, wake: Wake) {
        let Some(ear) = self.0.get_mut(&id) else { return };
        let Wake::Granted { tickets: holding } = wake else {
            ear.say(&wake);
            return;
        };
        let tickets: Vec<_> = holding.iter().copied().filter(|ticket| !ear.told.contains(ticket)).collect();
        if !tickets.is_empty() {
            ear.say(&Wake::Granted { tickets });
        }
        ear.told = holding.into_iter().collect();
    }

    pub(super) fn tell_all(&mut self, wake: &Wake) {
        for ear in self.0.values() {
            ear.say(wake);
        }
    }

    pub(super) fn has(&self, id: RecordId) -> bool {
        self.0.contains_key(&id)
    }

    /// What is listened to, after forgetting what no longer is.
    pub(super) fn names(&mut self) -> Vec<RecordId> {
        self.0.retain(|_, ear| {
            ear.listeners.retain(|listener| !listener.is_over());
            !ear.listeners.is_empty()
        });
        self.0.keys().copied().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Ear {
    fn say(&self, wake: &Wake) {
        self.listeners.iter().for_each(|listener| listener.say(wake.clone()));
    }
}

/// One inotify object; it watches the directory while somebody listens.
#[derive(Debug)]
pub(super) struct Watch {
    inotify: AsyncFd<OwnedFd>,
    watched: Option<i32>,
}

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// A record was removed or replaced.
    Changed(RecordId),
    /// A process that had a holder file open has closed it; the flock goes at the same time or a moment later.
    HolderClosed,
    /// The directory or its guard was moved or removed.
    Replaced,
    /// The queue was full, and something was dropped.
    Missed,
}

impl Watch {
    /// An inotify object that watches nothing yet. Only within a tokio runtime.
    pub(super) fn new() -> std::io::Result<Self> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for descriptors that do not own what they name; this one does"
        )]
        let inotify = AsyncFd::with_interest(inotify, Interest::READABLE)?;
        Ok(Self { inotify, watched: None })
    }

    /// From here on every change in this directory is seen.
    pub(super) fn begin(&mut self, directory: &Directory) -> Result<(), Errno> {
        if self.watched.is_none() {
            // A release moves the record away; a crash closes the holder's file, which was open for writing.
            let flags = WatchFlags::DELETE
                | WatchFlags::MOVED_FROM
                | WatchFlags::CLOSE_WRITE
                | WatchFlags::DELETE_SELF
                | WatchFlags::MOVE_SELF
                | WatchFlags::ONLYDIR;
            // Through the descriptor: whatever is at the path by now, this is the directory that is in use.
            let path = format!("/proc/self/fd/{}", directory.fd().as_raw_fd());
            self.watched = Some(inotify::add_watch(self.inotify.get_ref(), path, flags)?);
        }
        Ok(())
    }

    pub(super) fn end(&mut self) {
        if let Some(watched) = self.watched.take() {
            let _ = inotify::remove_watch(self.inotify.get_ref(), watched);
        }
    }

    /// Ready when there is something to [`read`](Self::read).
    pub(super) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        match self.inotify.poll_read_ready(context) {
            Poll::Ready(Ok(mut ready)) => {
                // The queue is read until it is empty, so what comes after this is announced again.
                ready.clear_ready();
                Poll::Ready(())
            }
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }

    /// What was seen since the last call. Never waits.
    pub(super) fn read(&self) -> Vec<Seen> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(self.inotify.get_ref(), &mut buffer);
        let mut seen = Vec::new();
        while let Ok(event) = reader.next() {
            let events = event.events();
            if events.contains(ReadFlags::QUEUE_OVERFLOW) {
                seen.push(Seen::Missed);
                continue;
            }
            if Some(event.wd()) != self.watched {
                continue; // said of a watch that has ended
            }
            if events.intersects(
                ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT,
            ) {
                seen.push(Seen::Replaced);
                continue;
            }
            let Some(name) = event.file_name().and_then(|name| name.to_str().ok()) else { continue };
            if events.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
                if let Ok(id) = name.parse() {
                    seen.push(Seen::Changed(id));
                } else if name == "guard" {
                    seen.push(Seen::Replaced);
                }
            } else if name.parse::<HolderId>().is_ok() {
                seen.push(Seen::HolderClosed);
            }
        }
        seen
    }
}
