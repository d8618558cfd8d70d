//! File descriptors inherited from the shell. A lock can last as long as one of them stays open, as with
//! `flock FD`.
//!
//! An OS lock (flock) on a descriptor ends when the descriptor is closed, including at the end of a process.
//! Therefore `acquire` locks the script's descriptor, and the keeper process waits for that lock.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use nix::fcntl::FlockArg;
use nix::unistd::close;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::exit::{Failure, USAGE};
use crate::platform::{inherited, open_descriptors};

/// Refuses descriptors whose closing cannot be detected.
pub(crate) fn check(number: RawFd) -> Result<(), Failure> {
    let found = fs::metadata(path(number)?).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            refuse(number, "it is not open: write `exec 9>FILE` before, or `( … ) 9>FILE`")
        }
        _ => refuse(number, &error.to_string()),
    })?;
    if found.is_file() {
        Ok(())
    } else {
        Err(refuse(number, "it is not a regular file: write `exec 9>FILE` before"))
    }
}

/// Takes an OS lock on it, which ends when the last process has closed it.
pub(crate) fn lock(number: RawFd) -> Result<(), Failure> {
    #[expect(deprecated, reason = "its successor is for descriptors that are owned; this one is the shell's")]
    let locked = nix::fcntl::flock(number, FlockArg::LockExclusiveNonblock);
    locked.map_err(|errno| match errno {
        nix::errno::Errno::EWOULDBLOCK => {
            refuse(number, "another program has locked its file: give each lock a separate file")
        }
        errno => refuse(number, &format!("its file cannot be locked: {}", errno.desc())),
    })
}

/// Reopens the descriptor's file, so that this process can detect when the descriptor is closed.
pub(crate) fn again(number: RawFd) -> Result<File, Failure> {
    let path = path(number)?;
    let opened = File::open(&path).or_else(|_| OpenOptions::new().write(true).open(&path));
    opened.map_err(|error| refuse(number, &error.to_string()))
}

/// Waits until the descriptor of this file, locked by [`lock`], is closed everywhere.
pub(crate) fn wait(file: &File) -> Result<(), Errno> {
    loop {
        match flock(file, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => {}
            waited => return waited,
        }
    }
}

/// Closes everything inherited except the standard streams and `kept`: a background process must not keep a
/// script's descriptors open, nor its locks. Must be called before this process opens anything else.
pub(crate) fn close_inherited(kept: Option<&File>) {
    let kept = kept.map(AsRawFd::as_raw_fd);
    for number in open_descriptors().filter(|number| *number > 2 && Some(*number) != kept) {
        // Not all of these numbers need be open.
        let _ = close(number);
    }
}

fn path(number: RawFd) -> Result<String, Failure> {
    let no_path = "this system does not report when a descriptor is closed: use --hold --while-pid $$";
    inherited(number).ok_or_else(|| refuse(number, no_path))
}

fn refuse(number: RawFd, why: &str) -> Failure {
    Failure::new(USAGE, format!("--fd {number}: {why}"))
}
