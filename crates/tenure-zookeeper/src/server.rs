//! One ensemble of ZooKeeper, as what compares and swaps.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex as Turn;

use super::dial::Dialer;
use super::jute::Reader;
use super::link::{Link, Lives, Reply};
use super::messages::{
    self, ANY, Lasts, Step, Stepped, code, exists, get_children, get_data, multi, watch_below,
};
use super::nodes::{Nodes, stamp, unreadable};
use super::path::decoded;
use super::url::Target;
use super::watch::Watching;
use tenure_core::cas::{Backend, Change, Committed, Handle, Listed, PartChange, Stamp, Stored, Watch};
use tenure_core::name::LockName;
use tenure_core::net::by;
use tenure_core::runtime::Runtime;
use tenure_core::store::{Cursor, Failure};

/// A session lives for so much longer than a handle has to. A server tells the one that leads of
/// its clients at each half tick, which takes a second where ticks take two, as is usual. If it
/// dies before, what counts is the ping before: a second earlier. The other of these two seconds is
/// in the life of each handle.
const SLACK: Duration = Duration::from_secs(1);
/// What a session is opened with that no hold is bound to.
const PLAIN_LIFE: Duration = Duration::from_secs(10);
/// ZooKeeper takes messages of 1,048,575 bytes, unless `jute.maxbuffer` says less.
const LONGEST: usize = 1_048_575;
/// So much of that may be a lock.
const LIMIT: usize = 1_000_000;
/// So many locks are in one part of a listing.
const PAGE: usize = 500;
/// The oldest version that is supported.
const OLDEST: [u32; 2] = [3, 6];

/// What all requests share.
struct Shared {
    dialer: Arc<Dialer>,
    links: Mutex<Links>,
    /// One task opens a session, and the others wait for it.
    opening: Turn<()>,
    /// How many nodes were created.
    created: AtomicU64,
    nodes: Arc<Nodes>,
}

#[derive(Default)]
struct Links {
    /// The sessions of this client's handles.
    own: BTreeMap<Handle, Arc<Link>>,
    /// By this, requests go as long as there are no handles.
    plain: Option<Arc<Link>>,
}

/// One ensemble of ZooKeeper. Clones share its sessions.
#[derive(Clone)]
pub(super) struct Server(Arc<Shared>);

impl Server {
    pub(super) fn new(target: Target, runtime: Arc<dyn Runtime>) -> Self {
        let nodes = Arc::new(Nodes::new(&target));
        Self(Arc::new(Shared {
            dialer: Arc::new(Dialer::new(target, runtime)),
            links: Mutex::default(),
            opening: Turn::default(),
            created: AtomicU64::new(0),
            nodes,
        }))
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.0.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.0.dialer.runtime
    }

    fn nodes(&self) -> &Nodes {
        &self.0.nodes
    }

    /// The session by which requests go: one of a handle if there is one.
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

    /// Sends requests in a row.
    async fn ask(&self, requests: Vec<Vec<u8>>) -> Result<Vec<Reply>, Failure> {
        Ok(self.link().await?.ask(requests, None).await?.1)
    }

    /// A step that changes nothing, and that most servers agree to all the same. What is read by
    /// the same connection afterwards has all that was committed before. A server by itself may be
    /// behind, and one that was deposed may not know it yet.
    fn barrier(&self) -> Vec<u8> {
        multi(&[Step::Check { path: self.nodes().prefix(), version: ANY }])
    }

    /// What became of several steps.
    fn stepped(&self, reply: &Reply) -> Result<Stepped, Failure> {
        self.nodes().ok(reply)?;
        messages::steps(&reply.body).ok_or_else(unreadable)
    }

    /// A barrier that most servers have agreed to: it fails where the node is not there, which they
    /// agree to as well.
    fn passed(&self, reply: &Reply) -> Result<(), Failure> {
        match self.stepped(reply)? {
            Ok(_) | Err((_, code::NO_NODE)) => Ok(()),
            Err((_, code)) => Err(self.nodes().failure(code)),
        }
    }

    /// Creates the nodes above all others.
    async fn make_room(&self) -> Result<(), Failure> {
        let mut paths: Vec<String> = self
            .nodes()
            .prefix()
            .match_indices('/')
            .skip(1)
            .map(|(at, _)| self.nodes().prefix()[..at].to_owned())
            .collect();
        paths.extend([self.nodes().prefix().to_owned(), format!("{}/lock", self.nodes().prefix())]);
        paths.push(format!("{}/lease", self.nodes().prefix()));
        for path in &paths {
            // Those that the login may not create, but that are there, are left alone.
            let create = Step::Create { path, data: "", lasts: Lasts::Always, rights: self.nodes().rights };
            let replies = self.ask(vec![exists(path, false), create.alone()]).await?;
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

    async fn parts(self, name: LockName, ids: Vec<u64>) -> Result<Vec<Option<String>>, Failure> {
        let path = self.nodes().lock_path(&name);
        let reads = ids.iter().map(|id| get_data(&part_path(&path, *id), false));
        let replies = self.ask(std::iter::once(self.barrier()).chain(reads).collect()).await?;
        let (barrier, found) = replies.split_first().ok_or_else(unreadable)?;
        self.passed(barrier)?;
        found.iter().map(|reply| self.nodes().text(reply)).collect()
    }

    async fn commit(self, change: Change) -> Result<Committed, Failure> {
        let (path, marker) = (self.nodes().lock_path(&change.name), self.nodes().marker(change.guard.0));
        let (handle, version) = change.guard;
        let creation = change
            .seen
            .map_or_else(|| (handle, self.0.created.fetch_add(1, Ordering::Relaxed)), |seen| seen.creation);
        let head = format!("{:x}-{:x}", creation.0, creation.1);
        let child = format!("{path}/{head}");
        let data = change.text.as_ref().map(|text| format!("{head}\n{text}"));
        let mut victims: Vec<String> =
            change.victims.iter().map(|handle| self.nodes().marker(*handle)).collect();
        let parts: Vec<(String, &PartChange)> =
            change.parts.iter().map(|part| (part_path(&path, part.id), part)).collect();
        let (mut has_room, link) = (false, self.link().await?);
        loop {
            let guarded = i32::try_from(version - 1).unwrap_or(ANY - 1);
            let mut steps = vec![Step::Check { path: &marker, version: guarded }];
            let (lasts, rights) = (Lasts::Always, self.nodes().rights);
            let create = |path| Step::Create { path, data: "", lasts, rights };
            // A node goes after those below it.
            let removed = parts.iter().filter(|(_, part)| part.text.is_none());
            steps.extend(removed.map(|(path, _)| Step::Delete { path, version: ANY }));
            let at = |seen: Stamp| i32::try_from(seen.version - seen.base).unwrap_or(ANY - 1);
            match (change.seen, &data) {
                // ZooKeeper does not tell when it created what it creates in one step with others.
                (None, Some(data)) => {
                    steps.extend([create(&path), Step::Set { path: &path, data, version: 0 }, create(&child)])
                }
                (Some(seen), Some(data)) => steps.extend([
                    Step::Check { path: &child, version: ANY },
                    Step::Set { path: &path, data, version: at(seen) },
                ]),
                (Some(seen), None) => steps.extend([
                    Step::Delete { path: &child, version: ANY },
                    Step::Delete { path: &path, version: at(seen) },
                ]),
                (None, None) => steps.extend([create(&path), Step::Delete { path: &path, version: ANY }]),
            }
            steps.extend(parts.iter().filter_map(|(path, part)| {
                let data = part.text.as_deref()?;
                Some(match part.is_new {
                    true => Step::Create { path, data, lasts, rights },
                    false => Step::Set { path, data, version: ANY },
                })
            }));
            let first_victim = steps.len();
            steps.extend(victims.iter().map(|path| Step::Set { path, data: "", version: ANY }));
            let request = multi(&steps);
            if request.len() > LONGEST {
                return Err(Failure::Refused(Failure::cause(format!(
                    "this lock is {} bytes to write, its name included, and ZooKeeper takes {LONGEST} \
                     (jute.maxbuffer): a shorter name or fewer waiters fit",
                    request.len()
                ))));
            }
            let (connection, replies) = link.ask(vec![request], None).await?;
            let [reply] = &replies[..] else { return Err(unreadable()) };
            let (at, code) = match self.stepped(reply)? {
                Ok(stat) => return Ok(Committed::Done(stamp(stat.unwrap_or_default(), creation))),
                Err(failed) => failed,
            };
            match code {
                // A victim that is gone needs no telling.
                code::NO_NODE if at >= first_victim => drop(victims.remove(at - first_victim)),
                code::NO_NODE if at > 0 && change.seen.is_none() && !has_room => {
                    self.make_room().await.map_err(not_sent)?;
                    has_room = true;
                }
                code::NO_NODE | code::BAD_VERSION | code::NODE_EXISTS => {
                    return self.conflict(&link, connection, &marker, &path).await;
                }
                code => return Err(self.nodes().failure(code)),
            }
        }
    }

    /// What stands there in place of what was expected. Nothing was written, so no failure here is
    /// of unknown outcome.
    async fn conflict(
        &self,
        link: &Link,
        connection: u64,
        marker: &str,
        path: &str,
    ) -> Result<Committed, Failure> {
        // The marker is read before the lock: if a hold is ended between the two, it is found
        // changed later.
        let reads = vec![exists(marker, false), get_data(path, false)];
        // The connection by which the step failed has seen what it failed by.
        let replies = match link.ask(reads.clone(), Some(connection)).await {
            Ok((_, replies)) => replies,
            Err(_) => {
                let reads = std::iter::once(self.barrier()).chain(reads).collect();
                let mut replies = self.ask(reads).await.map_err(not_sent)?;
                self.passed(&replies.remove(0)).map_err(not_sent)?;
                replies
            }
        };
        let [marker, found] = &replies[..] else { return Err(not_sent(unreadable())) };
        let marker = self.nodes().marked(marker).map_err(not_sent)?;
        Ok(Committed::Conflict { stored: self.nodes().stored(found).map_err(not_sent)?, marker })
    }

    async fn open(self, life: Duration, is_kept: bool) -> Result<(Handle, u64), Failure> {
        let wanted = life + SLACK;
        let lives = if is_kept { Lives::Kept } else { Lives::Alone };
        let link = Arc::new(Link::open(&self.0.dialer, wanted, lives).await?);
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
            let handle = self.runtime().random().max(1);
            let path = self.nodes().marker(handle);
            let rights = self.nodes().rights;
            let create = Step::Create { path: &path, data: "", lasts: Lasts::Session, rights };
            let (_, replies) = link.ask(vec![create.alone()], None).await?;
            let [reply] = &replies[..] else { return Err(unreadable()) };
            match reply.code {
                code::NODE_EXISTS => continue,
                code::NO_NODE => {
                    self.make_room().await?;
                    continue;
                }
                _ => self.nodes().ok(reply)?,
            }
            if is_kept {
                let mut links = self.links();
                links.own.insert(handle, link);
                // It stays for those who watch by it.
                links.plain = None;
            }
            return Ok((handle, 1));
        }
    }

    async fn keep(self, handle: Handle) -> Result<Option<u64>, Failure> {
        let Some(link) = self.links().own.get(&handle).cloned() else { return Ok(None) };
        let path = self.nodes().marker(handle);
        // A step that most servers agree to, by the session itself: it lives.
        let step = multi(&[Step::Check { path: &path, version: ANY }]);
        let replies = match link.ask(vec![step, exists(&path, false)], None).await {
            Ok((_, replies)) => replies,
            Err(_) if link.is_over() => return Ok(self.forget(handle)),
            Err(failure) => return Err(failure),
        };
        let [step, marker] = &replies[..] else { return Err(unreadable()) };
        match (step.code, self.stepped(step)) {
            (code::SESSION_EXPIRED, _) | (_, Ok(Err((_, code::SESSION_EXPIRED | code::NO_NODE)))) => {
                Ok(self.forget(handle))
            }
            (_, Ok(Err((_, code)))) => Err(self.nodes().failure(code)),
            (_, Ok(Ok(_))) => self.nodes().marked(marker),
            (_, Err(failure)) => Err(failure),
        }
    }

    /// A handle that is gone.
    fn forget(&self, handle: Handle) -> Option<u64> {
        self.links().own.remove(&handle);
        None
    }

    async fn close(self, handle: Handle) -> Result<(), Failure> {
        self.forget(handle);
        let path = self.nodes().marker(handle);
        let replies = self.ask(vec![Step::Delete { path: &path, version: ANY }.alone()]).await?;
        let [reply] = &replies[..] else { return Err(unreadable()) };
        if reply.code == code::NO_NODE { Ok(()) } else { self.nodes().ok(reply) }
    }

    async fn bump(self, handles: Vec<Handle>) -> Result<Vec<Option<u64>>, Failure> {
        let writes = handles.iter().map(|handle| {
            let path = self.nodes().marker(*handle);
            Step::Set { path: &path, data: "", version: ANY }.alone()
        });
        let replies = self.ask(writes.collect()).await?;
        replies.iter().map(|reply| self.nodes().marked(reply)).collect()
    }

    async fn living(self, handles: Vec<Handle>) -> Result<Vec<bool>, Failure> {
        let looks = handles.iter().map(|handle| exists(&self.nodes().marker(*handle), false));
        let replies = self.ask(std::iter::once(self.barrier()).chain(looks).collect()).await?;
        let (barrier, found) = replies.split_first().ok_or_else(unreadable)?;
        self.passed(barrier)?;
        found.iter().map(|reply| Ok(self.nodes().marked(reply)?.is_some())).collect()
    }

    async fn watch(self, name: LockName) -> Result<Box<dyn Watch>, Failure> {
        let link = self.link().await?;
        let path = self.nodes().lock_path(&name);
        let watching = Watching::begin(Arc::clone(&self.0.nodes), link, path);
        let leases = self.nodes().leases();
        watching.look(Some(watch_below(leases.trim_end_matches('/')))).await?;
        Ok(Box::new(watching))
    }

    async fn list(self, prefix: String, from: Cursor) -> Result<Listed, Failure> {
        let directory = format!("{}/lock", self.nodes().prefix());
        let replies = self.ask(vec![self.barrier(), get_children(&directory)]).await?;
        let [barrier, children] = &replies[..] else { return Err(unreadable()) };
        self.passed(barrier)?;
        if children.code == code::NO_NODE {
            return Ok(Listed::default());
        }
        self.nodes().ok(children)?;
        let children = Reader(&children.body).texts().ok_or_else(unreadable)?;
        let mut names: Vec<String> = children.into_iter().filter_map(decoded).collect();
        names.retain(|name| name.starts_with(&prefix) && *name > from.0);
        names.sort_unstable();
        let is_last = names.len() <= PAGE;
        names.truncate(PAGE);
        let names: Vec<LockName> = names.into_iter().map(LockName::in_store).collect();
        let mut listed = Listed::default();
        if names.is_empty() {
            return Ok(listed);
        }
        let replies = self
            .ask(names.iter().map(|name| get_data(&self.nodes().lock_path(name), false)).collect())
            .await?;
        listed.next = names.last().filter(|_| !is_last).map(|name| Cursor(name.as_str().to_owned()));
        for (name, reply) in names.into_iter().zip(&replies) {
            if let Some(stored) = self.nodes().stored(reply)? {
                listed.locks.push((name, stored));
            }
        }
        Ok(listed)
    }

    async fn ready(self) -> Result<(), Failure> {
        let replies = self.ask(vec![self.barrier(), exists(self.nodes().prefix(), false)]).await?;
        let [barrier, there] = &replies[..] else { return Err(unreadable()) };
        if let Some(version) = self.version().await {
            let numbers: Vec<u32> = version.split(['.', '-']).map_while(|part| part.parse().ok()).collect();
            if numbers.as_slice() < &OLDEST[..] {
                let what = format!("ZooKeeper {version} is too old: tenure needs 3.6 or newer");
                return Err(Failure::Refused(Failure::cause(what)));
            }
        }
        self.passed(barrier)?;
        if there.code == code::NO_NODE { Ok(()) } else { self.nodes().ok(there) }
    }

    /// The version of a server, where it tells: the command `srvr` may be off.
    async fn version(&self) -> Option<String> {
        const LIMIT: Duration = Duration::from_millis(300);
        let target = &self.0.dialer.target;
        if target.tls.is_some() {
            return None;
        }
        let asked = async {
            let place = &target.places[self.0.dialer.first()];
            let mut stream = TcpStream::connect((place.host.as_str(), place.port)).await.ok()?;
            stream.write_all(b"srvr").await.ok()?;
            let mut said = Vec::new();
            stream.take(10_000).read_to_end(&mut said).await.ok()?;
            let said = String::from_utf8(said).ok()?;
            let version = said.strip_prefix("Zookeeper version: ")?.split([',', '\n']).next()?;
            Some(version.split("--").next().unwrap_or(version).to_owned())
        };
        let runtime = self.runtime();
        by(&**runtime, runtime.now() + LIMIT, asked).await.flatten()
    }
}

/// A part of the line of the lock whose node has this path. The child that tells its creation has
/// another name.
fn part_path(path: &str, id: u64) -> String {
    format!("{path}/line-{id}")
}

fn not_sent(failure: Failure) -> Failure {
    match failure {
        Failure::Unknown(cause) => Failure::NotSent(cause),
        failure => failure,
    }
}

impl Backend for Server {
    fn read(&self, name: &LockName) -> BoxFuture<'static, Result<Option<Stored>, Failure>> {
        Self::read(self.clone(), name.clone()).boxed()
    }

    fn parts(
        &self,
        name: &LockName,
        ids: Vec<u64>,
    ) -> BoxFuture<'static, Result<Vec<Option<String>>, Failure>> {
        Self::parts(self.clone(), name.clone(), ids).boxed()
    }

    fn commit(&self, change: Change) -> BoxFuture<'static, Result<Committed, Failure>> {
        Self::commit(self.clone(), change).boxed()
    }

    fn open(&self, life: Duration, is_kept: bool) -> BoxFuture<'static, Result<(Handle, u64), Failure>> {
        Self::open(self.clone(), life, is_kept).boxed()
    }

    fn keep(&self, handle: Handle) -> BoxFuture<'static, Result<Option<u64>, Failure>> {
        Self::keep(self.clone(), handle).boxed()
    }

    fn close(&self, handle: Handle) -> BoxFuture<'static, Result<(), Failure>> {
        Self::close(self.clone(), handle).boxed()
    }

    fn bump(&self, handles: Vec<Handle>) -> BoxFuture<'static, Result<Vec<Option<u64>>, Failure>> {
        Self::bump(self.clone(), handles).boxed()
    }

    fn living(&self, handles: Vec<Handle>) -> BoxFuture<'static, Result<Vec<bool>, Failure>> {
        Self::living(self.clone(), handles).boxed()
    }

    fn watch(&self, name: &LockName) -> BoxFuture<'static, Result<Box<dyn Watch>, Failure>> {
        Self::watch(self.clone(), name.clone()).boxed()
    }

    fn list(&self, prefix: &str, from: Cursor) -> BoxFuture<'static, Result<Listed, Failure>> {
        Self::list(self.clone(), prefix.to_owned(), from).boxed()
    }

    fn ready(&self) -> BoxFuture<'static, Result<(), Failure>> {
        Self::ready(self.clone()).boxed()
    }

    fn silent(&self) {
        // The only one is asked whether it is there by the connection itself.
        if self.0.dialer.target.places.len() > 1 {
            let links = self.links();
            links.own.values().chain(&links.plain).for_each(|link| link.cut());
        }
    }

    fn limit(&self) -> usize {
        LIMIT
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.0.dialer.target).finish()
    }
}
