//! What a directory needs of the operating system: the identity of a boot, holes, exchanges, file systems.
//!
//! On Linux each has a call of its own. Other systems share one portable variant, which
//! `--cfg tenure_portable` selects on Linux too, so that what runs there is tested here.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::StatFs;
use rustix::io::Errno;

use super::error::shown;
use tenure_core::events::{event, text};
use tenure_core::store::SETUP;

#[cfg(all(target_os = "linux", not(tenure_portable)))]
pub(super) use linux::{boot_clock_offset_ms, boot_id, by_descriptor, exchange, reserve, unread_messages};
#[cfg(not(all(target_os = "linux", not(tenure_portable))))]
pub(super) use portable::{boot_clock_offset_ms, boot_id, by_descriptor, exchange, reserve, unread_messages};

#[cfg(all(target_os = "linux", not(tenure_portable)))]
mod linux {
    //! Calls of Linux alone.

    use std::os::fd::{AsRawFd, OwnedFd};
    use std::path::Path;
    use std::sync::OnceLock;

    use rustix::fs::{FallocateFlags, RenameFlags, fallocate, renameat_with};
    use rustix::io::Errno;

    use super::super::error::{failed, unusable};
    use super::errno;
    use tenure_core::store::Failure;

    const BOOT: &str = "/proc/sys/kernel/random/boot_id";
    const OFFSETS: &str = "/proc/self/timens_offsets";
    const TIME_NAMESPACES: [&str; 2] = ["/proc/self/ns/time", "/proc/self/ns/time_for_children"];

    /// Identifies this boot of the machine or container.
    pub(crate) fn boot_id() -> Result<String, Failure> {
        let path = Path::new(BOOT);
        let text =
            std::fs::read_to_string(path).map_err(|error| failed("read the boot id", path, errno(&error)))?;
        let id = text.trim();
        // Fixed length, so that the guard file can be overwritten in place.
        if id.len() != 36 || !id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') {
            return Err(unusable(path, "holds no boot id: mount the system's own /proc"));
        }
        Ok(id.to_owned())
    }

    /// Milliseconds by which this process's boot clock is ahead of the machine's. Each time namespace has its own
    /// offset, and processes of several namespaces may share a directory.
    pub(crate) fn boot_clock_offset_ms() -> i64 {
        // The file describes the children's namespace, which differs from the process's own only between
        // `unshare` and `exec`.
        let [own, children] = TIME_NAMESPACES.map(|path| std::fs::read_link(path).ok());
        let text = if own == children { std::fs::read_to_string(OFFSETS).ok() } else { None };
        text.and_then(|text| offset_ms(&text)).unwrap_or(0)
    }

    /// Parses the boot clock's offset: lines of `CLOCK SECONDS NANOSECONDS`.
    fn offset_ms(text: &str) -> Option<i64> {
        let boot_clock = text.lines().find(|line| line.starts_with("boottime"))?;
        let mut numbers = boot_clock.split_whitespace().skip(1).map(|number| number.parse::<i64>().ok());
        let (seconds, nanos) = (numbers.next()??, numbers.next()??);
        seconds.checked_mul(1_000)?.checked_add(nanos / 1_000_000)
    }

    /// Messages a socket queues before the kernel refuses more.
    pub(crate) fn unread_messages() -> usize {
        static UNREAD: OnceLock<usize> = OnceLock::new();
        *UNREAD.get_or_init(|| {
            let text = std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen").ok();
            // The default on Linux.
            text.and_then(|text| text.trim().parse().ok()).unwrap_or(10)
        })
    }

    /// A path to a file of the directory that fits into a socket address and stays valid if the directory is moved
    /// or replaced.
    pub(crate) fn by_descriptor(dir: &OwnedFd, _: &Path, name: &str) -> String {
        format!("/proc/self/fd/{}/{name}", dir.as_raw_fd())
    }

    /// Gives a file this much space, where the file system can do so without writing.
    pub(crate) fn reserve(file: &OwnedFd, bytes: usize) -> Result<(), Errno> {
        match fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes as u64) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            reserved => reserved,
        }
    }

    /// Swaps two files of a directory; false where the file system cannot.
    pub(crate) fn exchange(dir: &OwnedFd, one: &str, other: &str) -> bool {
        renameat_with(dir, one, dir, other, RenameFlags::EXCHANGE).is_ok()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_offset_of_the_boot_clock_is_read_to_the_millisecond() {
            let said = |text| offset_ms(text);
            assert_eq!(
                said("monotonic           7         0\nboottime        86400  25000000\n"),
                Some(86_400_025)
            );
            assert_eq!(said("monotonic 0 0\nboottime         -100         0\n"), Some(-100_000));
            assert_eq!(said("monotonic 0 0\n"), None);
            assert_eq!(said("boottime x 0\n"), None);
            assert_eq!(said("boottime 9223372036854775807 0\n"), None);
        }
    }
}

#[cfg(not(all(target_os = "linux", not(tenure_portable))))]
mod portable {
    //! What each system has that has `flock` and local sockets.

    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::process::Command;

    use super::super::error::unusable;
    use rustix::io::Errno;
    use tenure_core::store::Failure;

    /// Prints what identifies a boot: 36 characters on macOS, 32 on FreeBSD since 14.
    #[cfg(target_vendor = "apple")]
    const TELLS_BOOT: [&str; 3] = ["/sbin/sysctl", "-n", "kern.bootsessionuuid"];
    #[cfg(not(any(target_vendor = "apple", target_os = "linux")))]
    const TELLS_BOOT: [&str; 3] = ["/sbin/sysctl", "-n", "kern.boot_id"];
    /// Only to test the rest on Linux.
    #[cfg(target_os = "linux")]
    const TELLS_BOOT: [&str; 3] = ["/bin/cat", "--", "/proc/sys/kernel/random/boot_id"];

    /// Identifies this boot of the machine.
    pub(crate) fn boot_id() -> Result<String, Failure> {
        let [program, flag, what] = TELLS_BOOT;
        let output = Command::new(program).args([flag, what]).output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        fitted(&text.unwrap_or_default())
            .ok_or_else(|| unusable(Path::new(program), &format!("does not tell {what}")))
    }

    /// As the guard file has it: 36 characters, so that it can be overwritten in place.
    fn fitted(said: &str) -> Option<String> {
        let is_id = said.len() >= 32 && said.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        is_id.then(|| format!("{said:0<36.36}"))
    }

    /// No other system has time namespaces.
    pub(crate) fn boot_clock_offset_ms() -> i64 {
        0
    }

    /// Messages a socket queues before the system refuses more, at least.
    pub(crate) fn unread_messages() -> usize {
        10
    }

    /// A path to a file of the directory, for calls that take no descriptor.
    pub(crate) fn by_descriptor(_: &OwnedFd, path: &Path, name: &str) -> String {
        path.join(name).to_string_lossy().into_owned()
    }

    /// Gives a file this much space, where that can be done.
    pub(crate) fn reserve(_: &OwnedFd, _bytes: usize) -> Result<(), Errno> {
        Ok(())
    }

    /// Swaps two files of a directory; false where the system cannot.
    pub(crate) fn exchange(_: &OwnedFd, _one: &str, _other: &str) -> bool {
        false
    }
}

pub(super) fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Network file systems. Their locks and renames lack the guarantees this store relies on, and the machines
/// that share them have different clocks.
#[cfg(target_os = "linux")]
const NETWORK: [(u32, &str); 13] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x5346_414f, "AFS"),
    (0x7375_7245, "Coda"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x0102_1997, "9p"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
];

/// FUSE, possibly backed by a network, as with sshfs.
#[cfg(target_os = "linux")]
const FUSE: u32 = 0x6573_5546;

/// The type of the file system at a path, if it may be shared with other machines.
///
/// # Errors
/// Any error of `statfs`.
pub fn shared_file_system(path: &Path) -> std::io::Result<Option<&'static str>> {
    Ok(shared(&rustix::fs::statfs(path)?, true))
}

#[cfg(target_os = "linux")]
fn shared(stat: &StatFs, with_fuse: bool) -> Option<&'static str> {
    let magic = stat.f_type as u32;
    if magic == FUSE { with_fuse.then_some("FUSE") } else { network(magic) }
}

/// These systems mark what is on this machine: `MNT_LOCAL` of `sys/mount.h`.
#[cfg(not(target_os = "linux"))]
fn shared(stat: &StatFs, _with_fuse: bool) -> Option<&'static str> {
    (stat.f_flags as u64 & 0x1000 == 0).then_some("a network file system")
}

#[cfg(target_os = "linux")]
fn network(magic: u32) -> Option<&'static str> {
    NETWORK.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

/// Warns that locks on a network file system do not exclude other machines.
pub(super) fn warn_of_network(dir: &OwnedFd, path: &Path) {
    let Ok(stat) = rustix::fs::fstatfs(dir) else { return };
    if let Some(name) = shared(&stat, false) {
        event!(
            WARN,
            target: SETUP,
            "directory_shared",
            "locks in this directory hold on this machine only, although other machines may see it",
            directory = text(shown(path)),
            file_system = name,
        );
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_shared_if_its_number_says_so() {
        assert_eq!((network(0x6969), network(0xff53_4d42)), (Some("NFS"), Some("CIFS")));
        // ext4 and tmpfs.
        assert_eq!((network(0xef53), network(0x0102_1994)), (None, None));
        assert_eq!(shared_file_system(Path::new("/proc")).expect("it is there"), None);
        assert!(shared_file_system(Path::new("/no such directory")).is_err());
    }
}
