//! The descriptors whose flocks a forked child shares with its parent. The child must close them, because a flock
//! lasts for as long as any process has its file open.
//!
//! A child may read the list no matter what other threads of its parent did at the fork: there is no mutex.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

const FREE: RawFd = -1;
const PLACES: usize = 32;

/// A list that grows by blocks, which stay.
struct Block {
    places: [AtomicI32; PLACES],
    next: OnceLock<Box<Self>>,
}

static FIRST: Block = Block::new();

impl Block {
    const fn new() -> Self {
        Self { places: [const { AtomicI32::new(FREE) }; PLACES], next: OnceLock::new() }
    }

    fn add(&'static self, fd: RawFd) -> &'static AtomicI32 {
        let mut block = self;
        loop {
            let take = |place: &&AtomicI32| {
                place.compare_exchange(FREE, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            };
            if let Some(place) = block.places.iter().find(take) {
                return place;
            }
            block = block.next.get_or_init(|| Box::new(Self::new()));
        }
    }
}

/// A file that a child of this process must not keep open.
#[derive(Debug)]
pub(super) struct UninheritedFile {
    /// Freed before the file is closed, because another file may then get its number.
    place: &'static AtomicI32,
    file: OwnedFd,
}

impl UninheritedFile {
    pub(super) fn new(file: OwnedFd) -> Self {
        Self { place: FIRST.add(file.as_raw_fd()), file }
    }
}

impl AsFd for UninheritedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for UninheritedFile {
    fn drop(&mut self) {
        let fd = self.file.as_raw_fd();
        // It is free already in a child that took the list.
        let _ = self.place.compare_exchange(fd, FREE, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Empties the list in a child that inherited it by a fork, and returns the descriptors. The child has to close
/// them before it uses any store. They are those of the guards of directories, and of the holds that are to end
/// with the parent.
pub fn take_inherited_files() -> Vec<RawFd> {
    let mut found = Vec::new();
    let mut block = Some(&FIRST);
    while let Some(Block { places, next }) = block {
        found.extend(places.iter().map(|place| place.swap(FREE, Ordering::AcqRel)).filter(|fd| *fd != FREE));
        block = next.get().map(|next| &**next);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_are_taken_once() {
        let open = || UninheritedFile::new(std::fs::File::open("/").expect("the root exists").into());
        let files: Vec<_> = (0..2 * PLACES).map(|_| open()).collect();
        let numbers: Vec<_> = files.iter().map(|file| file.file.as_raw_fd()).collect();
        let (taken, again) = (take_inherited_files(), take_inherited_files());
        assert!(numbers.iter().all(|fd| taken.contains(fd) && !again.contains(fd)));
        drop(open());
        assert!(numbers.iter().all(|fd| !take_inherited_files().contains(fd)));
    }
}
