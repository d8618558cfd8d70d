//! Checks of a directory: file system, permissions and free space.

use std::fs::{Metadata, metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, absolute};

use rustix::fs::statvfs;
use tenure::diagnosis::shared_file_system;

use super::report::Report;
use crate::exit::{Failure, STORE};
use crate::store;

/// Write permission for others.
const OTHERS_WRITE: u32 = 0o002;
/// Only the owner of a file may rename or delete it.
const STICKY: u32 = 0o1000;
/// Minimum share of free space: each change of a lock writes a new file, so a full file system refuses every
/// lock.
const LEAST_FREE: f64 = 0.01;

pub(super) fn check(path: &Path, report: &mut Report) -> Result<(), Failure> {
    let fails = |error: io::Error| {
        Failure::new(STORE, format!("cannot look at the directory {}: {error}", path.display()))
    };
    let at = path.display().to_string();
    let directory = metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => store::missing(path),
        _ => fails(error),
    })?;
    match shared_file_system(path).map_err(fails)? {
        Some("FUSE") => report.find(
            "file-system",
            &at,
            "the directory is on a FUSE file system, which may be a network",
            "locks hold on this machine only, and a network file system may lose them",
            "use a directory on a local disk, or for several machines a server: --store redis://HOST",
        ),
        Some(name) => report.find(
            "file-system",
            &at,
            format!("the directory is on a network file system ({name})"),
            "locks hold on this machine only, although other machines see the directory",
            "use a directory on a local disk, or for several machines a server: --store redis://HOST",
        ),
        None => {}
    }
    if mode(&directory) & OTHERS_WRITE != 0 {
        report.find(
            "directory-rights",
            &at,
            format!("every user may write to the directory (mode {:04o})", mode(&directory)),
            "any user can delete or forge a lock",
            format!("chmod o-w {at}; for several users give it their group and mode 2770"),
        );
    }
    let whole = absolute(path).map_err(fails)?;
    for above in whole.ancestors().skip(1) {
        let found = metadata(above).map_err(fails)?;
        if mode(&found) & OTHERS_WRITE != 0 && mode(&found) & STICKY == 0 {
            report.find(
                "directory-rights",
                &at,
                format!("every user may write to {} above it (mode {:04o})", above.display(), mode(&found)),
                "any user can replace the directory, and every lock in it is lost",
                format!("chmod o-w {}, or set its sticky bit", above.display()),
            );
        }
    }
    let space = statvfs(path).map_err(|error| fails(error.into()))?;
    for (what, free, all) in
        [("blocks", space.f_bavail, space.f_blocks), ("inodes", space.f_favail, space.f_files)]
    {
        // File systems without a fixed number of inodes report 0.
        if all > 0 && (free as f64) < all as f64 * LEAST_FREE {
            report.find(
                "space",
                &at,
                format!("{free} of {all} {what} of the file system are free"),
                "each grant writes a file; on a full file system no lock is granted",
                "free some space, or use a directory on another file system",
            );
        }
    }
    Ok(())
}

fn mode(found: &Metadata) -> u32 {
    found.mode() & 0o7777
}
