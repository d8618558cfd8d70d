//! Loopback ports for servers and proxies.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};

/// A port that no other user of this kit takes, in this process or another, so that a restarted server gets
/// its port back.
///
/// The claim is the UDP port of that number, which the system frees with the process. No server here uses UDP.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _claims: Vec<UdpSocket>,
}

/// Linux does not assign ports below 32768 to outgoing connections, so none takes the port of a server that
/// is down, and no client dialling it meanwhile connects to itself.
const FIRST: u16 = 12_000;
const COUNT: u16 = 20_000;
const BUS: u16 = 10_000;

impl Port {
    /// Claims a port on which nothing listens. Programs that ignore claims may still take it, so callers must
    /// be ready to retry.
    pub(crate) fn claim() -> Self {
        Self::claim_with(COUNT, &[0])
    }

    /// A claimed port, and a listener on it.
    pub(crate) fn listen() -> (Self, TcpListener) {
        let bound = |port: Self| Some((TcpListener::bind(port.address()).ok()?, port));
        let (listener, port) =
            (0..20).find_map(|_| bound(Self::claim())).expect("one of twenty free ports can be bound");
        (port, listener)
    }

    /// Like `claim`, with the cluster bus port 10,000 above.
    pub(crate) fn claim_with_bus() -> Self {
        Self::claim_with(COUNT - BUS, &[0, BUS])
    }

    fn claim_with(count: u16, offsets: &[u16]) -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let start = process::id().wrapping_mul(97); // test processes side by side start far from each other
        (0..count)
            .map(|_| {
                FIRST + ((start + u32::from(NEXT.fetch_add(1, Ordering::Relaxed))) % u32::from(count)) as u16
            })
            .find_map(|number| {
                let claims = offsets.iter().map(|offset| claim(number + offset)).collect::<Option<_>>()?;
                Some(Self { number, _claims: claims })
            })
            .expect("one of ten thousand ports is free")
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }
}

fn claim(number: u16) -> Option<UdpSocket> {
    let claim = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
    TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
    Some(claim)
}
