//! The addresses of a host, and which of them is tried first.
//!
//! Nothing waits for the mutexes here: a process that was forked while another thread had one does without.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::process;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use futures_util::future::{FutureExt, Shared};
use tokio::net::lookup_host;
use tokio::sync::oneshot;

/// How long the result of a lookup serves other dials. A dial that had no time left is repeated sooner.
const FRESH: Duration = Duration::from_secs(2);

type Lookup = Shared<oneshot::Receiver<Result<Arc<[SocketAddr]>, Arc<io::Error>>>>;

/// The host, the port, and the process, whose children do not have its threads.
type LookupKey = (String, u16, u32);

/// The lookups that are under way or have just ended.
static LOOKUPS: Mutex<BTreeMap<LookupKey, Lookup>> = Mutex::new(BTreeMap::new());

/// The addresses whose last connection was of no use, by when that was.
static USELESS: Mutex<BTreeMap<SocketAddr, u64>> = Mutex::new(BTreeMap::new());

/// The addresses of a host in the order of the system's resolver, but those whose last connection was of no use
/// behind the others.
///
/// A lookup outlasts its dial: while the first of two name servers is down, each takes longer than a dial may.
pub(super) async fn addresses_of(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let mut addresses = match look_up(host, port) {
        None => lookup_host((host, port)).await?.collect(),
        Some(lookup) => match lookup.await {
            Ok(Ok(addresses)) => addresses.to_vec(),
            Ok(Err(error)) => return Err(io::Error::new(error.kind(), error.to_string())),
            Err(_) => return Err(io::Error::other("the thread that looked its name up has ended")),
        },
    };
    if let Ok(useless) = USELESS.try_lock() {
        addresses.sort_by_key(|address| useless.get(address));
    }
    Ok(addresses)
}

/// A lookup that others share; `None` where another thread begins one, or none can be begun.
fn look_up(host: &str, port: u16) -> Option<Lookup> {
    let key = (host.to_owned(), port, process::id());
    let mut lookups = LOOKUPS.try_lock().ok()?;
    if let Some(lookup) = lookups.get(&key) {
        return Some(lookup.clone());
    }
    let (tell, told) = oneshot::channel();
    let of = key.clone();
    let look_up = move || {
        let entry = LookupEntry(of);
        let found = (&*entry.0.0, entry.0.1).to_socket_addrs().map(Iterator::collect).map_err(Arc::new);
        let is_found = found.is_ok();
        let _ = tell.send(found);
        if is_found {
            #[expect(clippy::disallowed_methods, reason = "a thread of its own")]
            thread::sleep(FRESH);
        }
        drop(entry);
    };
    thread::Builder::new().name("lookup".into()).spawn(look_up).ok()?;
    Some(lookups.entry(key).or_insert(told.shared()).clone())
}

/// Removes a lookup at the end of its thread, which waits for the mutex: its process has all threads.
struct LookupEntry(LookupKey);

impl Drop for LookupEntry {
    fn drop(&mut self) {
        if let Ok(mut lookups) = LOOKUPS.lock() {
            lookups.remove(&self.0);
        }
    }
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
        if let Some(address) = self.0.take()
            && let Ok(mut useless) = USELESS.try_lock()
        {
            useless.remove(&address);
        }
    }
}

impl Drop for DialAttempt {
    fn drop(&mut self) {
        if let Some(address) = self.0.take()
            && let Ok(mut useless) = USELESS.try_lock()
        {
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
