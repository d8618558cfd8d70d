//! Locks on Redis Cluster: each lock lives on the node that serves its slot.
//!
//! A request goes to the node that serves the slot according to the cached table, and follows redirects from
//! there; a node that redirects has not carried the request out. A single background task refreshes the
//! topology when a node redirects, drops its connection, cannot be reached, or reports that the cluster is
//! down. Only requests whose slot has no responsive node wait for that refresh, so a dead shard does not
//! delay the others.

mod map;

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use futures_util::future::{Either, FutureExt, join_all, select, select_ok};
use tokio::sync::Notify;

use self::map::{ClusterNode, Map, topology_refresh};
use crate::connection::pipeline::Pipeline;
use crate::connection::pipelines::Chosen;
use crate::connection::{Dial, Network};
use crate::replies::failure::{self, Undialled, is_of_dial};
use crate::requests::keys;
use crate::requests::record;
use crate::requests::waiting::{self, CountedLock};
use crate::requests::{Keyspace, Publish, RequestContext, RoutedRequest};
use crate::resp::encode::command;
use crate::topology::Address;
use crate::topology::Target;
use crate::topology::slots::{self, Redirect};
use crate::topology::{Access, Guarantees, Topology};
use tenure_core::moment::Moment;
use tenure_core::name::{LockName, Namespace};
use tenure_core::protocol::record::{RecordAnswer, RecordOp, RecordVerb};
use tenure_core::protocol::{Answer, Found, LockSpec, Op, Verb};
use tenure_core::runtime::Runtime;
use tenure_core::store::{
    Capabilities, Client, Cursor, Failure, Listener, Page, Placement, RecordPage, Signals, Store,
    StoreFuture, StoreReply, StoreRequest, Topic,
};
use tenure_core::sync::Locked;

/// How often the topology is queried again while a node is being reached.
const ASK_AGAIN: Duration = Duration::from_millis(250);
/// Redirects followed without a delay.
const HASTY: u32 = 3;
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Error for names that cannot be locks on a cluster.
const TWO_SLOTS: &str = "on a cluster, a name that contains `}` must have a hash tag `{…}`, and so must that of \
                         a reentrant mutex that contains `{`";

/// A store on a cluster of Redis or Valkey servers. Clones share its connections.
#[derive(Clone)]
pub struct Cluster(Arc<ClusterInner>);

struct ClusterInner {
    runtime: Arc<dyn Runtime>,
    dial: Arc<dyn Dial>,
    seeds: Vec<Target>,
    url: Arc<str>,
    guarantees: Guarantees,
    namespace: Namespace,
    /// Shared by the connections to all nodes. Also interrupted when a node takes over slots without having
    /// served any before: a promoted replica may lack writes that the old master acknowledged.
    signals: Signals,
    map: Locked<Map>,
    /// Notified on every change of the map.
    changed: Notify,
    /// Triggers a topology refresh.
    trouble: Arc<Notify>,
}

impl Cluster {
    /// A store on the cluster that `seeds` belong to. Connects on first use.
    pub fn at(seeds: Vec<Target>, runtime: Arc<dyn Runtime>) -> Self {
        Self::over(seeds, Network::of(&runtime), runtime)
    }

    /// A store whose connections are opened by `dial`.
    pub fn over(seeds: Vec<Target>, dial: Arc<dyn Dial>, runtime: Arc<dyn Runtime>) -> Self {
        let topology = Topology::Cluster(seeds.clone());
        let (url, Access { guarantees, namespace, .. }) = (topology.shown(), topology.access());
        let map = Locked::new(Map::new(namespace.as_str().len()));
        let (changed, trouble) = (Notify::new(), Arc::default());
        let signals = Signals::default();
        let inner =
            ClusterInner { runtime, dial, seeds, url, guarantees, namespace, signals, map, changed, trouble };
        let inner = Arc::new(inner);
        inner.runtime.spawn(topology_refresh(Arc::downgrade(&inner)).boxed());
        Self(inner)
    }
}

impl Drop for ClusterInner {
    fn drop(&mut self) {
        self.trouble.notify_one();
    }
}

impl Store for Cluster {
    fn call(&self, mut request: StoreRequest, within: Duration) -> StoreFuture<StoreReply> {
        request.enter(&self.0.namespace);
        let inner = Arc::clone(&self.0);
        let deadline = move |inner: &ClusterInner| inner.runtime.now() + within;
        match request {
            StoreRequest::Lock(op) => {
                async move { inner.call(op, deadline(&inner)).await.map(StoreReply::Lock) }.boxed()
            }
            StoreRequest::Record(op) => {
                async move { inner.record(op, deadline(&inner)).await.map(StoreReply::Record) }.boxed()
            }
            StoreRequest::Renewals(ops) => {
                async move { Ok(StoreReply::Renewals(inner.renew(ops, deadline(&inner)).await)) }.boxed()
            }
        }
    }

    fn subscribe(&self, topic: Topic<'_>, within: Duration) -> StoreFuture<Listener> {
        let (inner, mut name) = (Arc::clone(&self.0), topic.name.clone());
        let (spec, client) = (topic.spec, topic.client());
        inner.namespace.precede(&mut name);
        async move { inner.listen(&name, spec, client, inner.runtime.now() + within).await }.boxed()
    }

    /// Scans one master after the other, each like a single server. A lock whose slot migrates during the
    /// listing may be listed twice or not at all.
    fn list(&self, prefix: &str, from: Cursor, within: Duration) -> StoreFuture<Page> {
        let inner = Arc::clone(&self.0);
        let prefix = [inner.namespace.as_str(), prefix].concat();
        async move {
            let mut page = inner.list(&prefix, &from, inner.runtime.now() + within).await?;
            page.locks.iter_mut().for_each(|(name, _)| inner.namespace.leave(name));
            Ok(page)
        }
        .boxed()
    }

    fn waiting(&self, locks: &[(LockName, Found)], within: Duration) -> StoreFuture<Vec<Option<u64>>> {
        let (inner, locks) = (Arc::clone(&self.0), locks.to_vec());
        async move { inner.waiting(&locks, inner.runtime.now() + within).await }.boxed()
    }

    /// Scans one master after the other, as [`list`](Store::list) does.
    fn records(&self, prefix: &str, from: Cursor, within: Duration) -> StoreFuture<RecordPage> {
        let inner = Arc::clone(&self.0);
        let prefix = [inner.namespace.as_str(), prefix].concat();
        async move {
            let mut page = inner.records(prefix, &from, inner.runtime.now() + within).await?;
            page.records.iter_mut().for_each(|(name, _)| inner.namespace.leave(name));
            Ok(page)
        }
        .boxed()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.guarantees.capabilities(Err("it consists of several servers, which fail over by themselves"))
    }

    /// Accepts only names whose side keys and channel share the lock's slot. Renews only locks of one slot
    /// together, because a script can only touch keys of one slot.
    fn placement(&self, name: &LockName, spec: LockSpec) -> Placement {
        let mut name = name.clone();
        self.0.namespace.precede(&mut name);
        let supported = if keys::share_a_slot(spec, name.as_str()) { Ok(()) } else { Err(TWO_SLOTS) };
        let slot = keys::slot(name.as_str());
        let shard = self.0.map().table.owner(slot).map(|owner| Arc::clone(&owner.shown));
        let renews_with = (spec != LockSpec::Reentrant).then_some(slot);
        Placement { supported, shard, renews_with }
    }

    /// Interrupted when any node was reconnected to, or took over slots for the first time.
    fn signals(&self) -> &Signals {
        &self.0.signals
    }

    /// Ready once the slot table is known and at least one master is reachable.
    fn ready(&self, within: Duration) -> StoreFuture<()> {
        let inner = Arc::clone(&self.0);
        async move {
            let deadline = inner.runtime.now() + within;
            let masters = inner.known_by(deadline, true, |map| {
                Some(map.table.masters().to_vec()).filter(|masters| !masters.is_empty())
            });
            let pipelines = masters.await?.into_iter().map(|member| {
                let pipeline = async move {
                    let pipeline = member.node.link.pipeline_at_once(deadline).await;
                    pipeline.map_err(|failure| at(&member.address, failure))
                };
                pipeline.boxed()
            });
            select_ok(pipelines).await.map(|_| ())
        }
        .boxed()
    }

    fn url(&self) -> &Arc<str> {
        &self.0.url
    }
}

impl ClusterInner {
    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock()
    }

    async fn call(&self, op: Op, deadline: Moment) -> Result<Answer, Failure> {
        let mut redirects = Redirects::default();
        let answer = self.call_redirected(op, deadline, &mut redirects).await;
        answer.map_err(|failure| redirects.failure(failure))
    }

    async fn call_redirected(
        &self,
        op: Op,
        deadline: Moment,
        redirects: &mut Redirects,
    ) -> Result<Answer, Failure> {
        fits(op.spec, &op.name)?;
        let slot = keys::slot(op.name.as_str());
        let mut asked_of = None;
        loop {
            let asking = asked_of.is_some();
            let route = self.next_route(slot, asked_of.take(), deadline).await?;
            let context = RequestContext { space: route.space, asking, guarantees: self.guarantees };
            let only_reads = matches!(op.verb, Verb::Inspect);
            let chosen = self.choose(&route, &op.name, only_reads, deadline).await?;
            let routed = RoutedRequest { op: &op, pipeline: &chosen.pipeline, context, deadline };
            let answer = route.member.node.ask(&routed).await;
            let failure = match chosen.answered(answer) {
                Ok(reply) => {
                    if asking && matches!(op.verb, Verb::Release { .. }) {
                        self.tell_where_it_was(op.spec, &op.name, deadline).boxed().await;
                    }
                    return Ok(reply);
                }
                Err(failure) => failure,
            };
            asked_of = self.redirected(slot, &route, failure, redirects, deadline).boxed().await?;
        }
    }

    /// Carries out renewals of locks in one slot. If the slot migrates, each renewal is redirected
    /// separately.
    async fn renew(&self, ops: Vec<Op>, deadline: Moment) -> Vec<Result<Answer, Failure>> {
        let said = match ops.first().and_then(|op| self.open_route(keys::slot(op.name.as_str()))) {
            Some(Route { member, pipeline, space }) => {
                let context = RequestContext { space, asking: false, guarantees: self.guarantees };
                member.node.renew(&pipeline, &ops, context, deadline).await
            }
            None => vec![Err(unserved()); ops.len()],
        };
        let is_redirected = |failure: &Failure| failure::said_in(failure).is_some_and(slots::redirects);
        let rest = ops.into_iter().zip(said).map(|(op, said)| async move {
            match said {
                Err(Failure::NotSent(_)) => self.call(op, deadline).boxed().await,
                Err(failure) if is_redirected(&failure) => self.call(op, deadline).boxed().await,
                Err(Failure::Unknown(cause)) => {
                    self.trouble.notify_one();
                    Err(Failure::Unknown(cause))
                }
                said => said,
            }
        });
        join_all(rest).await
    }

    /// Carries out a request about a record, whose key shares a slot with its lock.
    async fn record(&self, op: RecordOp, deadline: Moment) -> Result<RecordAnswer, Failure> {
        let mut redirects = Redirects::default();
        let answer = self.record_redirected(op, deadline, &mut redirects).await;
        answer.map_err(|failure| redirects.failure(failure))
    }

    async fn record_redirected(
        &self,
        op: RecordOp,
        deadline: Moment,
        redirects: &mut Redirects,
    ) -> Result<RecordAnswer, Failure> {
        fits(LockSpec::Mutex, &op.lock)?;
        let slot = keys::slot(op.lock.as_str());
        let mut asked_of = None;
        loop {
            let asking = asked_of.is_some();
            let route = self.next_route(slot, asked_of.take(), deadline).await?;
            let context = RequestContext { space: route.space, asking, guarantees: self.guarantees };
            let only_reads = matches!(op.verb, RecordVerb::Read);
            let chosen = self.choose(&route, &op.lock, only_reads, deadline).await?;
            let routed = RoutedRequest { op: &op, pipeline: &chosen.pipeline, context, deadline };
            let answer = record::ask(&*self.runtime, &routed).await;
            let failure = match chosen.answered(answer) {
                Ok(answer) => {
                    if asking && !only_reads {
                        self.tell_where_it_was(LockSpec::Mutex, &op.lock, deadline).boxed().await;
                    }
                    return Ok(answer);
                }
                Err(failure) => failure,
            };
            asked_of = self.redirected(slot, &route, failure, redirects, deadline).boxed().await?;
        }
    }

    /// The connection to `route`'s node for a request about this name.
    async fn choose(
        &self,
        route: &Route,
        name: &LockName,
        only_reads: bool,
        deadline: Moment,
    ) -> Result<Chosen, Failure> {
        let Route { member, pipeline, .. } = route;
        let chosen =
            member.node.pipelines.choose_beside(pipeline, name, only_reads, self.guarantees, deadline).await;
        chosen.map_err(|failure| at(&member.address, failure))
    }

    /// The next node to try: the one a redirect named, otherwise the one that serves the slot.
    async fn next_route(
        &self,
        slot: u16,
        named: Option<Address>,
        deadline: Moment,
    ) -> Result<Route, Failure> {
        match named {
            None => match self.open_route(slot) {
                Some(route) => Ok(route),
                None => self.route(slot, deadline).boxed().await,
            },
            Some(address) => self.route_to(&address, deadline).boxed().await,
        }
    }

    /// Decides from a failure whether to retry: the address to try next if a redirect named one, or the
    /// failure if there is no further attempt.
    async fn redirected(
        &self,
        slot: u16,
        route: &Route,
        failure: Failure,
        redirects: &mut Redirects,
        deadline: Moment,
    ) -> Result<Option<Address>, Failure> {
        redirects.may_have_run |= matches!(failure, Failure::Unknown(_));
        let mut asked_of = None;
        let redirect =
            failure::said_in(&failure).and_then(|error| Redirect::read(error, &route.member.address));
        match redirect {
            None => {
                if !matches!(failure, Failure::Refused(_)) {
                    self.trouble.notify_one();
                }
                return Err(failure);
            }
            Some(Redirect::Moved(Some(to))) => self.moved(slot, &to),
            Some(Redirect::Ask(to)) => asked_of = Some(to),
            Some(Redirect::Moved(None) | Redirect::Later) => {
                self.trouble.notify_one();
                redirects.is_over = true;
            }
        }
        self.pause(redirects, deadline, failure).await?;
        Ok(asked_of)
    }

    /// A route to the node that serves a slot, if there is an open connection.
    fn open_route(&self, slot: u16) -> Option<Route> {
        let (member, space) = self.map().owner(slot)?;
        let pipeline = member.node.link.open_pipeline()?;
        Some(Route { member, pipeline, space })
    }

    /// Like `open_route`, but waits for a connection.
    async fn route(&self, slot: u16, deadline: Moment) -> Result<Route, Failure> {
        loop {
            let (member, space) = self.known(deadline, |map| map.owner(slot)).await?;
            if let Some(pipeline) = member.node.link.open_pipeline() {
                return Ok(Route { member, pipeline, space });
            }
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if !self.map().serves(&member, slot) {
                continue;
            }
            // Another node may take over the slot before this one can be reached.
            let until = deadline.min(self.runtime.now() + ASK_AGAIN);
            let pipeline = match select(pin!(member.node.link.pipeline(until)), changed).await {
                Either::Left((pipeline, _)) => pipeline,
                Either::Right(_) => continue,
            };
            match pipeline {
                Ok(pipeline) => return Ok(Route { member, pipeline, space }),
                Err(failure) => {
                    let is_over = self.runtime.now() >= deadline;
                    if is_over || matches!(failure, Failure::Refused(_)) {
                        return Err(at(&member.address, failure));
                    }
                    self.trouble.notify_one();
                }
            }
        }
    }

    async fn route_to(&self, address: &Address, deadline: Moment) -> Result<Route, Failure> {
        let (member, space) = {
            let mut map = self.map();
            (self.member(&mut map, address), map.space())
        };
        let pipeline = member.node.link.pipeline(deadline).await.map_err(|failure| at(address, failure))?;
        Ok(Route { member, pipeline, space })
    }

    async fn known<T>(&self, deadline: Moment, look_for: impl Fn(&Map) -> Option<T>) -> Result<T, Failure> {
        self.known_by(deadline, false, look_for).await
    }

    /// Like `known`. With `at_once` it fails as soon as the system reports that no node can be dialled.
    async fn known_by<T>(
        &self,
        deadline: Moment,
        at_once: bool,
        look_for: impl Fn(&Map) -> Option<T>,
    ) -> Result<T, Failure> {
        let before = self.map().failures;
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let (found, failure, is_new) = {
                let map = self.map();
                (look_for(&map), map.failure.clone(), map.failures > before)
            };
            if let Some(found) = found {
                return Ok(found);
            }
            // Waiting does not fix wrong credentials. Failures from before this call do not count.
            let is_final = is_new
                && failure.as_ref().is_some_and(|failure| {
                    matches!(failure, Failure::Refused(_)) || at_once && is_of_dial(failure)
                });
            let now = self.runtime.now();
            if is_final || now >= deadline {
                return Err(failure.unwrap_or_else(unserved));
            }
            self.trouble.notify_one();
            select(changed, self.runtime.sleep_until(deadline.min(now + ASK_AGAIN))).await;
        }
    }

    /// Delays the next redirect, or returns an error if the deadline does not allow it. This attempt was not
    /// carried out, so that error is `NotSent`; `Redirects::failure` decides about earlier ones.
    async fn pause(
        &self,
        redirects: &mut Redirects,
        deadline: Moment,
        failure: Failure,
    ) -> Result<(), Failure> {
        let Some(pause) = redirects.pause() else { return Ok(()) };
        let until = self.runtime.now() + pause;
        if until >= deadline {
            let said = failure::said_in(&failure).map(|said| format!(": {said}"));
            let cause = format!("its slot is moving, or its cluster is electing{}", said.unwrap_or_default());
            return Err(Failure::NotSent(Failure::cause(cause)));
        }
        self.runtime.sleep_until(until).await;
        Ok(())
    }

    /// Notifies waiters on the slot's previous node as well: until the whole slot has migrated they are still
    /// subscribed there and do not receive the importing node's messages.
    async fn tell_where_it_was(&self, spec: LockSpec, name: &LockName, deadline: Moment) {
        let (pipeline, space) = {
            let map = self.map();
            let owner = map.table.owner(keys::slot(name.as_str()));
            (owner.and_then(|owner| owner.node.link.open_pipeline()), map.space())
        };
        if let (Some(pipeline), Publish::Sharded) = (pipeline, space.publish) {
            let channel = keys::channel(space, spec, name.as_str());
            let _ = pipeline.ask(&command(&[space.publish.command(), &channel, ""]), deadline).await;
        }
    }

    /// Subscribes to a lock's wake-up channel, or to one client's own channel if `client` is given.
    async fn listen(
        &self,
        name: &LockName,
        spec: LockSpec,
        client: Option<Client>,
        deadline: Moment,
    ) -> Result<Listener, Failure> {
        fits(spec, name)?;
        let slot = keys::slot(name.as_str());
        let mut redirects = Redirects::default();
        loop {
            let (member, space) = self.known(deadline, |map| map.owner(slot)).await?;
            let channel = keys::subscribed(space, spec, name.as_str(), client);
            let is_counted = client.is_some() && space.counts_listeners();
            let notifications = &member.node.notifications;
            let listens = notifications.listen(channel, space.publish, is_counted, spec, deadline);
            let failure = match listens.await {
                Ok(listener) => return Ok(listener),
                Err(failure) => failure,
            };
            let redirect =
                failure::said_in(&failure).and_then(|error| Redirect::read(error, &member.address));
            match redirect {
                Some(Redirect::Moved(Some(to))) => self.moved(slot, &to),
                Some(_) => redirects.is_over = true,
                // The slot may have moved during the attempt.
                None if !self.map().serves(&member, slot) => {}
                None => {
                    self.trouble.notify_one();
                    return Err(failure);
                }
            }
            self.pause(&mut redirects, deadline, failure).await?;
        }
    }

    /// Asks each node about the locks that it serves.
    async fn waiting(
        &self,
        locks: &[(LockName, Found)],
        deadline: Moment,
    ) -> Result<Vec<Option<u64>>, Failure> {
        let space = self.known(deadline, |map| map.publish.map(|_| map.space())).await?;
        let mut of_nodes = BTreeMap::<Address, (Arc<ClusterNode>, Vec<_>)>::new();
        for (at, (name, found)) in locks.iter().enumerate() {
            let mut key = name.clone();
            self.namespace.precede(&mut key);
            let Some((member, _)) = self.map().owner(keys::slot(key.as_str())) else { continue };
            let of_node = of_nodes.entry(member.address.clone()).or_insert_with(|| (member, Vec::new()));
            of_node.1.push((at, CountedLock::of(space, &key, found)));
        }
        let asks = of_nodes.into_values().map(|(member, locks)| async move {
            let those: Vec<_> = locks.iter().map(|(_, lock)| lock).collect();
            let pipeline = member.node.link.pipeline(deadline).await?;
            let counts = waiting::ask(&pipeline, space.publish, &those, deadline).await?;
            Ok(locks.into_iter().map(|(at, _)| at).zip(counts).collect::<Vec<_>>())
        });
        let mut all = vec![None; locks.len()];
        for counts in join_all(asks).await {
            counts?.into_iter().for_each(|(at, count)| all[at] = count);
        }
        Ok(all)
    }

    async fn list(&self, prefix: &str, from: &Cursor, deadline: Moment) -> Result<Page, Failure> {
        let Some(scan) = self.scan(from, deadline).await? else { return Ok(Page::default()) };
        let page = scan.member.node.list(prefix, &scan.from, scan.context, deadline).await;
        let mut page = page.map_err(|failure| at(&scan.member.address, failure))?;
        page.next = scan.next(page.next);
        Ok(page)
    }

    async fn records(&self, prefix: String, from: &Cursor, deadline: Moment) -> Result<RecordPage, Failure> {
        let Some(scan) = self.scan(from, deadline).await? else { return Ok(RecordPage::default()) };
        let page = scan.member.node.records(prefix, &scan.from, scan.context, deadline).await;
        let mut page = page.map_err(|failure| at(&scan.member.address, failure))?;
        page.next = scan.next(page.next);
        Ok(page)
    }

    /// The master to scan next, of all in the order of their addresses.
    async fn scan(&self, from: &Cursor, deadline: Moment) -> Result<Option<MasterScan>, Failure> {
        let masters = self.known(deadline, |map| {
            Some((map.table.masters().to_vec(), map.space())).filter(|(masters, _)| !masters.is_empty())
        });
        let (masters, space) = masters.await?;
        let mut masters: Vec<_> =
            masters.into_iter().map(|member| (member.address.to_string(), member)).collect();
        masters.sort_by(|(one, _), (other, _)| one.cmp(other));
        let (at_node, rest) = from.0.split_once(' ').unwrap_or_default();
        // Skip a node that no longer serves slots.
        let mut left = masters.iter().skip_while(|(address, _)| **address < *at_node);
        let Some((address, member)) = left.next() else { return Ok(None) };
        let rest = if address == at_node { rest } else { "" };
        let context = RequestContext { space, asking: false, guarantees: self.guarantees };
        let (from, after) =
            (Cursor(rest.to_owned()), left.next().map(|(next, _)| Cursor(format!("{next} "))));
        Ok(Some(MasterScan { address: address.clone(), member: Arc::clone(member), from, after, context }))
    }
}

/// A listing at one master.
struct MasterScan {
    address: String,
    member: Arc<ClusterNode>,
    /// Where to go on at this master.
    from: Cursor,
    /// The start of the next master.
    after: Option<Cursor>,
    context: RequestContext,
}

impl MasterScan {
    /// Where to go on, after a page with this cursor.
    fn next(self, next: Option<Cursor>) -> Option<Cursor> {
        next.map(|Cursor(rest)| Cursor(format!("{} {rest}", self.address))).or(self.after)
    }
}

/// The node a request goes to, with an open connection.
struct Route {
    member: Arc<ClusterNode>,
    pipeline: Arc<Pipeline>,
    space: Keyspace,
}

#[derive(Default)]
struct Redirects {
    count: u32,
    /// No other node was named, so an immediate retry would be pointless.
    is_over: bool,
    /// An attempt may have been carried out, although the answer names another node.
    may_have_run: bool,
}

impl Redirects {
    /// The failure of the request, of which this one ended the last attempt.
    fn failure(&self, last: Failure) -> Failure {
        match last {
            Failure::NotSent(cause) | Failure::Refused(cause) if self.may_have_run => Failure::Unknown(cause),
            last => last,
        }
    }

    fn pause(&mut self) -> Option<Duration> {
        self.count += 1;
        let waits = std::mem::take(&mut self.is_over) || self.count > HASTY;
        waits.then(|| PAUSE_MIN.saturating_mul(1 << (self.count - 1).min(8)).min(PAUSE_MAX))
    }
}

/// Checked for every request, because some (inspections) arrive without a handle whose creation would have
/// checked.
fn fits(spec: LockSpec, name: &LockName) -> Result<(), Failure> {
    match keys::share_a_slot(spec, name.as_str()) {
        true => Ok(()),
        false => Err(Failure::Refused(Failure::cause(TWO_SLOTS))),
    }
}

fn unserved() -> Failure {
    Failure::NotSent(Failure::cause("no node is known to serve its slot"))
}

/// Prefixes a failure with the node's address.
fn at(address: &Address, failure: Failure) -> Failure {
    if is_of_dial(&failure)
        && let Failure::NotSent(cause) = failure
    {
        return Failure::NotSent(Arc::new(Undialled(format!("{address}: {cause}"))));
    }
    let cause = |cause| Failure::cause(format!("{address}: {cause}"));
    match failure {
        Failure::NotSent(why) => Failure::NotSent(cause(why)),
        Failure::Unknown(why) => Failure::Unknown(cause(why)),
        Failure::Refused(why) => Failure::Refused(cause(why)),
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cluster").field(&self.0.url).finish()
    }
}
