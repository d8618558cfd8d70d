//! The holder files that this store keeps flocked: one for the process, and one for each hold of work that
//! child processes inherit. Also tells which holders are alive.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::task::{Context, Poll};

use tokio::net::UnixDatagram;

use super::bindings::Bindings;
use super::directory::{Directory, HolderFd, HolderState, Inside};
use super::names::{HolderId, RecordId};
use super::record::FileRecord;
use super::system::unread_messages;
use tenure_core::events::{event, text};
use tenure_core::name::LockName;
use tenure_core::planted::{Bug, planted};
use tenure_core::protocol::Liveness;
use tenure_core::runtime::Runtime;
use tenure_core::store::Failure;

/// This store's holder files and waiters.
#[derive(Debug, Default)]
pub(super) struct HolderFiles {
    process: Option<HolderFile>,
    /// Locks whose records named the process's holder when they were last read.
    bound: BTreeSet<LockName>,
    works: BTreeMap<LockName, BTreeMap<u64, HolderFile>>,
    /// Locks without a queue that this store retries whenever they become free, and whether this process is
    /// in their list of waiting processes.
    asks: BTreeMap<RecordId, bool>,
    /// A socket could not be bound. This process receives no wake-ups and has to poll.
    cannot_be_called: bool,
}

/// An open holder file, flocked until the last process that has it open is gone.
#[derive(Debug)]
struct HolderFile {
    id: HolderId,
    _file: HolderFd,
    /// Receives wake-ups while the process waits.
    socket: Option<UnixDatagram>,
}

impl HolderFile {
    fn create(inside: &Inside<'_>, runtime: &dyn Runtime, inherit: bool) -> Result<Self, Failure> {
        let id = HolderId(runtime.random());
        Ok(Self { id, _file: inside.create_holder(id, inherit)?, socket: None })
    }

    /// Binds the socket unless it exists. Requires a tokio runtime.
    fn listen(&mut self, directory: &Directory) -> io::Result<()> {
        if self.socket.is_none() {
            let socket = directory.bind_socket(self.id)?;
            self.socket = Some(UnixDatagram::from_std(socket)?);
        }
        Ok(())
    }
}

impl HolderFiles {
    /// Binds a hold and returns its holder.
    ///
    /// A new holder becomes effective only when [`settle`](Self::settle) has seen that the record names it.
    pub(super) fn bind(
        &mut self,
        inside: &Inside<'_>,
        runtime: &dyn Runtime,
        name: &LockName,
        (number, bind): (u64, Liveness),
        bindings: &mut Bindings,
    ) -> Result<Option<HolderId>, Failure> {
        let holder = match bind {
            Liveness::Lease => None,
            Liveness::Process => {
                let process = match self.process.take() {
                    Some(process) => process,
                    None => HolderFile::create(inside, runtime, false)?,
                };
                Some(self.process.insert(process).id)
            }
            Liveness::Work => {
                let named = bindings.holder_of(number);
                match self.works.get(name).and_then(|works| works.get(&number)) {
                    Some(work) if Some(work.id) == named => named,
                    _ => {
                        let work = HolderFile::create(inside, runtime, true)?;
                        let id = work.id;
                        if let Some(old) = self.works.entry(name.clone()).or_default().insert(number, work) {
                            inside.remove_holder(old.id);
                        }
                        Some(id)
                    }
                }
            }
        };
        bindings.bind(number, holder);
        Ok(holder)
    }

    /// Opens the socket of the holder of a waiting ticket, so that other processes can wake it.
    pub(super) fn listen(&mut self, directory: &Directory, id: HolderId) {
        let Some(holder) = self.all_mut().find(|holder| holder.id == id) else { return };
        if let Err(error) = holder.listen(directory) {
            self.cannot_be_called = true;
            event!(
                DEBUG,
                target: "tenure",
                "directory_without_socket",
                "no socket in the directory: waiters poll",
                error = text(error)
            );
        }
    }

    /// Registers that this store retries a lock without a queue whenever it becomes free, which requires
    /// wake-ups. Returns whether this process can receive them.
    pub(super) fn begin_to_ask(
        &mut self,
        inside: &Inside<'_>,
        runtime: &dyn Runtime,
        id: RecordId,
    ) -> Result<bool, Failure> {
        self.asks.entry(id).or_default();
        Ok(self.callee(inside, runtime)?.is_some())
    }

    /// The holder whose socket receives this process's wake-ups, if there can be one.
    pub(super) fn callee(
        &mut self,
        inside: &Inside<'_>,
        runtime: &dyn Runtime,
    ) -> Result<Option<HolderId>, Failure> {
        if self.cannot_be_called {
            return Ok(None);
        }
        let process = match self.process.take() {
            Some(process) => process,
            None => HolderFile::create(inside, runtime, false)?,
        };
        let id = self.process.insert(process).id;
        self.listen(inside, id);
        Ok((!self.cannot_be_called).then_some(id))
    }

    pub(super) fn of_process(&self) -> Option<HolderId> {
        self.process.as_ref().map(|process| process.id)
    }

    /// Whether a socket exists, or cannot exist.
    pub(super) fn has_socket(&self) -> bool {
        self.cannot_be_called || self.process.as_ref().is_some_and(|process| process.socket.is_some())
    }

    /// Whether this store retries this lock, which has no queue, whenever it becomes free.
    pub(super) fn asks(&self, id: RecordId) -> bool {
        self.asks.contains_key(&id)
    }

    /// Whether this process is in the lock's list of waiting processes, as far as it knows: a woken process
    /// has been removed from the list.
    pub(super) fn has_come_in(&self, id: RecordId) -> bool {
        self.asks.get(&id).copied().unwrap_or(false)
    }

    pub(super) fn note_come_in(&mut self, id: RecordId, has: bool) {
        if let Some(has_come_in) = self.asks.get_mut(&id) {
            *has_come_in = has;
        }
    }

    /// Forgets the locks that are no longer retried. Returns those whose list may still contain this process.
    pub(super) fn ask_no_more(&mut self, asks: impl Fn(RecordId) -> bool) -> Vec<RecordId> {
        let (kept, over) = std::mem::take(&mut self.asks).into_iter().partition(|(id, _)| asks(*id));
        self.asks = kept;
        let over: BTreeMap<RecordId, bool> = over;
        over.into_iter().filter_map(|(id, has_come_in)| has_come_in.then_some(id)).collect()
    }

    /// Retries the same locks in another directory, where this process is in no list yet.
    pub(super) fn ask_as(&mut self, before: &Self) {
        self.asks = before.asks.keys().map(|id| (*id, false)).collect();
    }

    /// Whether this process cannot receive wake-ups.
    pub(super) fn cannot_be_called(&self) -> bool {
        self.cannot_be_called
    }

    /// Ready when a wake-up has arrived.
    pub(super) fn poll_called(&self, context: &mut Context<'_>) -> Poll<()> {
        let sockets = self.all().filter_map(|holder| holder.socket.as_ref());
        let mut ready = Poll::Pending;
        for socket in sockets {
            if matches!(socket.poll_recv_ready(context), Poll::Ready(Ok(()))) {
                ready = Poll::Ready(());
            }
        }
        ready
    }

    /// Drains the sockets: the locks named by the wake-ups, and whether a socket was full, so that the kernel
    /// may have dropped others. Never blocks.
    pub(super) fn called(&self) -> (BTreeSet<RecordId>, bool) {
        let (mut called, mut may_lack) = (BTreeSet::new(), false);
        for socket in self.all().filter_map(|holder| holder.socket.as_ref()) {
            let (mut message, mut count) = ([0; 64], 0);
            while let Ok(length) = socket.try_recv(&mut message) {
                let text = std::str::from_utf8(&message[..length]);
                called.extend(text.ok().and_then(|text| text.parse::<RecordId>().ok()));
                count += 1;
            }
            may_lack |= count >= unread_messages();
        }
        (called, may_lack)
    }

    fn all(&self) -> impl Iterator<Item = &HolderFile> {
        self.process.iter().chain(self.works.values().flat_map(BTreeMap::values))
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut HolderFile> {
        self.process.iter_mut().chain(self.works.values_mut().flat_map(BTreeMap::values_mut))
    }

    /// Keeps the holder files that the lock's record still names and releases the others. `bindings` are those
    /// just read or written.
    pub(super) fn settle(&mut self, directory: &Directory, name: &LockName, bindings: &Bindings) {
        if self.process.as_ref().is_some_and(|process| bindings.names(process.id)) {
            if !self.bound.contains(name) {
                self.bound.insert(name.clone());
            }
        } else {
            self.bound.remove(name);
        }
        let Some(works) = self.works.get_mut(name) else { return };
        works.retain(|number, work| {
            let is_named = bindings.holder_of(*number) == Some(work.id);
            if !is_named {
                directory.remove_holder(work.id);
            }
            is_named
        });
        if works.is_empty() {
            self.works.remove(name);
        }
    }

    /// Whether this store itself keeps the holder alive.
    pub(super) fn is_mine(&self, id: HolderId) -> bool {
        self.all().any(|holder| holder.id == id)
    }

    /// Whether a holder is certainly dead.
    pub(super) fn is_dead(&self, directory: &Directory, holder: HolderId) -> bool {
        !self.is_mine(holder) && directory.life(holder) == HolderState::Dead && !planted(Bug::DeathIgnored)
    }

    /// The record without the holds and tickets of crashed processes. `None` if nothing is left or it is of
    /// another boot.
    pub(super) fn living(
        &self,
        directory: &Directory,
        record: FileRecord,
    ) -> Result<Option<FileRecord>, Failure> {
        if !self.is_of_this_boot(directory, &record)? {
            return Ok(None);
        }
        Ok(record.without(|holder| self.is_dead(directory, holder)))
    }

    pub(super) fn is_of_this_boot(
        &self,
        directory: &Directory,
        record: &FileRecord,
    ) -> Result<bool, Failure> {
        if record.boot == directory.boot() {
            return Ok(true);
        }
        // No process survives a reboot, so a live holder means that the boot ids differ for another reason.
        let is_alive = |holder| self.is_mine(holder) || directory.life(holder) == HolderState::Alive;
        if record.bindings.iter().any(|(_, holder)| is_alive(holder)) {
            return Err(directory.other_boot());
        }
        Ok(false)
    }

    /// Clean shutdown: removes the process's file if no record names it. A remaining file tells others that
    /// its holds have ended.
    pub(super) fn leave(self, directory: &Directory) {
        if let Some(process) = &self.process
            && self.bound.is_empty()
        {
            directory.remove_holder(process.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::{Arc, mpsc};

    use futures_util::future::FutureExt;

    use super::*;
    use crate::directory::Entered;
    use tenure_core::runtime::Driver;

    #[test]
    fn as_many_calls_as_a_socket_takes_may_not_be_all() {
        let dir = tempfile::tempdir().expect("a directory");
        let driver = Driver::start().expect("a thread");
        let (sender, told) = mpsc::channel();
        let (path, runtime) = (dir.path().to_owned(), Arc::clone(&driver));
        let called = async move {
            let directory = Directory::open(&path).expect("a directory");
            let mut holders = HolderFiles::default();
            let mine = match directory.enter(None) {
                Ok(Entered::Inside(inside)) => holders.callee(&inside, &*runtime),
                _ => panic!("it is locked"),
            };
            let mine = mine.expect("a holder").expect("a socket");
            let ids = ["x", "y"].map(|name| RecordId::of(&LockName::new(name).expect("a name")));
            for count in [2, 2 * unread_messages() + 2] {
                (0..count).for_each(|at| directory.call(mine, ids[at % 2]));
                poll_fn(|context| holders.poll_called(context)).await;
                let (called, may_lack) = holders.called();
                let _ =
                    sender.send((called.into_iter().eq(ids.into_iter().collect::<BTreeSet<_>>()), may_lack));
            }
        };
        Runtime::spawn(&*driver, called.boxed());
        assert_eq!(told.iter().collect::<Vec<_>>(), [(true, false), (true, true)]);
        driver.stop();
    }
}
