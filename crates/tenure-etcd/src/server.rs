//! An etcd cluster as a compare-and-swap backend.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream;
use tonic::Streaming;

use super::cluster::{EtcdCluster, EtcdConnection, IS_FULL, NO_LEADER, streaming, unary};
use super::wire::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, Empty, KeyValue, LeaseGrantRequest,
    LeaseGrantResponse, LeaseId, LeaseKeepAliveResponse, OpRequest, OpResponse, PutRequest, RangeRequest,
    RangeResponse, RequestOp, ResponseOp, StatusResponse as ServerStatus, TargetUnion, TxnRequest,
    TxnResponse, WatchCreateRequest, WatchEvent, WatchRequest, WatchResponse,
};
use tenure_core::CLIENT;
use tenure_core::cas::{
    Backend, Committed, Listed, ListedRecords, LockWatch, Session, Stamp, Stored, Swap, ValueChange,
    WatchNotice, Watched,
};
use tenure_core::name::LockName;
use tenure_core::store::{Cursor, Failure, StoreFuture};

/// Maximum size of a lock, within etcd's default request limit of 1.5 MiB.
const LIMIT: usize = 1_400_000;
/// Maximum locks per page of a listing.
const PAGE: i64 = 500;
/// Maximum operations per transaction, below etcd's default limit of 128.
const STEPS: usize = 100;
/// Maximum queue parts per read, which must fit into one reply with the longest owners.
const PARTS: usize = 25;
/// The oldest supported version.
const OLDEST: [u32; 2] = [3, 4];

impl EtcdCluster {
    fn key(&self, kind: &str, name: &str) -> Vec<u8> {
        format!("{}{kind}/{name}", self.0.target.prefix).into_bytes()
    }

    fn lock_key(&self, name: &LockName) -> Vec<u8> {
        self.key("lock", name.as_str())
    }

    fn record_key(&self, name: &LockName) -> Vec<u8> {
        self.key("record", name.as_str())
    }

    fn part_key(&self, name: &LockName, id: u64) -> Vec<u8> {
        self.key("line", &format!("{}/{id}", name.as_str()))
    }

    fn marker(&self, session: Session) -> Vec<u8> {
        self.key("lease", &format!("{session:x}"))
    }

    /// What the markers say: the versions of the clients.
    pub(super) async fn markers(&self) -> Result<Vec<String>, Failure> {
        const MOST: i64 = 10_000;
        let key = self.key("lease", "");
        let all = RangeRequest { range_end: after(&key), key, limit: MOST, ..RangeRequest::default() };
        let found: RangeResponse = self.ask(all, "/etcdserverpb.KV/Range").await?;
        Ok(found.kvs.into_iter().map(|marker| String::from_utf8_lossy(&marker.value).into_owned()).collect())
    }

    /// The lock name in a key.
    fn name(&self, kind: &str, key: &[u8]) -> Option<LockName> {
        let prefix = self.key(kind, "");
        let name = std::str::from_utf8(key.strip_prefix(prefix.as_slice())?).ok()?;
        Some(LockName::in_store(name.to_owned()))
    }

    pub(super) async fn txn(&self, txn: TxnRequest) -> Result<TxnResponse, Failure> {
        self.ask(txn, "/etcdserverpb.KV/Txn").await
    }

    fn is_marker(&self, session: Session, with: Option<u64>) -> Compare {
        let key = self.marker(session);
        match with {
            Some(version) => {
                let with = Some(TargetUnion::Mod(version as i64));
                Compare { is: CompareResult::Equal as i32, of: CompareTarget::Mod as i32, key, with }
            }
            None => {
                let with = Some(TargetUnion::Create(0));
                Compare { is: CompareResult::Greater as i32, of: CompareTarget::Create as i32, key, with }
            }
        }
    }

    /// Writes a marker if it exists; without the check, a missing lease would fail the whole transaction.
    fn write_marker(&self, session: Session) -> RequestOp {
        let key = self.marker(session);
        let put = PutRequest { key, ignore_value: true, ignore_lease: true, ..PutRequest::default() };
        let txn = TxnRequest {
            compare: vec![self.is_marker(session, None)],
            success: vec![OpRequest::Put(put).into()],
            failure: Vec::new(),
        };
        OpRequest::Txn(txn).into()
    }

    async fn commit(self, change: Swap) -> Result<Committed, Failure> {
        let key = self.lock_key(&change.name);
        let (session, marker) = change.guard;
        let stands = match change.seen {
            None => Compare {
                is: CompareResult::Equal as i32,
                of: CompareTarget::Create as i32,
                key: key.clone(),
                with: Some(TargetUnion::Create(0)),
            },
            Some(seen) => Compare {
                is: CompareResult::Equal as i32,
                of: CompareTarget::Mod as i32,
                key: key.clone(),
                with: Some(TargetUnion::Mod(seen.version as i64)),
            },
        };
        let is_kept = change.lock == ValueChange::Keep;
        let mut changes = vec![(key.clone(), change.lock), (self.record_key(&change.name), change.record)];
        let parts = change.parts.into_iter();
        changes.extend(parts.map(|part| (self.part_key(&change.name, part.id), ValueChange::to(part.text))));
        let mut success: Vec<RequestOp> =
            changes.into_iter().filter_map(|(key, change)| write(key, change)).collect();
        let read = |key| RequestOp::from(OpRequest::Range(RangeRequest { key, ..RangeRequest::default() }));
        success.extend(change.victims.iter().map(|victim| self.write_marker(*victim)));
        // The last reply.
        success.extend(change.reads_record.then(|| read(self.record_key(&change.name))));
        let mut compare = vec![self.is_marker(session, Some(marker)), stands];
        compare.extend(change.moved_from.iter().map(|session| self.is_marker(*session, None)));
        let failure = vec![read(key.clone()), read(self.marker(session))];
        let txn = TxnRequest { compare, success, failure };
        let done = match change.victims.is_empty() {
            true => self.txn_about(&change.name, txn).await,
            false => self.txn(txn).await,
        };
        let mut done = match done {
            Err(failure) if failure.to_string().contains(IS_FULL) => {
                return Err(self
                    .if_unwritten(failure, key, change.seen.filter(|_| !is_kept).map(|seen| seen.version))
                    .await);
            }
            done => done?,
        };
        if done.succeeded {
            let version = done.header.unwrap_or_default().revision as u64;
            let base = change.seen.map_or(version, |seen| seen.base);
            let kept = change.seen.filter(|_| is_kept);
            let stamp = kept.unwrap_or(Stamp { base, version, ..Stamp::default() });
            let read = done.responses.pop().filter(|_| change.reads_record);
            let record = read.and_then(|step| ranged(step).kvs.pop().map(stored).transpose().ok());
            let record = record.map(|record| record.map(|stored| stored.text));
            return Ok(Committed::Done { stamp, record });
        }
        let mut found = done.responses.into_iter().map(|step| ranged(step).kvs.pop());
        let stored = found.next().flatten().map(stored).transpose()?;
        let marker = found.next().flatten().map(|marker| marker.mod_revision as u64);
        Ok(Committed::Conflict { stored, marker })
    }

    /// The failure of a write that a full server has refused. It carries out the one that fills it, and refuses it
    /// all the same.
    async fn if_unwritten(&self, failure: Failure, key: Vec<u8>, seen: Option<u64>) -> Failure {
        match self.clone().read(key).await {
            Ok(stands) if stands.as_ref().map(|stored| stored.stamp.version) == seen => failure,
            _ => Failure::Unknown(Failure::cause(failure.to_string())),
        }
    }

    async fn read(self, key: Vec<u8>) -> Result<Option<Stored>, Failure> {
        let read = || {
            let range = RangeRequest { key: key.clone(), ..RangeRequest::default() };
            self.ask::<_, RangeResponse>(range, "/etcdserverpb.KV/Range")
        };
        let found = match read().await {
            // Its connection has ended. The next one may answer, and a read changes nothing.
            Err(Failure::Unknown(_)) => read().await,
            found => found,
        };
        found?.kvs.pop().map(stored).transpose()
    }

    async fn parts(self, name: LockName, ids: Vec<u64>) -> Result<Vec<Option<String>>, Failure> {
        let mut parts = Vec::new();
        for some in ids.chunks(PARTS) {
            let read = |id: &u64| {
                OpRequest::Range(RangeRequest { key: self.part_key(&name, *id), ..RangeRequest::default() })
                    .into()
            };
            let success = some.iter().map(read).collect();
            let done = self.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
            for step in done.responses {
                let stored = ranged(step).kvs.pop().map(stored).transpose()?;
                parts.push(stored.map(|stored| stored.text));
            }
        }
        Ok(parts)
    }

    async fn open(self, life: Duration) -> Result<(Session, u64), Failure> {
        let ttl = life.as_secs() as i64;
        let granted: LeaseGrantResponse =
            self.ask(LeaseGrantRequest { ttl }, "/etcdserverpb.Lease/LeaseGrant").await?;
        if granted.ttl < ttl {
            let what = format!("etcd's longest lease is {} seconds, got {ttl}", granted.ttl);
            return Err(Failure::impossible(what));
        }
        let session = granted.id as u64;
        let put = PutRequest {
            key: self.marker(session),
            value: CLIENT.into(),
            lease: granted.id,
            ..PutRequest::default()
        };
        let txn = TxnRequest {
            compare: Vec::new(),
            success: vec![OpRequest::Put(put).into()],
            failure: Vec::new(),
        };
        let done = self.txn(txn).await?;
        Ok((session, done.header.unwrap_or_default().revision as u64))
    }

    /// False if the lease is gone.
    async fn touch(self, session: Session) -> Result<bool, Failure> {
        let connection = self.connection().await?;
        let request = self.signed(stream::iter([LeaseId { id: session as i64 }]), &connection).await?;
        let answers = streaming(&connection, request, "/etcdserverpb.Lease/LeaseKeepAlive").await;
        let failed = |status| self.failure(&status, &connection);
        let mut answers: Streaming<LeaseKeepAliveResponse> = answers.map_err(failed)?;
        let kept = answers.message().await.map_err(failed)?;
        let Some(kept) = kept else {
            return Err(Failure::Unknown(Failure::cause("etcd ended a keep-alive without an answer")));
        };
        Ok(kept.ttl > 0)
    }

    async fn keep(self, session: Session) -> Result<Option<u64>, Failure> {
        if !self.clone().touch(session).await? {
            return Ok(None);
        }
        let range = RangeRequest { key: self.marker(session), ..RangeRequest::default() };
        let found: RangeResponse = self.ask(range, "/etcdserverpb.KV/Range").await?;
        Ok(found.kvs.first().map(|marker| marker.mod_revision as u64))
    }

    async fn bump(self, sessions: Vec<Session>) -> Result<Vec<Option<u64>>, Failure> {
        let mut versions = Vec::new();
        for part in sessions.chunks(STEPS) {
            let success = part.iter().map(|session| self.write_marker(*session)).collect();
            let done = self.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
            let version = done.header.unwrap_or_default().revision as u64;
            versions.extend(done.responses.into_iter().map(|step| match step.what {
                Some(OpResponse::Txn(done)) if done.succeeded => Some(version),
                _ => None,
            }));
        }
        Ok(versions)
    }

    async fn living(self, sessions: Vec<Session>) -> Result<Vec<bool>, Failure> {
        let mut living = Vec::new();
        for part in sessions.chunks(STEPS) {
            let read = |session: &Session| {
                OpRequest::Range(RangeRequest {
                    key: self.marker(*session),
                    keys_only: true,
                    ..RangeRequest::default()
                })
                .into()
            };
            let success = part.iter().map(read).collect();
            let done = self.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
            living.extend(done.responses.into_iter().map(|step| !ranged(step).kvs.is_empty()));
        }
        Ok(living)
    }

    async fn watch(self, name: LockName, what: Watched) -> Result<Box<dyn LockWatch>, Failure> {
        let connection = self.connection().await?;
        let sessions = self.key("lease", "");
        let of = |key| WatchCreateRequest { key, ..WatchCreateRequest::default() };
        let ranges = match what {
            Watched::Lock => vec![
                of(self.lock_key(&name)),
                WatchCreateRequest { key: sessions.clone(), range_end: after(&sessions), filters: vec![0] },
            ],
            Watched::Record => vec![of(self.record_key(&name))],
        };
        let count = ranges.len();
        let asked = ranges.into_iter().map(|range| WatchRequest { create: Some(range) });
        let asked = stream::iter(asked).chain(stream::pending());
        let request = self.led(asked, &connection).await?;
        let answers = streaming(&connection, request, "/etcdserverpb.Watch/Watch").await;
        let answers = answers.map_err(|status| self.failure(&status, &connection))?;
        let mut watching = EtcdWatch { server: self, connection, answers, sessions, events: Vec::new() };
        let mut created = 0;
        while created < count {
            let watched = watching.hear().await?;
            created += usize::from(watched.created);
            watching.events.extend(watched.events);
        }
        watching.events.reverse();
        Ok(Box::new(watching))
    }

    async fn list(self, prefix: String, from: Cursor) -> Result<Listed, Failure> {
        let (found, next) = self.page("lock", &prefix, &from).await?;
        let locks = found.into_iter().filter_map(|(name, kv)| Some((name, stored(kv).ok()?)));
        Ok(Listed { locks: locks.collect(), next })
    }

    async fn records(self, prefix: String, from: Cursor) -> Result<ListedRecords, Failure> {
        let (found, next) = self.page("record", &prefix, &from).await?;
        let records = found.into_iter().filter_map(|(name, kv)| Some((name, stored(kv).ok()?.text)));
        Ok(ListedRecords { records: records.collect(), next })
    }

    /// A page of the keys of this kind whose names begin with `prefix`, and the next one.
    async fn page(
        &self,
        kind: &str,
        prefix: &str,
        from: &Cursor,
    ) -> Result<(Vec<(LockName, KeyValue)>, Option<Cursor>), Failure> {
        let prefix = self.key(kind, prefix);
        let start = if from.0.is_empty() { prefix.clone() } else { self.key(kind, &from.0) };
        let read = |limit| RangeRequest {
            key: start.clone(),
            range_end: after(&prefix),
            limit,
            ..RangeRequest::default()
        };
        let mut limit = PAGE;
        let connection = self.connection().await?;
        let found: RangeResponse = loop {
            let request = self.signed(read(limit), &connection).await?;
            match unary(&connection, request, "/etcdserverpb.KV/Range").await {
                Ok(found) => break found,
                // Locks with thousands of holders, or hundreds with long queues.
                Err(status) if Self::is_too_long(&status) && limit > 1 => limit = (limit / 4).max(1),
                Err(status) => return Err(self.failure(&status, &connection)),
            }
        };
        let (mut page, mut next) = (Vec::new(), None);
        for kv in found.kvs {
            let Some(name) = self.name(kind, &kv.key) else { continue };
            // Starts the next page right after this name.
            next = found.more.then(|| Cursor(format!("{}\0", name.as_str())));
            page.push((name, kv));
        }
        Ok((page, next))
    }

    async fn ready(self) -> Result<(), Failure> {
        if !self.0.is_new_enough.load(Ordering::Relaxed) {
            let status: ServerStatus = self.ask(Empty {}, "/etcdserverpb.Maintenance/Status").await?;
            let version: Vec<u32> = status.version.split('.').filter_map(|part| part.parse().ok()).collect();
            if version.as_slice() < &OLDEST[..] {
                let what = format!("etcd {} is too old: tenure needs 3.4 or newer", status.version);
                return Err(Failure::Refused(Failure::cause(what)));
            }
            self.0.is_new_enough.store(true, Ordering::Relaxed);
        }
        // A linearizable read, which needs a majority.
        let range = RangeRequest { key: self.key("lock", ""), keys_only: true, ..RangeRequest::default() };
        let connection = self.connection().await?;
        let range = self.led(range, &connection).await?;
        let read: Result<RangeResponse, _> = unary(&connection, range, "/etcdserverpb.KV/Range").await;
        match read {
            Ok(_) => Ok(()),
            Err(status) if status.message().ends_with(NO_LEADER) => {
                self.leave(&connection);
                Err(Failure::NotSent(Failure::cause("etcd has no leader: are most of its members up?")))
            }
            Err(status) => Err(self.failure(&status, &connection)),
        }
    }
}

fn write(key: Vec<u8>, change: ValueChange) -> Option<RequestOp> {
    let write = match change {
        ValueChange::Keep => return None,
        ValueChange::Write(text) => {
            OpRequest::Put(PutRequest { key, value: text.into_bytes(), ..PutRequest::default() })
        }
        ValueChange::Remove => OpRequest::Delete(DeleteRangeRequest { key }),
    };
    Some(write.into())
}

fn ranged(step: ResponseOp) -> RangeResponse {
    match step.what {
        Some(OpResponse::Range(ranged)) => ranged,
        _ => RangeResponse::default(),
    }
}

fn stored(kv: KeyValue) -> Result<Stored, Failure> {
    let (base, version) = (kv.create_revision as u64, kv.mod_revision as u64);
    match String::from_utf8(kv.value) {
        Ok(text) => Ok(Stored { text, stamp: Stamp { base, version, ..Stamp::default() } }),
        Err(_) => Err(Failure::Refused(Failure::cause("the key has something other than text"))),
    }
}

/// The end of the range of all keys with this prefix.
fn after(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    // Keys are UTF-8, so no byte is 255.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// An open watch.
struct EtcdWatch {
    server: EtcdCluster,
    connection: Arc<EtcdConnection>,
    answers: Streaming<WatchResponse>,
    /// The common prefix of the markers' keys.
    sessions: Vec<u8>,
    /// Pending events, oldest last.
    events: Vec<WatchEvent>,
}

impl EtcdWatch {
    async fn hear(&mut self) -> Result<WatchResponse, Failure> {
        let ended = |why: &str| Failure::Unknown(Failure::cause(format!("a watch ended: {why}")));
        let watched = self.answers.message().await;
        let watched = watched.map_err(|status| self.server.failure(&status, &self.connection))?;
        match watched {
            Some(watched) if watched.canceled => {
                self.server.forgets_token(&watched.reason);
                Err(ended(&watched.reason))
            }
            Some(watched) => Ok(watched),
            None => Err(ended("etcd closed it")),
        }
    }

    fn seen(&self, event: WatchEvent) -> Option<Result<WatchNotice, Failure>> {
        let kv = event.kv?;
        if let Some(session) = kv.key.strip_prefix(self.sessions.as_slice()) {
            let session = std::str::from_utf8(session).ok()?;
            return Some(Ok(WatchNotice::Gone(Session::from_str_radix(session, 16).ok()?)));
        }
        match event.kind {
            0 => Some(stored(kv).map(|stored| WatchNotice::Lock(Some(stored)))),
            _ => Some(Ok(WatchNotice::Lock(None))),
        }
    }
}

impl LockWatch for EtcdWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<WatchNotice, Failure>> {
        async move {
            loop {
                while let Some(event) = self.events.pop() {
                    if let Some(seen) = self.seen(event) {
                        return seen;
                    }
                }
                let watched = self.hear().await?;
                self.events = watched.events;
                self.events.reverse();
            }
        }
        .boxed()
    }
}

impl Backend for EtcdCluster {
    fn read(&self, name: &LockName) -> StoreFuture<Option<Stored>> {
        Self::read(self.clone(), self.lock_key(name)).boxed()
    }

    fn record(&self, name: &LockName) -> StoreFuture<Option<String>> {
        let read = Self::read(self.clone(), self.record_key(name));
        read.map(|stored| Ok(stored?.map(|stored| stored.text))).boxed()
    }

    fn parts(&self, name: &LockName, ids: Vec<u64>) -> StoreFuture<Vec<Option<String>>> {
        Self::parts(self.clone(), name.clone(), ids).boxed()
    }

    fn commit(&self, change: Swap) -> StoreFuture<Committed> {
        Self::commit(self.clone(), change).boxed()
    }

    fn open(&self, life: Duration, _is_kept: bool) -> StoreFuture<(Session, u64)> {
        Self::open(self.clone(), life).boxed()
    }

    fn keep(&self, session: Session, _seen: u64) -> StoreFuture<Option<u64>> {
        Self::keep(self.clone(), session).boxed()
    }

    fn touch(&self, session: Session) -> StoreFuture<bool> {
        Self::touch(self.clone(), session).boxed()
    }

    fn close(&self, session: Session) -> StoreFuture<()> {
        let server = self.clone();
        async move {
            let revoke = LeaseId { id: session as i64 };
            server.ask::<LeaseId, Empty>(revoke, "/etcdserverpb.Lease/LeaseRevoke").await.map(drop)
        }
        .boxed()
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
        let open = self.0.connection.lock().clone().filter(|_| self.0.target.addresses.len() > 1);
        open.iter().for_each(|open| self.leave(open));
    }

    fn limit(&self) -> usize {
        LIMIT
    }
}

impl fmt::Debug for EtcdCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EtcdCluster").field(&self.0.target.addresses).finish()
    }
}
