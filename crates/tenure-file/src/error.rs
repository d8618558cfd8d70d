//! One-line errors that name the file and suggest a remedy.

use std::path::Path;

use rustix::io::Errno;

use tenure_core::name::Quoted;
use tenure_core::store::Failure;

/// A failed system call: the action, the file and a remedy.
pub(super) fn failed(doing: &str, path: &Path, errno: Errno) -> Failure {
    let cause = Failure::cause(format!("cannot {doing} {}: {}", shown(path), what(errno)));
    match errno {
        // Transient: resolved when a process closes a file.
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR | Errno::AGAIN => Failure::NotSent(cause),
        _ => Failure::Refused(cause),
    }
}

/// Error for a file with unusable contents: the reason and a remedy.
pub(super) fn unusable(path: &Path, why: &str) -> Failure {
    Failure::Refused(Failure::cause(format!("{} {why}", shown(path))))
}

/// The path as shown in messages, on one line.
pub(super) fn shown(path: &Path) -> String {
    Quoted(&path.to_string_lossy()).to_string()
}

fn what(errno: Errno) -> String {
    let remedy = match errno {
        Errno::NOSPC => "its file system is full: free some space, or use another directory",
        Errno::DQUOT => "the disk quota is used up: free some space, or use another directory",
        Errno::ROFS => "its file system is read-only: use a directory that can be written",
        Errno::ACCESS | Errno::PERM => {
            "permission denied: give this user read and write permission for the directory and its files, \
             or use another directory"
        }
        Errno::NOTDIR | Errno::EXIST => "a file is in the way: the store is a directory",
        Errno::ISDIR => "it is a directory: remove it, or use another directory for the store",
        Errno::LOOP => "it is a symbolic link: remove it, or use another directory for the store",
        Errno::NAMETOOLONG => "the path is too long: use a shorter one",
        Errno::MFILE | Errno::NFILE => "too many files are open: raise the limit (`ulimit -n`)",
        _ => return errno.to_string(),
    };
    remedy.to_owned()
}
