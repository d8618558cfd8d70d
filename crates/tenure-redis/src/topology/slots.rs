//! Slot ranges of a cluster as its nodes report them, and redirects.

use crate::replies::{bytes, int};
use crate::resp::{ServerError, Value};
use crate::topology::Address;

/// Number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// How a node redirects a request that it did not carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// The slot is now served by this node; `None` if the redirecting node does not know its address.
    Moved(Option<Address>),
    /// The slot is migrating to this node, and the key is already there.
    Ask(Address),
    /// Retry on the same node later: the cluster is electing, or some keys of the request are still
    /// migrating.
    Later,
}

/// Whether this error is a redirect.
pub(crate) fn redirects(error: &ServerError) -> bool {
    matches!(error.code(), "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN")
}

impl Redirect {
    /// Reads an error of the node at `from`.
    pub(crate) fn read(error: &ServerError, from: &Address) -> Option<Self> {
        if !redirects(error) {
            return None;
        }
        // `MOVED SLOT HOST:PORT`
        let to = || address(error.details()?.split_once(' ')?.1, from);
        Some(match error.code() {
            "MOVED" => Self::Moved(to()),
            "ASK" => to().map_or(Self::Later, Self::Ask),
            _ => Self::Later,
        })
    }
}

/// An address in an error: an empty host means that of the node itself, and `?` an unknown one.
fn address(text: &str, from: &Address) -> Option<Address> {
    // An IPv6 address contains colons.
    let (host, port) = text.rsplit_once(':')?;
    at(host, port.parse().ok()?, from)
}

fn at(host: &str, port: u16, from: &Address) -> Option<Address> {
    match (host, from) {
        _ if port == 0 => None,
        ("?", _) => None,
        ("", Address::Tcp(host, _)) => Some(Address::Tcp(host.clone(), port)),
        ("", Address::Unix(_)) => None,
        (host, _) => Some(Address::Tcp(host.to_owned(), port)),
    }
}

/// The cluster as one of its nodes sees it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterView {
    /// First and last slot of each range, and the master that serves it.
    pub(crate) ranges: Vec<(u16, u16, Address)>,
    pub(crate) replicas: Vec<Address>,
}

impl ClusterView {
    /// Reads the reply to CLUSTER SLOTS of the node at `from`.
    pub(crate) fn read(reply: &Value, from: &Address) -> Option<Self> {
        let Value::Array(ranges) = reply else { return None };
        let mut view = Self::default();
        for range in ranges {
            let Value::Array(parts) = range else { return None };
            let [first, last, master, replicas @ ..] = &parts[..] else { return None };
            let (first, last) = (slot(first)?, slot(last)?);
            if first > last {
                return None;
            }
            // Without a known address, the slots count as unserved.
            if let Some(master) = node(master, from)? {
                view.ranges.push((first, last, master));
            }
            for replica in replicas {
                view.replicas.extend(node(replica, from)?);
            }
        }
        view.replicas.sort();
        view.replicas.dedup();
        Some(view)
    }
}

fn slot(value: &Value) -> Option<u16> {
    u16::try_from(int(value)?).ok().filter(|slot| *slot < SLOTS)
}

/// `[host, port, id, ...]`; the inner `None` if the node does not know the host.
fn node(value: &Value, from: &Address) -> Option<Option<Address>> {
    let Value::Array(parts) = value else { return None };
    let [host, port, ..] = &parts[..] else { return None };
    let port = u16::try_from(int(port)?).ok()?;
    Some(match host {
        Value::Nil => at("", port, from),
        host => at(std::str::from_utf8(bytes(host)?).ok()?, port, from),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::parse;

    fn parsed(text: &str) -> Value {
        parse::parsed(text.as_bytes()).expect("a reply").remove(0)
    }

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.to_owned(), port)
    }

    fn redirect(line: &str) -> Option<Redirect> {
        match parsed(&format!("-{line}\r\n")) {
            Value::ServerError(error) => Redirect::read(&error, &tcp("seed", 7000)),
            other => panic!("not an error: {other:?}"),
        }
    }

    #[test]
    fn an_error_says_where_to_go() {
        let moved = |host, port| Some(Redirect::Moved(Some(tcp(host, port))));
        assert_eq!(redirect("MOVED 3999 127.0.0.1:6381"), moved("127.0.0.1", 6381));
        assert_eq!(redirect("MOVED 3999 2001:db8::7:6381"), moved("2001:db8::7", 6381));
        assert_eq!(redirect("MOVED 3999 :6381"), moved("seed", 6381));
        assert_eq!(
            redirect("ASK 3999 redis-3.example:6381"),
            Some(Redirect::Ask(tcp("redis-3.example", 6381)))
        );
        for unknown in ["MOVED 3999 ?:6381", "MOVED 3999", "MOVED", "MOVED 1 host:port", "MOVED 1 host:0"] {
            assert_eq!(redirect(unknown), Some(Redirect::Moved(None)), "{unknown}");
        }
        for later in ["ASK 3999", "TRYAGAIN Multiple keys", "CLUSTERDOWN The cluster is down"] {
            assert_eq!(redirect(later), Some(Redirect::Later), "{later}");
        }
        assert_eq!(redirect("ERR MOVED 3999 127.0.0.1:6381"), None);
    }

    const NODE: &str = "*3\r\n$4\r\nhost\r\n:7001\r\n$2\r\nid\r\n";

    fn view(text: &str) -> Option<ClusterView> {
        ClusterView::read(&parsed(text), &tcp("seed", 7000))
    }

    #[test]
    fn a_view_tells_masters_and_replicas_by_the_hosts_it_knows() {
        let text = format!(
            "*2\r\n*4\r\n:0\r\n:99\r\n{NODE}*4\r\n_\r\n:7002\r\n$2\r\nid\r\n*0\r\n\
             *3\r\n:100\r\n:16383\r\n*3\r\n$1\r\n?\r\n:7003\r\n$2\r\nid\r\n"
        );
        let expected =
            ClusterView { ranges: vec![(0, 99, tcp("host", 7001))], replicas: vec![tcp("seed", 7002)] };
        assert_eq!(view(&text), Some(expected));
        assert_eq!(view("*0\r\n"), Some(ClusterView::default()));
    }

    #[test]
    fn what_is_no_view_is_none() {
        for text in [
            "+OK\r\n".to_owned(),
            "*1\r\n:1\r\n".to_owned(),
            "*1\r\n*2\r\n:0\r\n:1\r\n".to_owned(),
            format!("*1\r\n*3\r\n:0\r\n:16384\r\n{NODE}"),
            format!("*1\r\n*3\r\n:5\r\n:4\r\n{NODE}"),
            format!("*1\r\n*3\r\n:-1\r\n:4\r\n{NODE}"),
            format!("*1\r\n*3\r\n$1\r\n0\r\n:4\r\n{NODE}"),
            "*1\r\n*3\r\n:0\r\n:1\r\n*0\r\n".to_owned(),
            "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n:1\r\n:7001\r\n".to_owned(),
            "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$4\r\nhost\r\n:70001\r\n".to_owned(),
        ] {
            assert_eq!(view(&text), None, "{text}");
        }
    }
}
