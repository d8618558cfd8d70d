//! The addresses of a host, and which of them is tried first.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures_util::future::{FutureExt, Shared};
use tokio::sync::oneshot;

use crate::sync::Locked;

/// How long the result of a lookup serves other dials. A dial that had no time left is repeated sooner.
const FRESH: Duration = Duration::from_secs(2);

type Lookup = Shared<oneshot::Receiver<Result<Arc<[SocketAddr]>, Arc<io::Error>>>>;

/// The lookups that are under way or have just ended.
static LOOKUPS: Locked<BTreeMap<(String, u16), Lookup>> = Locked::new(BTreeMap::new());

/// The addresses whose last connection was of no use, by when that was.
static USELESS: Locked<BTreeMap<SocketAddr, u64>> = Locked::new(BTreeMap::new());

/// The addresses of a host in the order of the system's resolver, but those whose last connection was of no use
/// behind the others.
///
/// A lookup outlasts its dial: while the first of two name servers is down, each takes longer than a dial may.
pub(super) async fn addresses_of(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found = match host.parse::<IpAddr>() {
        Ok(address) => return Ok(vec![SocketAddr::new(address, port)]),
        Err(_) => look_up(host, port)?.await,
    };
    let mut addresses = match found {
        Ok(Ok(addresses)) => addresses.to_vec(),
        Ok(Err(error)) => return Err(io::Error::new(error.kind(), error.to_string())),
        Err(_) => return Err(io::Error::other("the thread that looked its name up has ended")),
    };
    let useless = USELESS.lock();
    addresses.sort_by_key(|address| useless.get(address));
    Ok(addresses)
}

fn look_up(host: &str, port: u16) -> io::Result<Lookup> {
    let key = (host.to_owned(), port);
    let mut lookups = LOOKUPS.lock();
    if let Some(lookup) = lookups.get(&key) {
        return Ok(lookup.clone());
    }
    let (tell, told) = oneshot::channel();
    let of = key.clone();
    let look_up = move || {
        let found = (&*of.0, of.1).to_socket_addrs().map(Iterator::collect).map_err(Arc::new);
        let is_found = found.is_ok();
        let _ = tell.send(found);
        if is_found {
            #[expect(clippy::disallowed_methods, reason = "a thread of its own")]
            thread::sleep(FRESH);
        }
        LOOKUPS.lock().remove(&of);
    };
    thread::Builder::new().name("lookup".into()).spawn(look_up)?;
    Ok(lookups.entry(key).or_insert(told.shared()).clone())
}

/// A connection that has yet to prove of use, for which its server has to be the right one and to accept the login.
/// Dropped before, its address is tried behind the others of its host.
#[derive(Debug, Default)]
#[must_use = "dropped, it is taken for useless"]
pub struct DialAttempt(Option<SocketAddr>);

impl DialAttempt {
    pub(super) fn at(address: Option<SocketAddr>) -> Self {
        Self(address)
    }

    /// The connection is of use.
    pub fn succeeded(mut self) {
        if let Some(address) = self.0.take() {
            USELESS.lock().remove(&address);
        }
    }
}

impl Drop for DialAttempt {
    fn drop(&mut self) {
        if let Some(address) = self.0.take() {
            let mut useless = USELESS.lock();
            let last = useless.values().max().copied().unwrap_or(0);
            useless.insert(address, last + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::block_on;

    #[test]
    fn an_address_of_no_use_is_tried_behind_the_others() {
        let port = 1;
        let first = || block_on(addresses_of("localhost", port)).expect("addresses");
        let all = first();
        drop(DialAttempt::at(all.first().copied()));
        assert_eq!(first().last(), all.first());
        for address in first() {
            drop(DialAttempt::at(Some(address)));
        }
        let turned = first();
        DialAttempt::at(turned.last().copied()).succeeded();
        assert_eq!(first().first(), turned.last());
    }
}
