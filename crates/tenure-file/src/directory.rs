//! The directory, its guard and its files. Knows nothing about locks.
//!
//! All paths are relative to one open descriptor of the directory. Everything that changes a file is a method
//! of [`Inside`], which exists only while this process has the guard's flock.

use std::cell::{Cell, RefCell};
use std::fs::DirBuilder;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::buffer::spare_capacity;
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat, chmodat, flock, fstat, ftruncate, openat,
    renameat, statat, unlinkat,
};
use rustix::io::{Errno, pread, pwrite, read, write};

use super::error::{failed, unusable};
use super::inherited::UninheritedFile;
use super::names::{HolderId, RecordId, socket_name};
use super::record::{FileRecord, Ledger, MAX_BYTES};
use super::system::{boot_id, by_descriptor, errno, exchange, reserve, warn_of_network};
use tenure_core::planted::crash_point;
use tenure_core::store::Failure;

const GUARD: &str = "guard";
/// One name is enough because it is written only under the guard. Between two writes it is the most recently
/// removed record.
const TEMP: &str = "temp";
/// Group permissions are left to the umask; nobody else needs a lock file.
const MODE: Mode = Mode::from_raw_mode(0o660);
/// A record up to this size is overwritten whole even by a process that is killed meanwhile.
const PAGE: usize = 4_096;

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    dir: OwnedFd,
    guard: UninheritedFile,
    guard_path: PathBuf,
    /// Device and inode of the guard. A different file at its path means a different store.
    place: (u64, u64),
    boot: String,
    /// The file that was written last, possibly renamed since. Checking that it is the same file is faster
    /// than reopening it.
    kept: RefCell<Option<OpenFile>>,
    /// The waiter file that was used last. It stays open because closing a file that was open for writing
    /// notifies every process that watches the directory.
    waiters: RefCell<Option<(String, Arc<OwnedFd>)>>,
    /// Files are known to be writable here.
    is_proven: Cell<bool>,
    /// The socket that wake-ups are sent from, created by the first one.
    caller: OnceLock<UnixDatagram>,
}

/// An open file and its identity.
#[derive(Debug)]
struct OpenFile {
    file: OwnedFd,
    place: (u64, u64),
}

#[derive(Debug)]
pub(super) struct Entries {
    pub(super) records: Vec<RecordId>,
    pub(super) holders: Vec<HolderId>,
    pub(super) spares: Vec<RecordId>,
    pub(super) waits: Vec<RecordId>,
}

/// Outcome of entering the directory.
pub(super) enum Entered<'a> {
    Inside(Inside<'a>),
    /// Another process has the guard.
    Locked,
    /// The path leads to another directory, or to none.
    Replaced,
}

/// The directory while this process has its guard.
pub(super) struct Inside<'a> {
    directory: &'a Directory,
    fence: u64,
    locked: Option<HeldGuard>,
}

/// The guard's flock, taken through a separate open file and released on drop.
#[derive(Debug)]
pub(super) struct HeldGuard(UninheritedFile);

impl HeldGuard {
    /// Waits for the lock in the kernel's queue, which is first come, first served. Blocks.
    pub(super) fn wait(self) -> Result<Self, Errno> {
        loop {
            match flock(&self.0, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                locked => return locked.map(|()| self),
            }
        }
    }
}

impl Drop for HeldGuard {
    /// A child that was forked meanwhile keeps the file open, and with it a flock that is only closed.
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// What a record is written over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replaced {
    Nothing,
    Record,
}

/// The open file of a holder.
#[derive(Debug)]
pub(super) enum HolderFd {
    Own(UninheritedFile),
    Inherited(OwnedFd),
}

impl AsFd for HolderFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(file) => file.as_fd(),
            Self::Inherited(file) => file.as_fd(),
        }
    }
}

/// The state of a holder, according to its flocked file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HolderState {
    Alive,
    Dead,
    /// The file is gone. That does not prove the holder dead, so its lease decides.
    Gone,
    /// The file cannot be opened, for lack of permission or of descriptors, so the lease decides.
    Unknown,
}

impl Directory {
    /// Opens the directory, creating it if it is missing.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let open = || rustix::fs::open(path, flags, Mode::empty());
        let dir = match open() {
            Err(Errno::NOENT) => {
                let create = DirBuilder::new().recursive(true).mode(0o700).create(path);
                create.map_err(|error| failed("create the directory", path, errno(&error)))?;
                crash_point();
                open()
            }
            opened => opened,
        };
        let dir = dir.map_err(|errno| failed("open the directory", path, errno))?;
        let guard_path = path.join(GUARD);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let guard = openat(&dir, GUARD, flags, MODE)
            .map(UninheritedFile::new)
            .map_err(|errno| failed("open the guard file", &guard_path, errno))?;
        crash_point();
        let stat = fstat(&guard).map_err(|errno| failed("look at the guard file", &guard_path, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(unusable(
                &guard_path,
                "is not a regular file: remove it, or use another directory for the store",
            ));
        }
        warn_of_network(&dir, path);
        let boot = boot_id()?;
        let (place, kept, caller) = (place_of(&stat), RefCell::default(), OnceLock::new());
        let (path, waiters, is_proven) = (path.to_owned(), RefCell::default(), Cell::new(false));
        Ok(Self { path, dir, guard, guard_path, place, boot, kept, waiters, is_proven, caller })
    }

    /// The guard, opened once more for [`HeldGuard::wait`].
    pub(super) fn guard_to_wait_for(&self) -> Option<HeldGuard> {
        // `enter` finds out if another file stands there by now. Read-only, because closing a file that was open for
        // writing notifies every process that watches the directory.
        rustix::fs::open(self.by_descriptor(GUARD), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .ok()
            .map(|guard| HeldGuard(UninheritedFile::new(guard)))
    }

    /// Enters with the flock that was waited for, or takes the guard if it is free. Never blocks.
    pub(super) fn enter(&self, locked: Option<HeldGuard>) -> Result<Entered<'_>, Failure> {
        // The directory may have been replaced during the wait.
        let is_of_this =
            |locked: &HeldGuard| fstat(&locked.0).is_ok_and(|stat| place_of(&stat) == self.place);
        let locked = locked.filter(is_of_this);
        if locked.is_none() {
            match flock(&self.guard, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                // A process that was stopped may have the guard of a directory that was replaced since.
                Err(Errno::WOULDBLOCK) if !self.is_in_place()? => return Ok(Entered::Replaced),
                Err(Errno::WOULDBLOCK) => return Ok(Entered::Locked),
                Err(errno) => return Err(failed("lock", &self.guard_path, errno)),
            }
        }
        crash_point();
        let mut inside = Inside { directory: self, fence: 0, locked };
        if !self.is_in_place()? {
            return Ok(Entered::Replaced);
        }
        let mut bytes = [0; 256];
        let length = pread(&self.guard, &mut bytes[..], 0)
            .map_err(|errno| failed("read the guard file", &self.guard_path, errno))?;
        match Ledger::decode(&bytes[..length]) {
            Ok(Some(ledger)) if ledger.boot == self.boot => inside.fence = ledger.fence,
            Ok(Some(ledger)) => {
                inside.clear()?;
                inside.set_fence(ledger.fence)?;
            }
            Ok(None) => inside.set_fence(0)?,
            Err(damage) => return Err(unusable(&self.guard_path, &damage.of_ledger())),
        }
        Ok(Entered::Inside(inside))
    }

    /// Whether the path still leads to this directory.
    pub(super) fn is_in_place(&self) -> Result<bool, Failure> {
        match rustix::fs::stat(&self.guard_path) {
            Ok(stat) => Ok(place_of(&stat) == self.place),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(failed("look at the guard file", &self.guard_path, errno)),
        }
    }

    /// The length of a file, if it exists.
    pub(super) fn length(&self, file: &str) -> Option<u64> {
        statat(&self.dir, file, AtFlags::SYMLINK_NOFOLLOW).ok()?.st_size.try_into().ok()
    }

    /// The content of a record file, if it exists.
    pub(super) fn read_file(&self, file: &str) -> Result<Option<Vec<u8>>, Failure> {
        let broken = |errno| failed("read the record", &self.path.join(file), errno);
        if let Some(kept) = &*self.kept.borrow() {
            match statat(&self.dir, file, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if place_of(&stat) == kept.place && stat.st_size as usize <= MAX_BYTES => {
                    let mut bytes = vec![0; stat.st_size as usize];
                    let length = pread(&kept.file, &mut bytes[..], 0).map_err(broken)?;
                    bytes.truncate(length);
                    return Ok(Some(bytes));
                }
                Err(Errno::NOENT) => return Ok(None),
                // Opening the file below reports the problem.
                Ok(_) | Err(_) => {}
            }
        }
        let open = match self.open_file(file, false) {
            Ok(open) => open,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(broken(errno)),
        };
        let mut bytes = Vec::with_capacity(1024);
        while bytes.len() <= MAX_BYTES {
            let length = read(&open, spare_capacity(&mut bytes)).map_err(broken)?;
            if length == 0 || bytes.len() < bytes.capacity() {
                break;
            }
            bytes.reserve(bytes.len());
        }
        Ok(Some(bytes))
    }

    pub(super) fn open_file(&self, file: &str, write: bool) -> Result<OwnedFd, Errno> {
        let flags = if write { OFlags::RDWR } else { OFlags::RDONLY };
        openat(&self.dir, file, flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
    }

    /// The path of a file, for messages.
    pub(super) fn path_of(&self, file: &str) -> PathBuf {
        self.path.join(file)
    }

    /// Error for a record whose name does not match its file.
    pub(super) fn misplaced(&self, id: RecordId, record: &FileRecord) -> Failure {
        let why = format!(
            "is the record of another lock, {}: once no process holds either, remove the file",
            record.name.quoted()
        );
        unusable(&self.path.join(id.to_string()), &why)
    }

    /// Whether a holder is alive: its file is flocked for as long as a process has it open.
    pub(super) fn life(&self, holder: HolderId) -> HolderState {
        let file = match self.open_file(&holder.to_string(), false) {
            Ok(file) => file,
            Err(Errno::NOENT) => return HolderState::Gone,
            Err(_) => return HolderState::Unknown,
        };
        // A shared lock, so that two processes that test at the same time do not take each other for the
        // holder.
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => HolderState::Dead,
            Err(Errno::WOULDBLOCK) => HolderState::Alive,
            Err(_) => HolderState::Unknown,
        }
    }

    /// All records and holders, sorted by file name, and all waiter files.
    pub(super) fn entries(&self) -> Result<Entries, Failure> {
        let broken = |errno| failed("read the directory", &self.path, errno);
        let (mut records, mut holders) = (Vec::new(), Vec::new());
        let (mut spares, mut waits) = (Vec::new(), Vec::new());
        for entry in Dir::read_from(&self.dir).map_err(broken)? {
            let entry = entry.map_err(broken)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if let Ok(record) = name.parse() {
                records.push(record);
            } else if let Ok(holder) = name.parse() {
                holders.push(holder);
            } else {
                spares.extend(RecordId::of_spare(name));
                waits.extend(RecordId::of_waits(name));
            }
        }
        records.sort_unstable();
        holders.sort_unstable();
        Ok(Entries { records, holders, spares, waits })
    }

    /// Modification times of the directory (a file was created, renamed or removed), of the guard (a token
    /// was issued) and of the waiter file in use.
    pub(super) fn modified(&self) -> Option<[(i64, u64); 3]> {
        #[allow(clippy::unnecessary_cast, reason = "other systems have other types")]
        let time_of =
            |file: BorrowedFd<'_>| fstat(file).map(|stat| (stat.st_mtime as i64, stat.st_mtime_nsec as u64));
        let waiters = self.waiters.borrow().as_ref().and_then(|(_, file)| time_of(file.as_fd()).ok());
        Some([
            time_of(self.dir.as_fd()).ok()?,
            time_of(self.guard.as_fd()).ok()?,
            waiters.unwrap_or_default(),
        ])
    }

    /// Iterates over all names in the directory.
    pub(super) fn names(&self) -> Result<Dir, Failure> {
        Dir::read_from(&self.dir).map_err(|errno| failed("read the directory", &self.path, errno))
    }

    /// Removes the files of a holder. Needs no guard, because only its own process creates files with these
    /// names.
    pub(super) fn remove_holder(&self, holder: HolderId) {
        let _ = unlinkat(&self.dir, socket_name(holder), AtFlags::empty());
        crash_point();
        let _ = unlinkat(&self.dir, holder.to_string(), AtFlags::empty());
        crash_point();
    }

    /// Binds the socket on which the holder's process receives wake-ups.
    pub(super) fn bind_socket(&self, holder: HolderId) -> io::Result<UnixDatagram> {
        let name = socket_name(holder);
        let socket = UnixDatagram::bind(self.by_descriptor(&name))?;
        crash_point();
        socket.set_nonblocking(true)?;
        // Every user of the directory may send; a message costs the receiver one look.
        chmodat(&self.dir, name, MODE, AtFlags::empty())?;
        Ok(socket)
    }

    /// Sends the holder's process a wake-up about this lock. Never blocks: a process whose socket is full is
    /// about to look anyway, and one without a socket notices at its next refresh.
    pub(super) fn call(&self, holder: HolderId, id: RecordId) {
        let caller = match self.caller.get() {
            Some(caller) => caller,
            None => {
                let caller = UnixDatagram::unbound();
                let Ok(caller) = caller.and_then(|caller| caller.set_nonblocking(true).map(|()| caller))
                else {
                    return;
                };
                self.caller.get_or_init(|| caller)
            }
        };
        let (message, to) = (id.to_string(), self.by_descriptor(&socket_name(holder)));
        let sent = caller.send_to(message.as_bytes(), &to);
        // What processes have not read fills the buffer of the sending socket.
        if sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            && let Ok(other) = UnixDatagram::unbound()
            && other.set_nonblocking(true).is_ok()
        {
            let _ = other.send_to(message.as_bytes(), &to);
        }
    }

    /// A path to a file of this directory that fits into a socket address and stays valid if the directory is
    /// moved or replaced.
    pub(super) fn by_descriptor(&self, name: &str) -> String {
        by_descriptor(&self.dir, &self.path, name)
    }

    /// The boot whose clock counts this directory's leases.
    pub(super) fn boot(&self) -> &str {
        &self.boot
    }

    /// Whether this lock has a record, readable or not.
    pub(super) fn has(&self, id: RecordId) -> bool {
        statat(&self.dir, id.to_string(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Error for a lock whose record has reached its maximum size.
    pub(super) fn full(&self, id: RecordId) -> Failure {
        unusable(&self.path.join(id.to_string()), "is full: this lock has too many waiters or holders")
    }

    /// Error for records of another boot with live holders, as between containers that each have their own
    /// boot id.
    pub(super) fn other_boot(&self) -> Failure {
        unusable(
            &self.path,
            "is in use by processes that see another boot id, such as those of another container: \
             use a directory of this container's own",
        )
    }
}

impl Inside<'_> {
    /// The last token issued.
    pub(super) fn fence(&self) -> u64 {
        self.fence
    }

    /// Writes the counter with one write within one block, so a killed process leaves the old or the new
    /// value.
    pub(super) fn set_fence(&mut self, fence: u64) -> Result<(), Failure> {
        let text = Ledger { boot: self.boot.clone(), fence }.encode();
        let length = pwrite(&self.guard, text.as_bytes(), 0)
            .map_err(|errno| failed("write the guard file", &self.guard_path, errno))?;
        if length < text.len() {
            return Err(failed("write the guard file", &self.guard_path, Errno::NOSPC));
        }
        self.fence = fence;
        crash_point();
        Ok(())
    }

    /// Writes a record atomically, over one of `before` bytes or as a new file.
    ///
    /// A record of more than a page cannot be overwritten safely on a full disk. It has a spare file, with which it
    /// is exchanged. Both have the space of the record, so a full disk refuses what makes it longer, and neither a
    /// renewal nor a release.
    pub(super) fn write(&self, id: RecordId, record: &str, before: Option<usize>) -> Result<(), Failure> {
        let (file, spare) = (id.to_string(), id.spare());
        let over = if before.is_some() { Replaced::Record } else { Replaced::Nothing };
        if record.len() <= PAGE {
            self.write_by(TEMP, &file, record.as_bytes(), over)?;
            self.remove_spare(id, before);
            return Ok(());
        }
        let written = self.write_long(&file, &spare, record, before);
        if written.is_err() && before.is_none() {
            let _ = self.remove_file(&spare);
        }
        written
    }

    /// Writes a record of more than a page.
    fn write_long(
        &self,
        file: &str,
        spare: &str,
        record: &str,
        before: Option<usize>,
    ) -> Result<(), Failure> {
        let (temp, over) = match before {
            Some(_) => (spare, Replaced::Record),
            None => (TEMP, Replaced::Nothing),
        };
        if before.is_none_or(|before| record.len() > before) {
            // A page more, for a renewal that adds a digit.
            let length = record.len() + PAGE;
            let reserved = self.open_temp(spare).and_then(|(spare, _)| reserve(&spare.file, length));
            let reserved = reserved.and_then(|()| match before {
                Some(_) => reserve(&self.open_file(file, true)?, length),
                None => reserve(&self.open_temp(temp)?.0.file, length),
            });
            reserved.map_err(|errno| failed("write", &self.path.join(spare), errno))?;
        }
        self.write_by(temp, file, record.as_bytes(), over)
    }

    /// Removes the spare file of a record that had `before` bytes. One that stays costs its space until the sweep.
    fn remove_spare(&self, id: RecordId, before: Option<usize>) {
        if before.is_some_and(|before| before > PAGE) {
            let _ = self.remove_file(&id.spare());
        }
    }

    /// Writes a record file atomically.
    pub(super) fn write_file(&self, file: &str, record: &[u8], over: Replaced) -> Result<(), Failure> {
        self.write_by(TEMP, file, record, over)
    }

    fn write_by(&self, temp: &str, file: &str, record: &[u8], over: Replaced) -> Result<(), Failure> {
        match self.write_temp(temp, record) {
            // On a full disk the existing record keeps its space, so that a hold can still be renewed and
            // released.
            Err(Errno::NOSPC | Errno::DQUOT)
                if over == Replaced::Record && self.write_in_place(file, record).is_ok() =>
            {
                return Ok(());
            }
            written => written.map_err(|errno| {
                let _ = unlinkat(&self.dir, temp, AtFlags::empty());
                failed("write", &self.path.join(temp), errno)
            })?,
        }
        crash_point();
        // Exchange the two files, so that the old record becomes the next temp file.
        let exchanged = match over {
            Replaced::Record => exchange(&self.dir, temp, file),
            Replaced::Nothing => false,
        };
        match exchanged {
            true => Ok(()),
            false => renameat(&self.dir, temp, &self.dir, file),
        }
        .map_err(|errno| failed("replace the record", &self.path.join(file), errno))?;
        crash_point();
        Ok(())
    }

    /// Removes a record of `before` bytes, which frees the lock. The file is kept as the temp file, because
    /// creating and unlinking a file would take most of the time of an acquisition.
    pub(super) fn remove(&self, id: RecordId, before: usize) -> Result<(), Failure> {
        match renameat(&self.dir, id.to_string(), &self.dir, TEMP) {
            Ok(()) | Err(Errno::NOENT) => {
                crash_point();
                self.remove_spare(id, Some(before));
                Ok(())
            }
            Err(errno) => Err(failed("remove the record", &self.path.join(id.to_string()), errno)),
        }
    }

    /// Removes a record file, if it exists.
    pub(super) fn remove_file(&self, file: &str) -> Result<(), Failure> {
        match unlinkat(&self.dir, file, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {
                crash_point();
                Ok(())
            }
            Err(errno) => Err(failed("remove the record", &self.path.join(file), errno)),
        }
    }

    /// Writes a temp file, which must have no other link.
    fn write_temp(&self, temp: &str, text: &[u8]) -> Result<(), Errno> {
        let (temp, length) = self.open_temp(temp)?;
        let mut kept = self.kept.borrow_mut();
        let temp = kept.insert(temp);
        let mut written = 0;
        while written < text.len() {
            crash_point();
            written += pwrite(&temp.file, &text[written..], written as u64)?;
        }
        crash_point();
        if length > text.len() { ftruncate(&temp.file, text.len() as u64) } else { Ok(()) }
    }

    /// A temp file and its length.
    fn open_temp(&self, temp: &str) -> Result<(OpenFile, usize), Errno> {
        let is_fit = |stat: &Stat| FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_nlink == 1;
        let found = statat(&self.dir, temp, AtFlags::SYMLINK_NOFOLLOW);
        let kept = self.kept.take();
        if let (Ok(stat), Some(kept)) = (&found, kept)
            && kept.place == place_of(stat)
            && is_fit(stat)
        {
            return Ok((kept, stat.st_size as usize));
        }
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open =
            || openat(&self.dir, temp, flags, Mode::empty()).and_then(|file| Ok((fstat(&file)?, file)));
        match found.and_then(|_| open()) {
            Ok((stat, file)) if is_fit(&stat) => {
                Ok((OpenFile { file, place: place_of(&stat) }, stat.st_size as usize))
            }
            // It is missing, or it belongs to another user or has other links: create a new one.
            _ => {
                let file = self.create(temp, OFlags::CLOEXEC)?;
                let place = place_of(&fstat(&file)?);
                Ok((OpenFile { file, place }, 0))
            }
        }
    }

    /// Overwrites a record in place, for a full disk. A process killed during the write leaves a record of up
    /// to one page intact; a longer one may be damaged.
    fn write_in_place(&self, file: &str, record: &[u8]) -> Result<(), Errno> {
        let file = self.open_file(file, true)?;
        let stat = fstat(&file)?;
        let (length, space) = (stat.st_size as usize, stat.st_blocks as u64 * 512);
        if record.len() > length && record.len() as u64 > space {
            return Err(Errno::NOSPC);
        }
        let mut written = 0;
        while written < record.len() {
            written += pwrite(&file, &record[written..], written as u64)?;
        }
        crash_point();
        if length > record.len() { ftruncate(&file, record.len() as u64) } else { Ok(()) }
    }

    /// Opens a waiter file.
    pub(super) fn open_waiters(&self, name: &str, create: bool) -> Result<Arc<OwnedFd>, Errno> {
        let mut waiters = self.waiters.borrow_mut();
        if let Some((_, file)) = waiters.as_ref().filter(|(known, _)| known == name)
            && let Ok(stat) = statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW)
            && fstat(file).is_ok_and(|known| place_of(&known) == place_of(&stat))
        {
            return Ok(Arc::clone(file));
        }
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let flags = if create { flags | OFlags::CREATE } else { flags };
        let file = Arc::new(openat(&self.dir, name, flags, MODE)?);
        crash_point();
        *waiters = Some((name.to_owned(), Arc::clone(&file)));
        Ok(file)
    }

    /// Whether records are known to be writable.
    pub(super) fn is_proven(&self) -> bool {
        self.is_proven.get()
    }

    /// Creates and flocks the file of a holder. Under the guard, so that no process sees it before it is
    /// flocked. Child processes keep the file open if they `inherit` it.
    pub(super) fn create_holder(&self, holder: HolderId, inherit: bool) -> Result<HolderFd, Failure> {
        let name = holder.to_string();
        let broken = |errno| failed("create the holder file", &self.path.join(&name), errno);
        let flags = if inherit { OFlags::empty() } else { OFlags::CLOEXEC };
        let file = self.create(&name, flags).map_err(broken)?;
        let file = match inherit {
            true => HolderFd::Inherited(file),
            false => HolderFd::Own(UninheritedFile::new(file)),
        };
        crash_point();
        flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive).map_err(|errno| {
            self.remove_holder(holder);
            broken(errno)
        })?;
        crash_point();
        Ok(file)
    }

    /// Proves once that records can be written. A waiting process checks repeatedly whether the store
    /// answers, and after the first time entering the guard is enough.
    pub(super) fn probe(&self) -> Result<(), Failure> {
        if self.is_proven.get() {
            return Ok(());
        }
        let written = self.create(TEMP, OFlags::CLOEXEC).and_then(|temp| write(&temp, self.boot.as_bytes()));
        self.remove_temp();
        self.is_proven.set(written.is_ok());
        written.map(drop).map_err(|errno| failed("write", &self.path.join(TEMP), errno))
    }

    /// Frees everything after a reboot. No process survives a reboot, so a live holder proves that there was
    /// none.
    fn clear(&self) -> Result<(), Failure> {
        let Entries { records, holders, spares, waits } = self.entries()?;
        if holders.iter().any(|holder| self.life(*holder) == HolderState::Alive) {
            return Err(self.other_boot());
        }
        for record in records {
            self.remove_file(&record.to_string())?;
        }
        spares.into_iter().try_for_each(|id| self.remove_file(&id.spare()))?;
        waits.into_iter().try_for_each(|id| self.remove_file(&id.waits()))?;
        holders.into_iter().for_each(|holder| self.remove_holder(holder));
        Ok(())
    }

    /// Creates a file, replacing one that a killed process left under this name.
    fn create(&self, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        match openat(&self.dir, name, flags, MODE) {
            Err(Errno::EXIST) => {
                unlinkat(&self.dir, name, AtFlags::empty())?;
                crash_point();
                openat(&self.dir, name, flags, MODE)
            }
            other => other,
        }
    }

    fn remove_temp(&self) {
        let _ = unlinkat(&self.dir, TEMP, AtFlags::empty());
    }
}

#[allow(clippy::unnecessary_cast, reason = "other systems have other types")]
fn place_of(stat: &Stat) -> (u64, u64) {
    (stat.st_dev as u64, stat.st_ino as u64)
}

impl Deref for Inside<'_> {
    type Target = Directory;
    fn deref(&self) -> &Directory {
        self.directory
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if self.locked.take().is_none() {
            let _ = flock(&self.directory.guard, FlockOperation::Unlock);
        }
        crash_point();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_of_another_guard_is_none_of_this_one() {
        let [one, other] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let open = |path| Directory::open(path).expect("a directory");
        let (before, here, beside) = (open(one.path()), open(other.path()), open(other.path()));
        let wait = |of: &Directory| of.guard_to_wait_for().expect("a guard").wait().expect("its lock");
        let inside = beside.enter(None);
        assert!(matches!(inside, Ok(Entered::Inside(_))));
        assert!(matches!(here.enter(Some(wait(&before))), Ok(Entered::Locked)));
        drop(inside);
        assert!(matches!(here.enter(Some(wait(&here))), Ok(Entered::Inside(_))));
    }
}
