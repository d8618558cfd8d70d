//! The nodes of one URL: their paths, their contents, and the meaning of error codes.

use super::jute::Reader;
use super::link::LinkReply;
use super::messages::{self, ANY, Rights, Stat, code};
use super::path::encoded;
use super::url::ZooKeeperTarget;
use tenure_core::cas::{Session, Stamp, Stored};
use tenure_core::name::LockName;
use tenure_core::store::Failure;

/// The nodes below one path.
#[derive(Clone, Debug)]
pub(super) struct Nodes {
    prefix: String,
    pub(super) rights: Rights,
}

impl Nodes {
    pub(super) fn new(target: &ZooKeeperTarget) -> Self {
        let rights = if target.login.user.is_some() { Rights::Login } else { Rights::All };
        Self { prefix: target.prefix.clone(), rights }
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn lock_path(&self, name: &LockName) -> String {
        format!("{}/lock/{}", self.prefix(), encoded(name.as_str()))
    }

    pub(super) fn record_path(&self, name: &LockName) -> String {
        format!("{}/record/{}", self.prefix(), encoded(name.as_str()))
    }

    /// The parent of the markers.
    pub(super) fn marker_parent(&self) -> String {
        format!("{}/lease", self.prefix())
    }

    /// The common prefix of the markers' paths.
    pub(super) fn leases(&self) -> String {
        format!("{}/", self.marker_parent())
    }

    pub(super) fn marker(&self, session: Session) -> String {
        format!("{}{session:x}", self.leases())
    }

    /// The session whose marker has this path.
    pub(super) fn session(&self, marker: &str) -> Option<Session> {
        Session::from_str_radix(marker.strip_prefix(&self.leases())?, 16).ok()
    }

    /// The failure for an unexpected result code.
    pub(super) fn failure(&self, code: i32) -> Failure {
        let prefix = self.prefix();
        let refused = |what: String| Failure::Refused(Failure::cause(what));
        match code {
            code::NO_AUTH if self.rights == Rights::All => refused(format!(
                "ZooKeeper gives no rights on {prefix} without a login: zookeeper://USER:PASSWORD@HOST"
            )),
            code::NO_AUTH => refused(format!(
                "the login in the URL has no rights on {prefix}: it needs read, write, create and delete"
            )),
            code::INVALID_ACL => refused("ZooKeeper does not accept digest logins".into()),
            code::AUTH_FAILED => refused("ZooKeeper refuses the login in the URL".into()),
            code::NOT_EMPTY => refused(format!(
                "a lock's node below {prefix}/lock has children that tenure did not make: delete them"
            )),
            code::QUOTA_EXCEEDED => refused(format!("the quota of ZooKeeper on {prefix} is used up")),
            code::UNIMPLEMENTED => {
                refused("ZooKeeper does not know a request: is it of 3.6 or newer?".into())
            }
            code::THROTTLED | code::SESSION_EXPIRED | code::SESSION_MOVED => {
                Failure::NotSent(Failure::cause(format!("ZooKeeper rejected it (error {code})")))
            }
            _ => Failure::Unknown(Failure::cause(format!("ZooKeeper answered with error {code}"))),
        }
    }

    pub(super) fn ok(&self, reply: &LinkReply) -> Result<(), Failure> {
        if reply.code == code::OK { Ok(()) } else { Err(self.failure(reply.code)) }
    }

    /// Decodes a lock from the answer to `get_data`.
    pub(super) fn stored(&self, reply: &LinkReply) -> Result<Option<Stored>, Failure> {
        if reply.code == code::NO_NODE {
            return Ok(None);
        }
        self.ok(reply)?;
        let (data, stat) = messages::data(&reply.body).ok_or_else(unreadable)?;
        let read = || {
            let (creation, text) = std::str::from_utf8(data).ok()?.split_once('\n')?;
            let (session, count) = creation.split_once('-')?;
            let creation = (u64::from_str_radix(session, 16).ok()?, u64::from_str_radix(count, 16).ok()?);
            let is_exact = format!("{:x}-{:x}", creation.0, creation.1) == data_head(data);
            is_exact.then(|| Stored { text: text.to_owned(), stamp: stamp(stat, creation) })
        };
        // An empty text is no lock; the code that parses it reports that.
        Ok(Some(read().unwrap_or_else(|| Stored { text: String::new(), stamp: stamp(stat, (0, 0)) })))
    }

    /// Decodes a part of a queue or a record from the answer to `get_data`.
    pub(super) fn text(&self, reply: &LinkReply) -> Result<Option<String>, Failure> {
        if reply.code == code::NO_NODE {
            return Ok(None);
        }
        self.ok(reply)?;
        let (data, _) = messages::data(&reply.body).ok_or_else(unreadable)?;
        // Invalid UTF-8 is neither.
        Ok(Some(String::from_utf8(data.to_vec()).unwrap_or_default()))
    }

    /// The version of a marker from the answer to `exists`; never 0.
    pub(super) fn marked(&self, reply: &LinkReply) -> Result<Option<u64>, Failure> {
        if reply.code == code::NO_NODE {
            return Ok(None);
        }
        self.ok(reply)?;
        let stat = Stat::read(&mut Reader(&reply.body)).ok_or_else(unreadable)?;
        Ok(Some(marker_version(stat)))
    }
}

/// The path of a part of the lock's queue. The child that identifies the creation has a different form of
/// name.
pub(super) fn part_path(path: &str, id: u64) -> String {
    format!("{path}/line-{id}")
}

/// The node's version for the version of a marker; one that no node has if it does not fit.
pub(super) fn compared(marker: u64) -> i32 {
    i32::try_from(marker - 1).unwrap_or(ANY - 1)
}

fn data_head(data: &[u8]) -> &str {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    std::str::from_utf8(&data[..end]).unwrap_or_default()
}

/// Versions are counted from the node's creation.
pub(super) fn stamp(stat: Stat, creation: (u64, u64)) -> Stamp {
    let base = stat.created.unsigned_abs();
    Stamp { base, version: base + u64::from(stat.version.unsigned_abs()), creation }
}

/// Never 0.
fn marker_version(stat: Stat) -> u64 {
    u64::from(stat.version.unsigned_abs()) + 1
}

pub(super) fn unreadable() -> Failure {
    Failure::Unknown(Failure::cause("an answer of ZooKeeper cannot be read"))
}
