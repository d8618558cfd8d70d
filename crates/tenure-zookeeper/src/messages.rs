//! The ZooKeeper messages used by this store, as defined in `zookeeper.jute`.

use super::jute::{Reader, Writer};

/// Matches any version of a node.
pub(super) const ANY: i32 = -1;

/// Result codes, named as in `KeeperException`.
pub(super) mod code {
    pub(in super::super) const OK: i32 = 0;
    /// The operation follows the failed one of a multi.
    pub(in super::super) const NOT_REACHED: i32 = -2;
    pub(in super::super) const UNIMPLEMENTED: i32 = -6;
    pub(in super::super) const NO_NODE: i32 = -101;
    pub(in super::super) const NO_AUTH: i32 = -102;
    pub(in super::super) const BAD_VERSION: i32 = -103;
    pub(in super::super) const NODE_EXISTS: i32 = -110;
    pub(in super::super) const NOT_EMPTY: i32 = -111;
    pub(in super::super) const SESSION_EXPIRED: i32 = -112;
    pub(in super::super) const INVALID_ACL: i32 = -114;
    pub(in super::super) const AUTH_FAILED: i32 = -115;
    pub(in super::super) const SESSION_MOVED: i32 = -118;
    pub(in super::super) const QUOTA_EXCEEDED: i32 = -125;
    pub(in super::super) const THROTTLED: i32 = -127;
}

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const GET_CHILDREN: i32 = 8;
const PING: i32 = 11;
const CHECK: i32 = 13;
const MULTI: i32 = 14;
const AUTH: i32 = 100;
const ADD_WATCH: i32 = 106;
const CLOSE: i32 = -11;
const ERROR: i32 = -1;

/// The handshake of a connection. An id of 0 starts a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectRequest {
    pub(super) id: i64,
    pub(super) password: Vec<u8>,
    pub(super) life_ms: i32,
}

impl ConnectRequest {
    pub(super) fn connect(&self) -> Vec<u8> {
        let none = [0; 16];
        let password = if self.password.is_empty() { &none[..] } else { &self.password };
        // The protocol version, and the newest transaction seen, 0 because of `Server::barrier`.
        let written = Writer::default().int(0).long(0).int(self.life_ms).long(self.id).bytes(password);
        // Do not accept a read-only server.
        written.bool(false).0
    }

    /// The server's reply; a timeout of 0 means that the session has expired.
    pub(super) fn connected(frame: &[u8]) -> Option<Self> {
        let mut read = Reader(frame);
        let _version = read.int()?;
        let (life_ms, id) = (read.int()?, read.long()?);
        Some(Self { id, password: read.bytes()?.to_vec(), life_ms })
    }
}

/// Messages with fixed numbers.
pub(super) mod fixed {
    use super::{AUTH, PING, Writer};

    pub(in super::super) const WATCHED: i32 = -1;
    pub(in super::super) const PINGED: i32 = -2;
    pub(in super::super) const AUTHENTICATED: i32 = -4;

    pub(in super::super) fn ping() -> Vec<u8> {
        Writer::default().int(PINGED).int(PING).0
    }

    pub(in super::super) fn auth(user: &str, password: &str) -> Vec<u8> {
        let written = Writer::default().int(AUTHENTICATED).int(AUTH).int(0).text("digest");
        written.text(&format!("{user}:{password}")).0
    }
}

/// Access rights of a created node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    /// Every client.
    All,
    /// Clients with the creator's login.
    Login,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lasts {
    Always,
    /// Until the session that creates it ends.
    Session,
}

/// One operation on one node.
#[derive(Clone, Debug)]
pub(super) enum MultiOp<'a> {
    Check { path: &'a str, version: i32 },
    Create { path: &'a str, data: &'a str, lasts: Lasts, rights: Rights },
    Set { path: &'a str, data: &'a str, version: i32 },
    Delete { path: &'a str, version: i32 },
}

impl MultiOp<'_> {
    fn number(&self) -> i32 {
        match self {
            Self::Check { .. } => CHECK,
            Self::Create { .. } => CREATE,
            Self::Set { .. } => SET_DATA,
            Self::Delete { .. } => DELETE,
        }
    }

    fn write(&self, to: Writer) -> Writer {
        const EVERY_RIGHT: i32 = 31;
        match *self {
            Self::Check { path, version } | Self::Delete { path, version } => to.text(path).int(version),
            Self::Set { path, data, version } => to.text(path).text(data).int(version),
            Self::Create { path, data, lasts, rights } => {
                let (scheme, id) = match rights {
                    Rights::All => ("world", "anyone"),
                    Rights::Login => ("auth", ""),
                };
                let to = to.text(path).text(data).int(1).int(EVERY_RIGHT).text(scheme).text(id);
                to.int(i32::from(lasts == Lasts::Session))
            }
        }
    }

    /// This operation as a request of its own.
    pub(super) fn alone(&self) -> Vec<u8> {
        self.write(Writer::default().int(self.number())).0
    }
}

/// All of these operations, atomically.
pub(super) fn multi(steps: &[MultiOp<'_>]) -> Vec<u8> {
    let written = steps.iter().fold(Writer::default().int(MULTI), |written, step| {
        step.write(written.int(step.number()).bool(false).int(ERROR))
    });
    written.int(ERROR).bool(true).int(ERROR).0
}

pub(super) fn exists(path: &str, watch: bool) -> Vec<u8> {
    Writer::default().int(EXISTS).text(path).bool(watch).0
}

pub(super) fn get_data(path: &str, watch: bool) -> Vec<u8> {
    Writer::default().int(GET_DATA).text(path).bool(watch).0
}

pub(super) fn get_children(path: &str) -> Vec<u8> {
    Writer::default().int(GET_CHILDREN).text(path).bool(false).0
}

/// Watches a node and its descendants until the connection ends.
pub(super) fn watch_below(path: &str) -> Vec<u8> {
    const RECURSIVE: i32 = 1;
    Writer::default().int(ADD_WATCH).text(path).int(RECURSIVE).0
}

pub(super) fn close() -> Vec<u8> {
    Writer::default().int(CLOSE).0
}

/// Metadata of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stat {
    /// The transaction that created it.
    pub(super) created: i64,
    /// Number of changes of its data since then.
    pub(super) version: i32,
}

impl Stat {
    pub(super) fn read(from: &mut Reader<'_>) -> Option<Self> {
        let created = from.long()?;
        let (_changed, _created_at, _changed_at) = (from.long()?, from.long()?, from.long()?);
        let version = from.int()?;
        let (_children, _rights, _owner) = (from.int()?, from.int()?, from.long()?);
        let (_length, _count, _child) = (from.int()?, from.int()?, from.long()?);
        Some(Self { created, version })
    }
}

/// The data and metadata of a node.
pub(super) fn data(body: &[u8]) -> Option<(&[u8], Stat)> {
    let mut read = Reader(body);
    Some((read.bytes()?, Stat::read(&mut read)?))
}

/// Result of a multi: the stat of the first node that was set, or the index and code of the operation that
/// failed.
pub(super) type Stepped = Result<Option<Stat>, (usize, i32)>;

/// Parses the result of a multi; `None` if it is malformed.
pub(super) fn steps(body: &[u8]) -> Option<Stepped> {
    let (mut read, mut first, mut failed) = (Reader(body), None, None);
    for step in 0.. {
        let (number, is_over, _) = (read.int()?, read.bool()?, read.int()?);
        if is_over {
            return Some(failed.map_or(Ok(first), Err));
        }
        match number {
            ERROR => {
                let code = read.int()?;
                if code != code::OK && code != code::NOT_REACHED {
                    failed.get_or_insert((step, code));
                }
            }
            CREATE => drop(read.text()?),
            SET_DATA => {
                let stat = Stat::read(&mut read)?;
                first.get_or_insert(stat);
            }
            _ => {}
        }
    }
    None
}

/// A watched node has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WatcherEvent {
    pub(super) path: String,
    pub(super) is_deleted: bool,
}

impl WatcherEvent {
    /// `None` for an event that is not about a node.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        const DELETED: i32 = 2;
        let mut read = Reader(body);
        let (kind, _state, path) = (read.int()?, read.int()?, read.text()?);
        (kind > 0).then(|| Self { path: path.to_owned(), is_deleted: kind == DELETED })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(number: i32) -> Writer {
        Writer::default().int(number).bool(false).int(0)
    }

    fn stat(created: i64, version: i32) -> Writer {
        let times = Writer::default().long(created).long(9).long(1).long(2).int(version);
        times.int(0).int(0).long(0).int(5).int(0).long(9)
    }

    fn all(parts: &[Writer]) -> Vec<u8> {
        let parts: Vec<u8> = parts.iter().flat_map(|part| part.0.clone()).collect();
        [parts, Writer::default().int(ERROR).bool(true).int(ERROR).0].concat()
    }

    #[test]
    fn steps_tell_the_first_node_that_was_set_or_the_first_that_failed() {
        let done =
            [head(CHECK), head(CREATE).text("/a"), head(SET_DATA), stat(7, 1), head(SET_DATA), stat(8, 3)];
        assert_eq!(steps(&all(&done)), Some(Ok(Some(Stat { created: 7, version: 1 }))));
        let error = |code| head(ERROR).int(code);
        let failed = [error(code::OK), error(code::BAD_VERSION), error(code::NOT_REACHED)];
        assert_eq!(steps(&all(&failed)), Some(Err((1, code::BAD_VERSION))));
        let whole = all(&done);
        assert!((0..whole.len()).all(|length| steps(&whole[..length]).is_none()));
    }

    #[test]
    fn a_session_and_events_are_read() {
        let wanted = ConnectRequest { life_ms: 4_000, ..ConnectRequest::default() };
        assert_eq!(wanted.connect().len(), 4 + 8 + 4 + 8 + 4 + 16 + 1);
        let said = Writer::default().int(0).int(4_000).long(5).bytes(&[1; 16]).bool(false).0;
        let session = ConnectRequest { id: 5, password: vec![1; 16], life_ms: 4_000 };
        assert_eq!(ConnectRequest::connected(&said), Some(session));
        let event = |kind| WatcherEvent::read(&Writer::default().int(kind).int(3).text("/a").0);
        assert_eq!(event(2), Some(WatcherEvent { path: "/a".into(), is_deleted: true }));
        assert_eq!((event(3).map(|event| event.is_deleted), event(-1)), (Some(false), None));
    }
}
