//! Descriptors that the shell left open for this program. A lock can last as long as one of them,
//! as with `flock FD`.
//!
//! An OS lock (flock) on a descriptor ends when that is closed, also by the end of a process. So
//! `acquire` puts such a lock on the script's, and the process that keeps the lock waits for it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use nix::fcntl::FlockArg;
use nix::unistd::close;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::exit::{Failure, USAGE};

/// Refuses a descriptor that cannot tell when it is closed.
pub(crate) fn check(number: RawFd) -> Result<(), Failure> {
    let found = fs::metadata(path(number)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            refuse(number, "it is not open: write `exec 9>FILE` before, or `( … ) 9>FILE`")
        }
        _ => refuse(number, &error.to_string()),
    })?;
    if found.is_file() {
        Ok(())
    } else {
        Err(refuse(number, "it is no regular file: write `exec 9>FILE` before"))
    }
}

/// Puts an OS lock on it, which ends when the last process has closed it.
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

/// The file of a descriptor, opened once more: so this process sees when the descriptor is closed.
pub(crate) fn again(number: RawFd) -> Result<File, Failure> {
    let path = path(number);
    let opened = File::open(&path).or_else(|_| OpenOptions::new().write(true).open(&path));
    opened.map_err(|error| refuse(number, &error.to_string()))
}

/// Waits until the descriptor of this file, which [`lock`] has locked, is closed everywhere.
pub(crate) fn wait(file: &File) -> Result<(), Errno> {
    loop {
        match flock(file, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => {}
            waited => return waited,
        }
    }
}

/// Waits until a byte can be read from a pipe that was inherited, and closes it. False if none can
/// come any more.
pub(crate) fn wait_for_a_byte(number: RawFd) -> bool {
    // To open a pipe that has no writer any more would wait for one.
    let opened =
        rustix::fs::open(path(number), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
    let _ = close(number);
    let Ok(pipe) = opened else { return false };
    let mut fds = [PollFd::new(&pipe, PollFlags::IN)];
    loop {
        match poll(&mut fds, None) {
            Err(Errno::INTR) => {}
            polled => return polled.is_ok() && rustix::io::read(&pipe, &mut [0; 1]) == Ok(1),
        }
    }
}

/// Closes all that was inherited but the three streams and this file. What lives on in the
/// background must not keep the descriptors of a script open, nor its locks. Only before this
/// process has opened anything else.
pub(crate) fn close_inherited(kept: Option<&File>) {
    let Ok(open) = fs::read_dir("/proc/self/fd") else { return };
    let numbers: Vec<RawFd> =
        open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    let kept = kept.map(AsRawFd::as_raw_fd);
    for number in numbers.into_iter().filter(|number| *number > 2 && Some(*number) != kept) {
        // That of the directory is closed already.
        let _ = close(number);
    }
}

fn path(number: RawFd) -> String {
    format!("/proc/self/fd/{number}")
}

fn refuse(number: RawFd, why: &str) -> Failure {
    Failure { code: USAGE, message: format!("--fd {number}: {why}") }
}
