//! A ZooKeeper ensemble as a compare-and-swap backend.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use futures_util::future::{FutureExt, join, join_all};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::commit::CommitSteps;
use super::dial::Dialer;
use super::jute::Reader;
use super::link::{Link, LinkReply, Lives};
use super::messages::{
    self, ANY, Lasts, MultiOp, Stepped, code, exists, get_children, get_data, multi, watch_below,
};
use super::nodes::{Nodes, compared, part_path, stamp, unreadable};
use super::path::decoded;
use super::url::ZooKeeperTarget;
use super::watch::ZooKeeperWatch;
use tenure_core::CLIENT;
use tenure_core::cas::{
    Backend, Committed, Listed, ListedRecords, LockWatch, Session, Stored, Swap, ValueChange, Watched,
};
use tenure_core::error::Result;
use tenure_core::name::LockName;
use tenure_core::net::{Address, by};
use tenure_core::runtime::Runtime;
use tenure_core::store::{BareThread, Cursor, Failure, StoreFuture};
use tenure_core::sync::Locked;

/// Extra session timeout beyond the life of a session. A server forwards its clients' pings to the leader
/// every half tick, which is one second with the usual tick of two. If it dies before it forwards one, the
/// previous ping counts, which is a second older. The other of these two seconds is included in the life of
/// each session.
const SLACK: Duration = Duration::from_secs(1);
/// Timeout of a session without holds.
const PLAIN_LIFE: Duration = Duration::from_secs(10);
/// Maximum request size: ZooKeeper's default of `jute.maxbuffer`.
const LONGEST: usize = 1_048_575;
/// Maximum size of a lock, within [`LONGEST`].
const LIMIT: usize = 1_000_000;
/// A server that was heard of within this time is there: sessions send a ping each second.
const HEARD: Duration = Duration::from_secs(2);
/// Maximum locks per page of a listing.
const PAGE: usize = 500;
/// A page of a listing ends after this many bytes, because a single lock may have a megabyte.
const PAGE_BYTES: usize = 4 << 20;
/// Locks in the first batch of a page. Each further batch is twice as large.
const BATCH: usize = 8;
/// Up to this many markers are looked at one by one, and more by their list.
const LISTED: usize = 8;
/// The oldest supported version.
const OLDEST: [u32; 2] = [3, 6];

/// State shared by all clones.
struct EnsembleShared {
    dialer: Arc<Dialer>,
    links: Locked<Links>,
    /// Lets one task at a time open a session, while the others wait for it.
    opening: Mutex<()>,
    /// Whether a server was asked for its version, which takes a connection of its own.
    is_new_enough: AtomicBool,
    /// Number of lock nodes created by this client.
    created: AtomicU64,
    nodes: Arc<Nodes>,
}

#[derive(Default)]
struct Links {
    /// The sessions of this client's sessions.
    own: BTreeMap<Session, Arc<Link>>,
    /// The session used while there are no sessions.
    plain: Option<Arc<Link>>,
}

/// A ZooKeeper ensemble. Clones share its sessions.
#[derive(Clone)]
pub(super) struct Ensemble(Arc<EnsembleShared>);

impl Ensemble {
    pub(super) fn new(target: ZooKeeperTarget, runtime: Arc<dyn Runtime>) -> Self {
        let nodes = Arc::new(Nodes::new(&target));
        Self(Arc::new(EnsembleShared {
            dialer: Arc::new(Dialer::new(target, runtime)),
            links: Locked::default(),
            opening: Mutex::default(),
            is_new_enough: AtomicBool::new(false),
            created: AtomicU64::new(0),
            nodes,
        }))
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.0.links.lock()
    }

    fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.0.dialer.runtime
    }

    pub(super) fn dialer(&self) -> &Arc<Dialer> {
        &self.0.dialer
    }

    pub(super) fn shared_nodes(&self) -> Arc<Nodes> {
        Arc::clone(&self.0.nodes)
    }

    fn nodes(&self) -> &Nodes {
        &self.0.nodes
    }

    /// The session to send requests on: a session's, if there is one.
    async fn link(&self) -> Result<Arc<Link>, Failure> {
        let known = || {
            let mut links = self.links();
            links.own.retain(|_, link| !link.is_over());
            links.plain.take_if(|link| link.is_over());
            let own = links.own.values();
            let all = || own.clone().chain(&links.plain);
            all().find(|link| link.is_connected()).or(all().next()).cloned()
        };
        if let Some(link) = known() {
            return Ok(link);
        }
        let _turn = self.0.opening.lock().await;
        if let Some(link) = known() {
            return Ok(link);
        }
        let link = Arc::new(Link::open(&self.0.dialer, PLAIN_LIFE, Lives::Connection).await?);
        self.links().plain = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Sends requests in order.
    async fn ask(&self, requests: Vec<Vec<u8>>) -> Result<Vec<LinkReply>, Failure> {
        Ok(self.link().await?.ask(requests, None).await?.1)
    }

    /// A no-op that a majority must commit. Later reads on the same connection see everything committed
    /// before it. Otherwise a server might be behind, or deposed without knowing it.
    fn barrier(&self) -> Vec<u8> {
        multi(&[MultiOp::Check { path: self.nodes().prefix(), version: ANY }])
    }

    /// Decodes the result of a multi.
    fn stepped(&self, reply: &LinkReply) -> Result<Stepped, Failure> {
        self.nodes().ok(reply)?;
        messages::steps(&reply.body).ok_or_else(unreadable)
    }

    /// Checks that the barrier was committed. A missing node makes it fail, but that result is committed too.
    fn passed(&self, reply: &LinkReply) -> Result<(), Failure> {
        match self.stepped(reply)? {
            Ok(_) | Err((_, code::NO_NODE)) => Ok(()),
            Err((_, code)) => Err(self.nodes().failure(code)),
        }
    }

    /// Creates the parent nodes.
    pub(super) async fn make_room(&self, link: &Link) -> Result<(), Failure> {
        let mut paths: Vec<String> = self
            .nodes()
            .prefix()
            .match_indices('/')
            .skip(1)
            .map(|(at, _)| self.nodes().prefix()[..at].to_owned())
            .collect();
        let prefix = self.nodes().prefix();
        paths.push(prefix.to_owned());
        paths.extend(["lock", "lease", "record"].map(|child| format!("{prefix}/{child}")));
        for path in &paths {
            // Existing nodes are left alone even if the login could not create them.
            let create =
                MultiOp::Create { path, data: "", lasts: Lasts::Always, rights: self.nodes().rights };
            let (_, replies) = link.ask(vec![exists(path, false), create.alone()], None).await?;
            let [there, made] = &replies[..] else { return Err(unreadable()) };
            if there.code != code::OK && made.code != code::NODE_EXISTS {
                self.nodes().ok(made).map_err(|failure| match made.code {
                    code::NO_AUTH => Failure::Refused(Failure::cause(format!(
                        "ZooKeeper has no node {path}, and does not let this client create it: create it, \
                         or give the login in the URL the right to"
                    ))),
                    _ => failure,
                })?;
            }
        }
        Ok(())
    }

    async fn read(self, name: LockName) -> Result<Option<Stored>, Failure> {
        let replies = self.ask(vec![self.barrier(), get_data(&self.nodes().lock_path(&name), false)]).await?;
        let [barrier, found] = &replies[..] else { return Err(unreadable()) };
        self.passed(barrier)?;
        self.nodes().stored(found)
    }

    async fn record(self, name: LockName) -> Result<Option<String>, Failure> {
        let read = get_data(&self.nodes().record_path(&name), false);
        let replies = self.ask(vec![self.barrier(), read]).await?;
        let [barrier, found] = &replies[..] else { return Err(unreadable()) };
        self.passed(barrier)?;
        self.nodes().text(found)
    }

    async fn parts(self, name: LockName, ids: Vec<u64>) -> Result<Vec<Option<String>>, Failure> {
        let path = self.nodes().lock_path(&name);
        let reads = ids.iter().map(|id| get_data(&part_path(&path, *id), false));
        let replies = self.ask(std::iter::once(self.barrier()).chain(reads).collect()).await?;
        let (barrier, found) = replies.split_first().ok_or_else(unreadable)?;
        self.passed(barrier)?;
        found.iter().map(|reply| self.nodes().text(reply)).collect()
    }

    async fn commit(self, change: Swap) -> Result<Committed, Failure> {
        let new = || (change.guard.0, self.0.created.fetch_add(1, Ordering::Relaxed));
        let creation = change.seen.map_or_else(new, |seen| seen.creation);
        let mut commit = CommitSteps::new(self.nodes(), &change, creation);
        let (mut has_room, link) = (false, self.link().await?);
        loop {
            let (steps, record_step) = commit.all();
            let (first_victim, request) = (steps.len() - commit.victims.len(), multi(&steps));
            // Its number is sent before it.
            if request.len() + size_of::<u32>() > LONGEST {
                return Err(Failure::Refused(Failure::cause(format!(
                    "this lock is {} bytes to write, its name included, and ZooKeeper accepts {LONGEST} \
                     (jute.maxbuffer): use a shorter name or fewer waiters",
                    request.len()
                ))));
            }
            let read = change.reads_record.then(|| get_data(&commit.record, false));
            let requests = std::iter::once(request).chain(read).collect();
            let (connection, replies) = link.ask(requests, None).await?;
            let (reply, read) = replies.split_first().ok_or_else(unreadable)?;
            let (at, code) = match self.stepped(reply)? {
                Ok(stat) => {
                    let kept = change.seen.filter(|_| change.lock == ValueChange::Keep);
                    let stamp = kept.unwrap_or_else(|| stamp(stat.unwrap_or_default(), creation));
                    let record = read.first().and_then(|read| self.nodes().text(read).ok());
                    return Ok(Committed::Done { stamp, record });
                }
                Err(failed) => failed,
            };
            match code {
                // The victim's session has ended, so there is nothing to invalidate.
                code::NO_NODE if at >= first_victim => drop(commit.victims.remove(at - first_victim)),
                code::NO_NODE if at == record_step && commit.has_record => commit.has_record = false,
                code::NODE_EXISTS if at == record_step => commit.has_record = true,
                code::NO_NODE if at == record_step || at > 0 && change.seen.is_none() && !has_room => {
                    self.make_room(&link).await.map_err(Failure::not_sent)?;
                    has_room = true;
                }
                code::NO_NODE | code::BAD_VERSION | code::NODE_EXISTS => {
                    return self.conflict(&link, connection, &commit.marker, &commit.path).await;
                }
                code => return Err(self.nodes().failure(code)),
            }
        }
    }

    /// Reads the state that caused a conflict. Nothing was written, so a failure here is never of unknown
    /// outcome.
    async fn conflict(
        &self,
        link: &Link,
        connection: u64,
        marker: &str,
        path: &str,
    ) -> Result<Committed, Failure> {
        // The marker is read before the lock: if a hold is ended between the two reads, the next commit finds
        // the marker changed.
        let reads = vec![exists(marker, false), get_data(path, false)];
        // The connection on which the multi failed has seen the conflicting state, so it needs no barrier.
        let replies = match link.ask(reads.clone(), Some(connection)).await {
            Ok((_, replies)) => replies,
            Err(_) => {
                let reads = std::iter::once(self.barrier()).chain(reads).collect();
                let mut replies = self.ask(reads).await.map_err(Failure::not_sent)?;
                self.passed(&replies.remove(0)).map_err(Failure::not_sent)?;
                replies
            }
        };
        let [marker, found] = &replies[..] else { return Err(unreadable().not_sent()) };
        let marker = self.nodes().marked(marker).map_err(Failure::not_sent)?;
        Ok(Committed::Conflict { stored: self.nodes().stored(found).map_err(Failure::not_sent)?, marker })
    }

    async fn open(self, life: Duration, is_kept: bool) -> Result<(Session, u64), Failure> {
        let wanted = life + SLACK;
        let lives = if is_kept { Lives::Kept } else { Lives::Alone };
        let opened = match Link::open(&self.0.dialer, wanted, lives).await {
            Err(failure) if failure.is_full() => {
                // The client's other session occupies a connection, and matters less than this one.
                let plain = self.links().plain.take();
                let Some(plain) = plain else { return Err(failure) };
                plain.end().await;
                Link::open(&self.0.dialer, wanted, lives).await
            }
            opened => opened,
        };
        let link = Arc::new(opened?);
        if link.life != wanted {
            let (given, bound) = (link.life.as_secs_f64(), ["minSessionTimeout", "maxSessionTimeout"]);
            let (least, which, other) = match link.life < wanted {
                true => ("most", bound[1], "shorter"),
                false => ("least", bound[0], "longer"),
            };
            let wanted = wanted.as_secs();
            let what = format!(
                "ZooKeeper's sessions last {given} s at {least}, and a lease of this ttl needs one of {wanted} s: \
                 a {other} ttl fits, or set {which} in zoo.cfg"
            );
            return Err(Failure::impossible(what));
        }
        loop {
            let session = self.runtime().random().max(1);
            let path = self.nodes().marker(session);
            let rights = self.nodes().rights;
            let create = MultiOp::Create { path: &path, data: CLIENT, lasts: Lasts::Session, rights };
            let (_, replies) = link.ask(vec![create.alone()], None).await?;
            let [reply] = &replies[..] else { return Err(unreadable()) };
            match reply.code {
                code::NODE_EXISTS => continue,
                code::NO_NODE => {
                    self.make_room(&link).await?;
                    continue;
                }
                _ => self.nodes().ok(reply)?,
            }
            if is_kept {
                let mut links = self.links();
                links.own.insert(session, link);
                // Its link stays open for the watches that use it.
                links.plain = None;
            }
            return Ok((session, 1));
        }
    }

    /// Proves that a session is alive. With the version of its marker that was `seen` last, returns the current
    /// one.
    async fn prove(self, session: Session, seen: Option<u64>) -> Result<Option<u64>, Failure> {
        let Some(link) = self.links().own.get(&session).cloned() else { return Ok(None) };
        let path = self.nodes().marker(session);
        let mut expected = seen.map(compared);
        loop {
            // A no-op that a majority commits, sent on the session itself, proves the session alive.
            let step = multi(&[MultiOp::Check { path: &path, version: expected.unwrap_or(ANY) }]);
            let read = (seen.is_some() && expected.is_none()).then(|| exists(&path, false));
            let replies = match link.ask(std::iter::once(step).chain(read).collect(), None).await {
                Ok((_, replies)) => replies,
                Err(_) if link.is_over() => return Ok(self.forget(session)),
                Err(failure) => return Err(failure),
            };
            let (step, marker) = replies.split_first().ok_or_else(unreadable)?;
            return match (step.code, self.stepped(step)) {
                (code::SESSION_EXPIRED, _) | (_, Ok(Err((_, code::SESSION_EXPIRED | code::NO_NODE)))) => {
                    Ok(self.forget(session))
                }
                (_, Ok(Err((_, code::BAD_VERSION)))) if expected.take().is_some() => continue,
                (_, Ok(Err((_, code)))) => Err(self.nodes().failure(code)),
                (_, Ok(Ok(_))) => {
                    marker.first().map_or(Ok(seen.or(Some(0))), |marker| self.nodes().marked(marker))
                }
                (_, Err(failure)) => Err(failure),
            };
        }
    }

    /// Removes a session that no longer exists.
    fn forget(&self, session: Session) -> Option<u64> {
        self.links().own.remove(&session);
        None
    }

    async fn close(self, session: Session) -> Result<(), Failure> {
        let link = self.links().own.remove(&session);
        // Its watches begin again on another session, and it ends with the last request on it.
        link.iter().for_each(|link| link.end_watches());
        drop(link);
        let path = self.nodes().marker(session);
        let replies = self.ask(vec![MultiOp::Delete { path: &path, version: ANY }.alone()]).await?;
        let [reply] = &replies[..] else { return Err(unreadable()) };
        if reply.code == code::NO_NODE { Ok(()) } else { self.nodes().ok(reply) }
    }

    async fn bump(self, sessions: Vec<Session>) -> Result<Vec<Option<u64>>, Failure> {
        let writes = sessions.iter().map(|session| {
            let path = self.nodes().marker(*session);
            MultiOp::Set { path: &path, data: "", version: ANY }.alone()
        });
        let replies = self.ask(writes.collect()).await?;
        replies.iter().map(|reply| self.nodes().marked(reply)).collect()
    }

    async fn living(self, sessions: Vec<Session>) -> Result<Vec<bool>, Failure> {
        if sessions.len() > LISTED {
            return self.living_of_all(sessions).await;
        }
        let looks = sessions.iter().map(|session| exists(&self.nodes().marker(*session), false));
        let replies = self.ask(std::iter::once(self.barrier()).chain(looks).collect()).await?;
        let (barrier, found) = replies.split_first().ok_or_else(unreadable)?;
        self.passed(barrier)?;
        found.iter().map(|reply| Ok(self.nodes().marked(reply)?.is_some())).collect()
    }

    /// The same by the names of all markers, for so many sessions that a request each would cost more.
    async fn living_of_all(self, sessions: Vec<Session>) -> Result<Vec<bool>, Failure> {
        let all = get_children(&self.nodes().marker_parent());
        let replies = self.ask(vec![self.barrier(), all]).await?;
        let [barrier, markers] = &replies[..] else { return Err(unreadable()) };
        self.passed(barrier)?;
        let markers = match markers.code {
            code::NO_NODE => Vec::new(),
            _ => {
                self.nodes().ok(markers)?;
                Reader(&markers.body).texts().ok_or_else(unreadable)?
            }
        };
        let living: BTreeSet<String> = markers.into_iter().map(Into::into).collect();
        Ok(sessions.into_iter().map(|session| living.contains(&format!("{session:x}"))).collect())
    }

    async fn markers(&self) -> Result<Vec<String>, Failure> {
        const AT_ONCE: usize = 1_000;
        let parent = self.nodes().marker_parent();
        let names = self.ask(vec![get_children(&parent)]).await?;
        let [names] = &names[..] else { return Err(unreadable()) };
        if names.code == code::NO_NODE {
            return Ok(Vec::new());
        }
        self.nodes().ok(names)?;
        let names = Reader(&names.body).texts().ok_or_else(unreadable)?;
        let mut markers = Vec::new();
        for part in names.chunks(AT_ONCE) {
            let reads = part.iter().map(|name| get_data(&format!("{parent}/{name}"), false));
            for reply in self.ask(reads.collect()).await? {
                markers.extend(self.nodes().text(&reply)?);
            }
        }
        Ok(markers)
    }

    async fn watch(self, name: LockName, what: Watched) -> Result<Box<dyn LockWatch>, Failure> {
        let link = self.link().await?;
        let (path, first) = match what {
            Watched::Lock => {
                let leases = watch_below(&self.nodes().marker_parent());
                (self.nodes().lock_path(&name), Some(leases))
            }
            Watched::Record => (self.nodes().record_path(&name), None),
        };
        let watching = ZooKeeperWatch::begin(Arc::clone(&self.0.nodes), link, path);
        watching.look(first).await?;
        Ok(Box::new(watching))
    }

    async fn list(self, prefix: String, from: Cursor) -> Result<Listed, Failure> {
        let path = |name: &LockName| self.nodes().lock_path(name);
        let (found, next) = self.page("lock", &prefix, &from, path).await?;
        let mut listed = Listed { locks: Vec::new(), next };
        for (name, reply) in found {
            listed.locks.extend(self.nodes().stored(&reply)?.map(|stored| (name, stored)));
        }
        Ok(listed)
    }

    async fn records(self, prefix: String, from: Cursor) -> Result<ListedRecords, Failure> {
        let path = |name: &LockName| self.nodes().record_path(name);
        let (found, next) = self.page("record", &prefix, &from, path).await?;
        let mut listed = ListedRecords { records: Vec::new(), next };
        for (name, reply) in found {
            listed.records.extend(self.nodes().text(&reply)?.map(|text| (name, text)));
        }
        Ok(listed)
    }

    /// A page of the nodes of this kind whose names begin with `prefix`, and the next one.
    async fn page(
        &self,
        kind: &str,
        prefix: &str,
        from: &Cursor,
        path: impl Fn(&LockName) -> String,
    ) -> Result<(Vec<(LockName, LinkReply)>, Option<Cursor>), Failure> {
        let directory = format!("{}/{kind}", self.nodes().prefix());
        let replies = self.ask(vec![self.barrier(), get_children(&directory)]).await?;
        let [barrier, children] = &replies[..] else { return Err(unreadable()) };
        self.passed(barrier)?;
        if children.code == code::NO_NODE {
            return Ok((Vec::new(), None));
        }
        self.nodes().ok(children)?;
        let children = Reader(&children.body).texts().ok_or_else(unreadable)?;
        let mut names: Vec<String> = children.into_iter().filter_map(decoded).collect();
        names.retain(|name| name.starts_with(prefix) && *name > from.0);
        names.sort_unstable();
        let mut rest = names.into_iter().map(LockName::in_store).peekable();
        let (mut page, mut next, mut bytes, mut batch) = (Vec::new(), None, 0, BATCH);
        while page.len() < PAGE && bytes < PAGE_BYTES && rest.peek().is_some() {
            let some: Vec<LockName> = rest.by_ref().take(batch.min(PAGE - page.len())).collect();
            let replies = self.ask(some.iter().map(|name| get_data(&path(name), false)).collect()).await?;
            batch *= 2;
            bytes += replies.iter().map(|reply| reply.body.len()).sum::<usize>();
            let last = some.last().filter(|_| rest.peek().is_some());
            next = last.map(|name| Cursor(name.as_str().to_owned()));
            page.extend(some.into_iter().zip(replies));
        }
        Ok((page, next))
    }

    async fn ready(self) -> Result<(), Failure> {
        // The server answers the pings of a session, and drops its clients when it loses its majority.
        let is_heard = |link: &Arc<Link>| link.is_connected() && link.heard_within(HEARD);
        if self.0.is_new_enough.load(Ordering::Relaxed) && self.links().own.values().any(is_heard) {
            return Ok(());
        }
        let replies = self.ask(vec![self.barrier(), exists(self.nodes().prefix(), false)]).await?;
        let [barrier, there] = &replies[..] else { return Err(unreadable()) };
        if !self.0.is_new_enough.load(Ordering::Relaxed)
            && let Some(version) = self.version().await
        {
            let numbers: Vec<u32> = version.split(['.', '-']).map_while(|part| part.parse().ok()).collect();
            if numbers.as_slice() < &OLDEST[..] {
                let what = format!("ZooKeeper {version} is too old: tenure needs 3.6 or newer");
                return Err(Failure::Refused(Failure::cause(what)));
            }
        }
        self.passed(barrier)?;
        self.0.is_new_enough.store(true, Ordering::Relaxed);
        if there.code == code::NO_NODE { Ok(()) } else { self.nodes().ok(there) }
    }

    /// The server's version, if available: the command `srvr` may be disabled.
    async fn version(&self) -> Option<String> {
        const LIMIT: Duration = Duration::from_millis(300);
        let target = &self.0.dialer.target;
        if target.tls.is_some() {
            return None;
        }
        let runtime = self.runtime();
        let asked = async { version_in(&said_to(&target.addresses[self.0.dialer.first()], b"srvr").await?) };
        by(&**runtime, runtime.now() + LIMIT, asked).await.flatten()
    }
}

/// The reply to a four-letter command.
async fn said_to(address: &Address, word: &[u8; 4]) -> Option<String> {
    let Address::Tcp(host, port) = address else { return None };
    let mut stream = TcpStream::connect((host.as_str(), *port)).await.ok()?;
    stream.write_all(word).await.ok()?;
    let mut said = Vec::new();
    stream.take(10_000).read_to_end(&mut said).await.ok()?;
    String::from_utf8(said).ok()
}

/// The version in a reply to `srvr`.
fn version_in(said: &str) -> Option<String> {
    let version = said.strip_prefix("Zookeeper version: ")?.split([',', '\n']).next()?;
    Some(version.split("--").next().unwrap_or(version).to_owned())
}

/// What a server tells of itself, as far as its `4lw.commands.whitelist` allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZooKeeperDiagnosis {
    /// Its address.
    pub at: String,
    /// Its version.
    pub version: Option<String>,
    /// Its part in the ensemble: `leader`, `follower`, `observer` or `standalone`.
    pub mode: Option<String>,
    /// The number of members of the ensemble that vote.
    pub voters: Option<usize>,
    /// `maxClientCnxns`.
    pub max_clients: Option<u64>,
}

/// Asks each server of a URL about itself.
pub async fn diagnose_zookeeper(url: &str) -> Vec<ZooKeeperDiagnosis> {
    let Ok(target) = ZooKeeperTarget::parse(url) else { return Vec::new() };
    let asked = target.addresses.iter().map(async |address| {
        let (srvr, conf) = join(said_to(address, b"srvr"), said_to(address, b"conf")).await;
        let (srvr, conf) = (srvr.unwrap_or_default(), conf.unwrap_or_default());
        let after = |said: &str, key: &str| {
            said.lines().find_map(|line| line.strip_prefix(key)).map(|value| value.trim().to_owned())
        };
        let mode = after(&srvr, "Mode: ");
        let is_voter = |line: &&str| line.starts_with("server.") && !line.contains(":observer");
        let voters = match conf.lines().filter(is_voter).count() {
            _ if mode.as_deref() == Some("standalone") => Some(1),
            0 => None,
            count => Some(count),
        };
        let max_clients = after(&conf, "maxClientCnxns=").and_then(|limit| limit.parse().ok());
        ZooKeeperDiagnosis { at: address.to_string(), version: version_in(&srvr), mode, voters, max_clients }
    });
    join_all(asked).await
}

/// What each client's session says of it; nothing for a session whose hold was ended by another client.
///
/// # Errors
/// `is_invalid` for a URL that no store takes; `is_unreachable` without an answer in time, `is_refused` where the
/// server refuses.
pub async fn zookeeper_clients(url: &str) -> Result<Vec<String>> {
    let target = ZooKeeperTarget::parse(url)?;
    let shown = Arc::from(target.shown());
    BareThread::run(&shown, |runtime| async move { Ensemble::new(target, runtime).markers().await }).await
}

impl Backend for Ensemble {
    fn read(&self, name: &LockName) -> StoreFuture<Option<Stored>> {
        Self::read(self.clone(), name.clone()).boxed()
    }

    fn record(&self, name: &LockName) -> StoreFuture<Option<String>> {
        Self::record(self.clone(), name.clone()).boxed()
    }

    fn parts(&self, name: &LockName, ids: Vec<u64>) -> StoreFuture<Vec<Option<String>>> {
        Self::parts(self.clone(), name.clone(), ids).boxed()
    }

    fn commit(&self, change: Swap) -> StoreFuture<Committed> {
        Self::commit(self.clone(), change).boxed()
    }

    fn open(&self, life: Duration, is_kept: bool) -> StoreFuture<(Session, u64)> {
        Self::open(self.clone(), life, is_kept).boxed()
    }

    fn keep(&self, session: Session, seen: u64) -> StoreFuture<Option<u64>> {
        Self::prove(self.clone(), session, Some(seen)).boxed()
    }

    fn touch(&self, session: Session) -> StoreFuture<bool> {
        Self::prove(self.clone(), session, None).map(|proven| Ok(proven?.is_some())).boxed()
    }

    /// The pings of a session keep it.
    fn keeps_sessions(&self) -> bool {
        true
    }

    fn close(&self, session: Session) -> StoreFuture<()> {
        Self::close(self.clone(), session).boxed()
    }

    fn bump(&self, sessions: Vec<Session>) -> StoreFuture<Vec<Option<u64>>> {
        Self::bump(self.clone(), sessions).boxed()
    }

    fn living(&self, sessions: Vec<Session>) -> StoreFuture<Vec<bool>> {
        Self::living(self.clone(), sessions).boxed()
    }

    fn watch(&self, name: &LockName, what: Watched) -> StoreFuture<Box<dyn LockWatch>> {
        Self::watch(self.clone(), name.clone(), what).boxed()
    }

    fn records(&self, prefix: &str, from: Cursor) -> StoreFuture<ListedRecords> {
        Self::records(self.clone(), prefix.to_owned(), from).boxed()
    }

    fn list(&self, prefix: &str, from: Cursor) -> StoreFuture<Listed> {
        Self::list(self.clone(), prefix.to_owned(), from).boxed()
    }

    fn ready(&self) -> StoreFuture<()> {
        Self::ready(self.clone()).boxed()
    }

    fn silent(&self) {
        // With a single server there is nowhere else to go; the connection detects a dead server itself.
        if self.0.dialer.target.addresses.len() > 1 {
            let links = self.links();
            links.own.values().chain(&links.plain).for_each(|link| link.cut());
        }
    }

    fn limit(&self) -> usize {
        LIMIT
    }
}

impl fmt::Debug for Ensemble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ensemble").field(&self.0.dialer.target).finish()
    }
}
