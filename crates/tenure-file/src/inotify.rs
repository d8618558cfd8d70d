//! The watch that reports changes of the directory: inotify on Linux.
//!
//! Other systems have none. There a process looks at the directory from time to time, as it does on Linux when
//! the kernel gives no inotify instance.

use super::names::RecordId;

#[cfg(all(target_os = "linux", not(tenure_portable)))]
pub(super) use linux::DirectoryWatch;
#[cfg(not(all(target_os = "linux", not(tenure_portable))))]
pub(super) use portable::DirectoryWatch;

/// A change that a watch reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(all(target_os = "linux", not(tenure_portable))),
    expect(dead_code, reason = "nothing watches")
)]
pub(super) enum DirectoryEvent {
    /// A record was removed or replaced.
    Changed(RecordId),
    /// A process closed a holder file; its flock is released at the same time or a moment later.
    HolderClosed,
    /// The directory or its guard was moved or removed.
    Replaced,
    /// The event queue overflowed and events were lost.
    Missed,
}

#[cfg(all(target_os = "linux", not(tenure_portable)))]
mod linux {
    use std::collections::{BTreeMap, BTreeSet};
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::task::{Context, Poll};

    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
    use rustix::io::Errno;
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use super::DirectoryEvent;
    use crate::directory::Directory;
    use crate::names::HolderId;

    /// Maximum holders watched with inotify. Periodic looks notice the others.
    const HOLDERS: usize = 64;

    /// One inotify instance. It watches the directory while a listener depends on it, and the files of the
    /// holders ahead of this process's tickets.
    #[derive(Debug)]
    pub(crate) struct DirectoryWatch {
        inotify: AsyncFd<OwnedFd>,
        watched: Option<i32>,
        holders: BTreeMap<HolderId, i32>,
    }

    impl DirectoryWatch {
        /// An inotify instance without watches. Requires a tokio runtime.
        pub(crate) fn new() -> std::io::Result<Self> {
            let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            #[expect(
                deprecated,
                reason = "its successor is unsafe, for descriptors that do not own what they name; this one does"
            )]
            let inotify = AsyncFd::with_interest(inotify, Interest::READABLE)?;
            Ok(Self { inotify, watched: None, holders: BTreeMap::new() })
        }

        /// Watches the directory from now on.
        pub(crate) fn begin(&mut self, directory: &Directory) -> Result<(), Errno> {
            if self.watched.is_none() {
                // A release moves the record away; a crash closes the holder's file, which was open for writing.
                let flags = WatchFlags::DELETE
                    | WatchFlags::MOVED_FROM
                    | WatchFlags::CLOSE_WRITE
                    | WatchFlags::DELETE_SELF
                    | WatchFlags::MOVE_SELF
                    | WatchFlags::ONLYDIR;
                // Through the descriptor, to watch the directory in use even if the path has changed.
                let path = directory.by_descriptor(".");
                self.watched = Some(inotify::add_watch(self.inotify.get_ref(), path, flags)?);
            }
            Ok(())
        }

        /// Watches the files of exactly these holders.
        pub(crate) fn watch_holders(&mut self, directory: &Directory, holders: &BTreeSet<HolderId>) {
            let inotify = self.inotify.get_ref();
            self.holders.retain(|holder, watched| {
                let stays = holders.contains(holder);
                if !stays {
                    let _ = inotify::remove_watch(inotify, *watched);
                }
                stays
            });
            for holder in holders {
                if self.holders.len() >= HOLDERS {
                    return;
                }
                if !self.holders.contains_key(holder) {
                    let path = directory.by_descriptor(&holder.to_string());
                    // If the file is gone already, the look that follows notices.
                    if let Ok(watched) = inotify::add_watch(inotify, path, WatchFlags::CLOSE_WRITE) {
                        self.holders.insert(*holder, watched);
                    }
                }
            }
        }

        /// Whether it watches anything.
        pub(crate) fn is_active(&self) -> bool {
            self.watched.is_some() || !self.holders.is_empty()
        }

        /// Removes all watches.
        pub(crate) fn end(&mut self) {
            for (_, watched) in std::mem::take(&mut self.holders) {
                let _ = inotify::remove_watch(self.inotify.get_ref(), watched);
            }
            self.end_directory();
        }

        /// Removes the watch of the directory.
        pub(crate) fn end_directory(&mut self) {
            if let Some(watched) = self.watched.take() {
                let _ = inotify::remove_watch(self.inotify.get_ref(), watched);
            }
        }

        /// Ready when there is something to [`read`](Self::read).
        pub(crate) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
            match self.inotify.poll_read_ready(context) {
                Poll::Ready(Ok(mut ready)) => {
                    // [`read`](Self::read) drains the queue, so later events make it ready again.
                    ready.clear_ready();
                    Poll::Ready(())
                }
                Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
            }
        }

        /// The events since the last call. Never blocks.
        pub(crate) fn read(&self) -> Vec<DirectoryEvent> {
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut reader = Reader::new(self.inotify.get_ref(), &mut buffer);
            let mut seen = Vec::new();
            while let Ok(event) = reader.next() {
                let events = event.events();
                if events.contains(ReadFlags::QUEUE_OVERFLOW) {
                    seen.push(DirectoryEvent::Missed);
                    continue;
                }
                if Some(event.wd()) != self.watched {
                    if self.holders.values().any(|watched| *watched == event.wd()) {
                        seen.push(DirectoryEvent::HolderClosed);
                    }
                    continue; // else the event belongs to a watch that has ended
                }
                if events.intersects(
                    ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT,
                ) {
                    seen.push(DirectoryEvent::Replaced);
                    continue;
                }
                let Some(name) = event.file_name().and_then(|name| name.to_str().ok()) else { continue };
                if events.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
                    if let Ok(id) = name.parse() {
                        seen.push(DirectoryEvent::Changed(id));
                    } else if name == "guard" {
                        seen.push(DirectoryEvent::Replaced);
                    }
                } else if name.parse::<HolderId>().is_ok() {
                    seen.push(DirectoryEvent::HolderClosed);
                }
            }
            seen
        }
    }
}

#[cfg(not(all(target_os = "linux", not(tenure_portable))))]
mod portable {
    use std::collections::BTreeSet;
    use std::io;
    use std::task::{Context, Poll};

    use rustix::io::Errno;

    use super::DirectoryEvent;
    use crate::directory::Directory;
    use crate::names::HolderId;

    /// A watch on a system without one.
    #[derive(Debug)]
    pub(crate) enum DirectoryWatch {}

    impl DirectoryWatch {
        pub(crate) fn new() -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(crate) fn begin(&mut self, _: &Directory) -> Result<(), Errno> {
            match *self {}
        }

        pub(crate) fn watch_holders(&mut self, _: &Directory, _: &BTreeSet<HolderId>) {
            match *self {}
        }

        pub(crate) fn is_active(&self) -> bool {
            match *self {}
        }

        pub(crate) fn end(&mut self) {
            match *self {}
        }

        pub(crate) fn end_directory(&mut self) {
            match *self {}
        }

        pub(crate) fn poll_ready(&self, _: &mut Context<'_>) -> Poll<()> {
            match *self {}
        }

        pub(crate) fn read(&self) -> Vec<DirectoryEvent> {
            match *self {}
        }
    }
}
