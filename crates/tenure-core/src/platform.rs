//! What differs between operating systems: the clock of leases, the names of user and host, local sockets.
//!
//! No other module of the library names an operating system; `tenure-file` has a module like this one for
//! directories.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use crate::moment::Moment;

pub use imp::LocalStream;

/// A clock that runs on while the machine sleeps, so that a laptop that wakes up knows its leases are over.
///
/// | system | clock | its manual |
/// |---|---|---|
/// | Linux | `CLOCK_BOOTTIME` | clock_gettime(2): includes any time that the system is suspended |
/// | macOS | `CLOCK_MONOTONIC_RAW` | clock_gettime(3): continues to increment while the system is asleep |
/// | FreeBSD 15 | `CLOCK_MONOTONIC` | clock_gettime(2): increments even while the system is suspended |
/// | Windows | `QueryPerformanceCounter` | includes sleep, hibernation and standby |
///
/// Earlier FreeBSD and other systems get their monotonic clock, which may stop during sleep: a process there may
/// take a lock for held until its next request fails.
#[must_use]
pub fn boot_clock() -> Moment {
    imp::boot_clock()
}

/// The name of this host; empty if the system tells none.
#[must_use]
pub fn host() -> String {
    imp::host()
}

/// The name of this process's user, best source first: the environment, the system's own list (no directory
/// across the network is asked), the numeric id.
pub fn users() -> impl Iterator<Item = String> {
    let said = ["LOGNAME", "USER"].into_iter().filter_map(|name| std::env::var(name).ok());
    said.chain(std::iter::once_with(imp::user))
}

/// Connects to a local socket.
///
/// # Errors
/// Those of the system; `Unsupported` on Windows.
pub async fn connect_local(path: &Path) -> io::Result<LocalStream> {
    imp::connect_local(path).await
}

/// A socket that can be registered with another tokio runtime.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin + Sized {
    /// Registers it with this runtime, or else, as if that one has ended, with the current one. Returns whether it is
    /// that one.
    fn registered(self, host: Option<&Handle>) -> io::Result<(Self, bool)>;
}

impl Socket for TcpStream {
    fn registered(self, host: Option<&Handle>) -> io::Result<(Self, bool)> {
        register(self.into_std()?, std::net::TcpStream::try_clone, Self::from_std, host)
    }
}

fn register<S, T>(
    socket: S,
    clone: fn(&S) -> io::Result<S>,
    register: fn(S) -> io::Result<T>,
    host: Option<&Handle>,
) -> io::Result<(T, bool)> {
    let hosted = host.and_then(|host| {
        let _context = host.enter();
        clone(&socket).and_then(register).ok()
    });
    match hosted {
        Some(hosted) => Ok((hosted, true)),
        None => Ok((register(socket)?, false)),
    }
}

/// Whether the current tokio runtime can wait for sockets that were registered with another before.
///
/// # Panics
/// If it has no I/O.
pub(crate) fn has_poller() -> bool {
    imp::has_poller()
}

/// How the system probes a silent connection, and closes it when the other end does not answer. Probes cost the
/// server's process nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Interval of the probes.
    pub interval: Duration,
    /// Number of unanswered probes after which the connection is closed.
    pub probes: u32,
}

impl Keepalive {
    /// For every connection.
    pub const DEFAULT: Self =
        Self { idle: Duration::from_secs(3), interval: Duration::from_secs(1), probes: 2 };

    /// How soon it notices that the other end cannot be reached.
    #[must_use]
    pub fn limit(self) -> Duration {
        self.idle + self.interval * self.probes
    }

    /// Applies it to a connection.
    ///
    /// # Errors
    /// Those of the system.
    pub fn apply(self, stream: &TcpStream) -> io::Result<()> {
        imp::keep_alive(stream, self)
    }
}

#[cfg(unix)]
mod imp {
    use super::*;

    /// A connected local socket.
    pub type LocalStream = tokio::net::UnixStream;

    #[cfg(target_vendor = "apple")]
    const CLOCK: nix::time::ClockId = nix::time::ClockId::from_raw(nix::libc::CLOCK_MONOTONIC_RAW);

    #[cfg(target_vendor = "apple")]
    pub(super) fn boot_clock() -> Moment {
        let now = nix::time::clock_gettime(CLOCK).expect("macOS has this clock since 10.12");
        Moment(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
    }

    #[cfg(not(target_vendor = "apple"))]
    pub(super) fn boot_clock() -> Moment {
        use rustix::time::{ClockId, clock_gettime};
        #[cfg(target_os = "linux")]
        const CLOCK: ClockId = ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        const CLOCK: ClockId = ClockId::Monotonic;
        let now = clock_gettime(CLOCK);
        Moment(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
    }

    pub(super) fn host() -> String {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    }

    pub(super) fn user() -> String {
        let id = rustix::process::geteuid().as_raw();
        let list = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        user_in(&list, id).map_or_else(|| id.to_string(), str::to_owned)
    }

    /// The user with this id in lines of `name:password:id:…`.
    fn user_in(list: &str, id: u32) -> Option<&str> {
        list.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with(['#', '+', '-']))?;
            (fields.nth(1)?.parse() == Ok(id)).then_some(name)
        })
    }

    pub(super) async fn connect_local(path: &Path) -> io::Result<LocalStream> {
        LocalStream::connect(path).await
    }

    impl Socket for LocalStream {
        fn registered(self, host: Option<&Handle>) -> io::Result<(Self, bool)> {
            register(self.into_std()?, std::os::unix::net::UnixStream::try_clone, Self::from_std, host)
        }
    }

    pub(super) fn has_poller() -> bool {
        tokio::net::UnixDatagram::unbound().is_ok()
    }

    pub(super) fn keep_alive(stream: &TcpStream, by: Keepalive) -> io::Result<()> {
        use rustix::net::sockopt;
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, by.idle)?;
        sockopt::set_tcp_keepintvl(stream, by.interval)?;
        sockopt::set_tcp_keepcnt(stream, by.probes)?;
        Ok(())
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_user_is_found_by_its_id() {
            let list = "# comment\n+nis:*:0:\n\nroot:x:0:0:root:/root:/bin/sh\nada:x:1000:1000::/home/ada:\n";
            assert_eq!(user_in(list, 0), Some("root"));
            assert_eq!(user_in(list, 1_000), Some("ada"));
            assert_eq!(user_in(list, 100), None);
            assert_eq!(user_in("broken", 0), None);
        }

        #[test]
        fn the_clock_never_runs_backwards() {
            let before = boot_clock();
            assert!(before <= boot_clock() && before > Moment(0));
        }
    }
}

#[cfg(not(unix))]
mod imp {
    use std::sync::LazyLock;
    use std::time::Instant;

    use super::*;

    /// Nothing connects on this system.
    pub type LocalStream = tokio::io::DuplexStream;

    /// Moments of different processes cannot be compared; no store here compares them.
    pub(super) fn boot_clock() -> Moment {
        #[expect(
            clippy::disallowed_methods,
            clippy::disallowed_types,
            reason = "the only clock of this system that the library can read"
        )]
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        Moment(START.elapsed().as_nanos() as u64 + 1)
    }

    pub(super) fn host() -> String {
        std::env::var("COMPUTERNAME").unwrap_or_default()
    }

    pub(super) fn user() -> String {
        std::env::var("USERNAME").unwrap_or_default()
    }

    #[expect(clippy::unused_async, reason = "the signature of systems with local sockets")]
    pub(super) async fn connect_local(_: &Path) -> io::Result<LocalStream> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no local sockets: use host:port"))
    }

    impl Socket for LocalStream {
        fn registered(self, _: Option<&Handle>) -> io::Result<(Self, bool)> {
            Ok((self, false))
        }
    }

    pub(super) fn has_poller() -> bool {
        false
    }

    /// The system's own defaults remain.
    #[expect(clippy::unnecessary_wraps, reason = "the signature of systems where it can fail")]
    pub(super) fn keep_alive(_: &TcpStream, _: Keepalive) -> io::Result<()> {
        Ok(())
    }
}
