//! Locks on a cluster: each on the node that has its slot.
//!
//! A request goes to the node that serves its slot as far as is known, and on to where that one
//! sends it: a node that redirects has not carried it out. One task at a time asks the nodes who
//! serves what, when a node sends a request elsewhere, is lost or cannot be reached, or says that
//! its cluster is down. Only requests whose slot has no node that answers wait for that task, so a
//! dead shard delays no other.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, MutexGuard, Weak};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, FutureExt, join_all, join3, ready, select, select_ok};
use tokio::sync::Notify;

use crate::connection::lines::Line;
use crate::connection::pipeline::Pipeline;
use crate::connection::{Connector, Dial, Network};
use crate::replies;
use crate::replies::failure::{self, Undialled, is_of_dial};
use crate::requests::keys;
use crate::requests::node::Node;
use crate::requests::record;
use crate::requests::{Keyspace, Publish, RequestContext, answered};
use crate::resp::Value;
use crate::resp::encode::command;
use crate::table::{ClusterNode, SlotTable};
use crate::topology::Address;
use crate::topology::Target;
use crate::topology::slots::{self, ClusterView, Redirect};
use crate::topology::{Terms, Topology};
use tenure_core::moment::Moment;
use tenure_core::name::LockName;
use tenure_core::protocol::record::{RecordAnswer, RecordOp, RecordVerb};
use tenure_core::protocol::{Answer, LockSpec, Op, Verb};
use tenure_core::runtime::Runtime;
use tenure_core::store::{
    Capabilities, Client, Cursor, Failure, Listener, Page, QuorumMember, RenewsMany, Store,
};
use tenure_core::sync::Locked;

/// So long, at least, between two questions who serves what.
const PAUSE: Duration = Duration::from_millis(100);
/// A node has so long to answer it.
const ANSWER: Duration = Duration::from_secs(1);
/// So many nodes are asked side by side; the first good answer counts.
const SIDE_BY_SIDE: usize = 3;
/// While a node is being reached, the others are asked again this often.
const ASK_AGAIN: Duration = Duration::from_millis(250);
/// A node that serves nothing any more is kept so long after it was last needed: until nothing can
/// be on its way to it.
const KEPT: Duration = Duration::from_secs(60);
/// So many times a request is sent on at once; after that, only after a pause.
const HASTY: u32 = 3;
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Why a name cannot be a lock's.
const TWO_SLOTS: &str = "on a cluster a lock and its counter must share a slot, and no counter can share that of a name with `}`, or of a \
     reentrant mutex with `{`, unless something stands between a first `{` and the next `}`";

/// A store on a cluster of Redis or Valkey servers. Clones share its connections.
#[derive(Clone)]
pub struct Cluster(Arc<ClusterInner>);

struct ClusterInner {
    runtime: Arc<dyn Runtime>,
    dial: Arc<dyn Dial>,
    seeds: Vec<Target>,
    url: Arc<str>,
    terms: Terms,
    map: Locked<Map>,
    /// Told of every change of the map.
    changed: Notify,
    /// Tells the topology_refresh to ask who serves what.
    trouble: Arc<Notify>,
}

/// What is known of the cluster.
struct Map {
    table: SlotTable,
    /// How its clients publish; unknown until a node was asked.
    publish: Option<Publish>,
    /// All nodes that there are connections to, and when they were last needed.
    nodes: BTreeMap<Address, (Arc<ClusterNode>, Moment)>,
    /// Nodes that serve nothing, but can be asked who does.
    replicas: Vec<Address>,
    /// How often a node came to serve slots that had served none: it may not know what the one
    /// before was told.
    promotions: u64,
    /// How often no node could name the slots' owners, and the last reason.
    failures: u64,
    failure: Option<Failure>,
}

impl Cluster {
    /// A store on the cluster that some of its nodes are named of; nothing is sent before its first
    /// use.
    pub fn at(seeds: Vec<Target>, runtime: Arc<dyn Runtime>) -> Self {
        Self::over(seeds, Network::of(&runtime), runtime)
    }

    /// A store whose connections are opened by `dial`.
    pub fn over(seeds: Vec<Target>, dial: Arc<dyn Dial>, runtime: Arc<dyn Runtime>) -> Self {
        let url = Topology::Cluster(seeds.clone()).shown();
        let terms = seeds.first().map(|seed| seed.access.terms).unwrap_or_default();
        let map = Map {
            table: SlotTable::default(),
            publish: None,
            nodes: BTreeMap::new(),
            replicas: Vec::new(),
            promotions: 0,
            failures: 0,
            failure: None,
        };
        let (map, changed, trouble) = (Locked::new(map), Notify::new(), Arc::default());
        let inner = Arc::new(ClusterInner { runtime, dial, seeds, url, terms, map, changed, trouble });
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
    fn call(&self, op: Op, within: Duration) -> BoxFuture<'static, Result<Answer, Failure>> {
        let inner = Arc::clone(&self.0);
        async move { inner.call(op, inner.runtime.now() + within).await }.boxed()
    }

    fn record(&self, op: RecordOp, within: Duration) -> BoxFuture<'static, Result<RecordAnswer, Failure>> {
        let inner = Arc::clone(&self.0);
        async move { inner.record(op, inner.runtime.now() + within).await }.boxed()
    }

    fn listen(
        &self,
        name: &LockName,
        spec: LockSpec,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        let (inner, name) = (Arc::clone(&self.0), name.clone());
        async move { inner.listen(&name, spec, None, inner.runtime.now() + within).await }.boxed()
    }

    fn listen_for_turns(
        &self,
        name: &LockName,
        spec: LockSpec,
        client: Client,
        within: Duration,
    ) -> BoxFuture<'static, Result<Listener, Failure>> {
        let (inner, name) = (Arc::clone(&self.0), name.clone());
        async move { inner.listen(&name, spec, Some(client), inner.runtime.now() + within).await }.boxed()
    }

    /// One master after the other, as on one server. A lock whose slot moves meanwhile may be told
    /// twice, or not.
    fn list(
        &self,
        prefix: &str,
        from: Cursor,
        within: Duration,
    ) -> BoxFuture<'static, Result<Page, Failure>> {
        let (inner, prefix) = (Arc::clone(&self.0), prefix.to_owned());
        async move { inner.list(&prefix, &from, inner.runtime.now() + within).await }.boxed()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.terms.capabilities()
    }

    /// A lock is kept only where its counter and its channel can be.
    fn supports(&self, spec: LockSpec, name: &LockName) -> Result<(), &'static str> {
        if keys::share_a_slot(spec, name.as_str()) { Ok(()) } else { Err(TWO_SLOTS) }
    }

    fn shard(&self, name: &LockName) -> Option<String> {
        let (member, _) = self.0.map().owner(keys::slot(name.as_str()))?;
        Some(member.address.to_string())
    }

    fn declare_ttl(&self, _ttl: Duration) {}

    fn settled(&self) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }

    /// When any node was reconnected to, or serves slots for the first time.
    fn interrupted(&self) -> BoxFuture<'static, ()> {
        let inner = Arc::clone(&self.0);
        let (before, mut links) = {
            let map = inner.map();
            let links: Vec<_> =
                map.nodes.values().map(|(member, _)| member.node.link.reconnected()).collect();
            (map.promotions, links)
        };
        async move {
            loop {
                let mut changed = pin!(inner.changed.notified());
                changed.as_mut().enable();
                if inner.map().promotions > before {
                    return;
                }
                let reconnected = poll_fn(|context| {
                    if links.iter_mut().any(|link| link.poll_unpin(context).is_ready()) {
                        return Poll::Ready(true);
                    }
                    changed.as_mut().poll(context).map(|()| false)
                });
                if reconnected.await {
                    return;
                }
            }
        }
        .boxed()
    }

    fn interruptions(&self) -> u64 {
        let map = self.0.map();
        let links = map.nodes.values().map(|(member, _)| member.node.link.interruptions());
        // A node that is dropped takes its count along: that looks like an interruption, and costs
        // a question.
        links.fold(map.promotions, u64::wrapping_add)
    }

    /// Makes sure that it is known who serves what, and that one of them can be reached.
    fn ready(&self, within: Duration) -> BoxFuture<'static, Result<(), Failure>> {
        let inner = Arc::clone(&self.0);
        async move {
            let deadline = inner.runtime.now() + within;
            let masters = inner.known_by(deadline, true, |map| {
                Some(map.table.masters().to_vec()).filter(|masters| !masters.is_empty())
            });
            let lines = masters.await?.into_iter().map(|member| {
                let pipeline = async move {
                    let pipeline = member.node.link.line_at_once(deadline).await;
                    pipeline.map_err(|failure| at(&member.address, failure))
                };
                pipeline.boxed()
            });
            select_ok(lines).await.map(|_| ())
        }
        .boxed()
    }

    fn renews_many(&self) -> Option<&dyn RenewsMany> {
        Some(self)
    }

    fn member(&self) -> Result<&dyn QuorumMember, &'static str> {
        Err("it is several servers, which fail over by themselves")
    }

    fn url(&self) -> &Arc<str> {
        &self.0.url
    }
}

impl RenewsMany for Cluster {
    /// A script reaches the locks of one slot.
    fn group(&self, name: &LockName, spec: LockSpec) -> Option<u16> {
        let slot = || keys::slot(name.as_str());
        match spec {
            LockSpec::Mutex => Some(slot()),
            LockSpec::Queue(_) => Some(slots::SLOTS + slot()),
            LockSpec::Reentrant => None,
        }
    }

    fn renew(&self, ops: Vec<Op>, within: Duration) -> BoxFuture<'static, Vec<Result<Answer, Failure>>> {
        let inner = Arc::clone(&self.0);
        async move { inner.renew(ops, inner.runtime.now() + within).await }.boxed()
    }
}

impl ClusterInner {
    fn map(&self) -> MutexGuard<'_, Map> {
        // Nothing in here panics half-way, so a poisoned map is as good as another.
        self.map.lock()
    }

    async fn call(&self, op: Op, deadline: Moment) -> Result<Answer, Failure> {
        fits(op.spec, &op.name)?;
        let slot = keys::slot(op.name.as_str());
        let mut turns = Turns::default();
        let mut asked_of = None;
        loop {
            let asking = asked_of.is_some();
            let route = self.next_route(slot, asked_of.take(), deadline).await?;
            let context = RequestContext { space: route.space, asking, terms: self.terms };
            let only_reads = matches!(op.verb, Verb::Inspect);
            let line = self.line(&route, &op.name, only_reads, deadline).await?;
            let answer = route.member.node.ask(&line.pipeline, &op, context, deadline).await;
            let failure = match line.answered(answer) {
                Ok(reply) => {
                    if asking && matches!(op.verb, Verb::Release { .. }) {
                        self.tell_where_it_was(&op, deadline).boxed().await;
                    }
                    return Ok(reply);
                }
                Err(failure) => failure,
            };
            asked_of = self.redirected(slot, &route, failure, &mut turns, deadline).boxed().await?;
        }
    }

    /// Carries out renewals of locks in one slot. Where that moves, each goes its own way.
    async fn renew(&self, ops: Vec<Op>, deadline: Moment) -> Vec<Result<Answer, Failure>> {
        let said = match ops.first().and_then(|op| self.open_route(keys::slot(op.name.as_str()))) {
            Some(Route { member, pipeline, space }) => {
                let context = RequestContext { space, asking: false, terms: self.terms };
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

    /// Carries out a request about a record, whose key and lock share a slot.
    async fn record(&self, op: RecordOp, deadline: Moment) -> Result<RecordAnswer, Failure> {
        fits(LockSpec::Mutex, &op.lock)?;
        let slot = keys::slot(op.lock.as_str());
        let mut turns = Turns::default();
        let mut asked_of = None;
        loop {
            let asking = asked_of.is_some();
            let route = self.next_route(slot, asked_of.take(), deadline).await?;
            let context = RequestContext { space: route.space, asking, terms: self.terms };
            let only_reads = matches!(op.verb, RecordVerb::Read);
            let line = self.line(&route, &op.lock, only_reads, deadline).await?;
            let answer = record::ask(&*self.runtime, &line.pipeline, &op, context, deadline).await;
            let answer = line.answered(answer);
            let Err(failure) = answer else { return answer };
            asked_of = self.redirected(slot, &route, failure, &mut turns, deadline).boxed().await?;
        }
    }

    /// The connection to a node for a request about this name.
    async fn line(
        &self,
        route: &Route,
        name: &LockName,
        only_reads: bool,
        deadline: Moment,
    ) -> Result<Line, Failure> {
        let Route { member, pipeline, .. } = route;
        let line = member.node.lines.line_beside(pipeline, name, only_reads, self.terms, deadline).await;
        line.map_err(|failure| at(&member.address, failure))
    }

    /// Where a request goes next: to the node that was named, or the one that serves the slot.
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

    /// What a failure means for the next attempt: which node is to be asked, if one was named. The
    /// failure, if there is no other attempt.
    async fn redirected(
        &self,
        slot: u16,
        route: &Route,
        failure: Failure,
        turns: &mut Turns,
        deadline: Moment,
    ) -> Result<Option<Address>, Failure> {
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
                turns.is_over = true;
            }
        }
        self.turn(turns, deadline, failure).await?;
        Ok(asked_of)
    }

    /// The pipeline to the node that serves a slot, if there is one.
    fn open_route(&self, slot: u16) -> Option<Route> {
        let (member, space) = self.map().owner(slot)?;
        let pipeline = member.node.link.open_line()?;
        Some(Route { member, pipeline, space })
    }

    /// The same; waits until there is one.
    async fn route(&self, slot: u16, deadline: Moment) -> Result<Route, Failure> {
        loop {
            let (member, space) = self.known(deadline, |map| map.owner(slot)).await?;
            if let Some(pipeline) = member.node.link.open_line() {
                return Ok(Route { member, pipeline, space });
            }
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if !self.map().serves(&member, slot) {
                continue;
            }
            // Before it can be reached, another may come to serve the slot.
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

    /// The pipeline to a node that a slot is on its way to.
    async fn route_to(&self, address: &Address, deadline: Moment) -> Result<Route, Failure> {
        let (member, space) = {
            let mut map = self.map();
            (self.member(&mut map, address), map.space())
        };
        let pipeline = member.node.link.pipeline(deadline).await.map_err(|failure| at(address, failure))?;
        Ok(Route { member, pipeline, space })
    }

    /// What is looked for in the map; waits until it is there.
    async fn known<T>(&self, deadline: Moment, look_for: impl Fn(&Map) -> Option<T>) -> Result<T, Failure> {
        self.known_by(deadline, false, look_for).await
    }

    /// The same. `at_once`, it fails as soon as the system says that no node can be dialled.
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
            // Wrong credentials do not become right by waiting. But what was said before we asked
            // does not count.
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

    /// The pause before a request is sent on; the failure, if there is no time left. That it was
    /// redirected means that it was not carried out.
    async fn turn(&self, turns: &mut Turns, deadline: Moment, failure: Failure) -> Result<(), Failure> {
        let Some(pause) = turns.pause() else { return Ok(()) };
        let until = self.runtime.now() + pause;
        if until >= deadline {
            let said = failure::said_in(&failure).map(|said| format!(": {said}"));
            let cause = format!("its slot is moving, or its cluster is electing{}", said.unwrap_or_default());
            return Err(Failure::NotSent(Failure::cause(cause)));
        }
        self.runtime.sleep_until(until).await;
        Ok(())
    }

    /// Those who wait still listen where the slot was, until all of it has moved, and were not
    /// heard from there.
    async fn tell_where_it_was(&self, op: &Op, deadline: Moment) {
        let (pipeline, space) = {
            let map = self.map();
            let owner = map.table.owner(keys::slot(op.name.as_str()));
            (owner.and_then(|owner| owner.node.link.open_line()), map.space())
        };
        if let (Some(pipeline), Publish::Sharded) = (pipeline, space.publish) {
            let channel = keys::channel(space.db, op.spec, op.name.as_str());
            let _ = pipeline.ask(&command(&[space.publish.command(), &channel, ""]), deadline).await;
        }
    }

    /// To all that is said about a lock, or to what is said to one client that waits for it.
    async fn listen(
        &self,
        name: &LockName,
        spec: LockSpec,
        client: Option<Client>,
        deadline: Moment,
    ) -> Result<Listener, Failure> {
        fits(spec, name)?;
        let slot = keys::slot(name.as_str());
        let mut turns = Turns::default();
        loop {
            let (member, space) = self.known(deadline, |map| map.owner(slot)).await?;
            let channel = match client {
                Some(client) => keys::turns(space.db, spec, name.as_str(), client),
                None => keys::channel(space.db, spec, name.as_str()),
            };
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
                Some(_) => turns.is_over = true,
                // It may have moved on while it was tried.
                None if !self.map().serves(&member, slot) => {}
                None => {
                    self.trouble.notify_one();
                    return Err(failure);
                }
            }
            self.turn(&mut turns, deadline, failure).await?;
        }
    }

    async fn list(&self, prefix: &str, from: &Cursor, deadline: Moment) -> Result<Page, Failure> {
        let masters = self.known(deadline, |map| {
            Some((map.table.masters().to_vec(), map.space())).filter(|(masters, _)| !masters.is_empty())
        });
        let (masters, space) = masters.await?;
        let mut masters: Vec<_> =
            masters.into_iter().map(|member| (member.address.to_string(), member)).collect();
        masters.sort_by(|(one, _), (other, _)| one.cmp(other));
        let (at_node, rest) = from.0.split_once(' ').unwrap_or_default();
        // One that serves nothing any more is passed over.
        let mut left = masters.iter().skip_while(|(address, _)| **address < *at_node);
        let Some((address, member)) = left.next() else { return Ok(Page::default()) };
        let rest = if address == at_node { rest } else { "" };
        let context = RequestContext { space, asking: false, terms: self.terms };
        let page = member.node.list(prefix, &Cursor(rest.to_owned()), context, deadline).await;
        let mut page = page.map_err(|failure| at(&member.address, failure))?;
        page.next = match (page.next, left.next()) {
            (Some(Cursor(rest)), _) => Some(Cursor(format!("{address} {rest}"))),
            (None, Some((next, _))) => Some(Cursor(format!("{next} "))),
            (None, None) => None,
        };
        Ok(page)
    }

    /// The node at an address, known or not.
    fn member(&self, map: &mut Map, address: &Address) -> Arc<ClusterNode> {
        let now = self.runtime.now();
        let known = map.nodes.entry(address.clone());
        let (member, needed) =
            known.or_insert_with(|| (self.stranger(address, Arc::clone(&self.trouble)), now));
        *needed = now;
        Arc::clone(member)
    }

    /// A node that there are no connections to yet. All let us in as the seeds do.
    fn stranger(&self, address: &Address, trouble: Arc<Notify>) -> Arc<ClusterNode> {
        let seed = self.seeds.iter().find(|seed| seed.address == *address).or(self.seeds.first());
        let target = seed.expect("a URL has a host").at(address.clone());
        let connector = Connector::new(Arc::clone(&self.runtime), Arc::clone(&self.dial), target);
        let node = Node::new(connector.telling(trouble), Arc::clone(&self.url));
        Arc::new(ClusterNode { address: address.clone(), node })
    }

    /// A node said that another serves this slot.
    fn moved(&self, slot: u16, to: &Address) {
        {
            let mut map = self.map();
            let member = self.member(&mut map, to);
            map.promotions += u64::from(!map.table.has(to));
            map.table.give(slot, slot, &member);
            map.dismiss();
        }
        self.changed.notify_waiters();
        self.trouble.notify_one();
    }

    /// Asks one node after the other, some side by side, until one says who serves what.
    async fn look(&self) {
        let mut why = unserved();
        for members in self.candidates().chunks(SIDE_BY_SIDE) {
            let views = members.iter().map(|member| self.ask_for_view(member).boxed());
            match select_ok(views).await {
                Ok(((view, publish), _)) => return self.learn(&view, publish),
                Err(failure) => why = failure,
            }
        }
        {
            let mut map = self.map();
            map.failures += 1;
            map.failure = Some(why);
        }
        self.changed.notify_waiters();
    }

    /// Who can be asked: first those that are connected to, each time in another order, because one
    /// of them may be cut off from the others and not know it; then those that the URL names, since
    /// all others may have moved.
    fn candidates(&self) -> Vec<Arc<ClusterNode>> {
        let map = self.map();
        let is_open = |member: &Arc<ClusterNode>| member.node.link.open_line().is_some();
        let known = map.nodes.values().map(|(member, _)| Arc::clone(member));
        let (mut all, rest): (Vec<_>, Vec<_>) = known.partition(is_open);
        if !all.is_empty() {
            let first = self.runtime.random() % all.len() as u64;
            all.rotate_left(first as usize);
        }
        let seeds = self.seeds.iter().map(|seed| &seed.address);
        for address in seeds.chain(rest.iter().map(|member| &member.address)).chain(&map.replicas) {
            if !all.iter().any(|asked| asked.address == *address) {
                let known = map.nodes.get(address).map(|(member, _)| Arc::clone(member));
                // Whether a foreign node can be reached matters only here.
                all.push(known.unwrap_or_else(|| self.stranger(address, Arc::default())));
            }
        }
        all
    }

    async fn ask_for_view(&self, member: &ClusterNode) -> Result<(ClusterView, Publish), Failure> {
        let ClusterNode { address, node } = member;
        let deadline = self.runtime.now() + ANSWER;
        let pipeline = node.link.line_at_once(deadline).await.map_err(|failure| at(address, failure))?;
        let (health, slots) = (command(&["CLUSTER", "INFO"]), command(&["CLUSTER", "SLOTS"]));
        // What Redisson asks, and those who share a lock must come to the same conclusion.
        let sharded = command(&["PUBSUB", "SHARDNUMSUB"]);
        let asked = join3(
            pipeline.ask(&health, deadline),
            pipeline.ask(&slots, deadline),
            pipeline.ask(&sharded, deadline),
        );
        let (health, slots, sharded) = asked.await;
        let slots = answered(&pipeline, slots?).map_err(|failure| at(address, failure))?;
        let Some(view) = ClusterView::read(&slots, address) else {
            pipeline.hang_up();
            return Err(at(address, Failure::NotSent(Failure::cause("a malformed reply to CLUSTER SLOTS"))));
        };
        // A node that is cut off from the others does not know of what they have decided since.
        let is_down = replies::prose(&health?).is_some_and(|health| health.contains("cluster_state:fail"));
        if is_down || view.ranges.is_empty() {
            return Err(at(address, Failure::NotSent(Failure::cause("its cluster is down"))));
        }
        let publish = match sharded? {
            Value::ServerError(_) => Publish::Plain,
            _ => Publish::Sharded,
        };
        Ok((view, publish))
    }

    /// Takes over what a node said.
    fn learn(&self, view: &ClusterView, publish: Publish) {
        let now = self.runtime.now();
        {
            let mut map = self.map();
            // They served until now, and something may be on its way to them.
            for served in map.table.masters().to_vec() {
                self.member(&mut map, &served.address);
            }
            let mut table = SlotTable::default();
            for (first, last, address) in &view.ranges {
                let member = self.member(&mut map, address);
                map.promotions += u64::from(!map.table.has(address) && !table.has(address));
                table.give(*first, *last, &member);
            }
            map.table = table;
            map.publish = Some(publish);
            map.replicas.clone_from(&view.replicas);
            map.failure = None;
            map.dismiss();
            let Map { nodes, table, .. } = &mut *map;
            nodes.retain(|address, (_, needed)| table.has(address) || now.since(*needed) < KEPT);
        }
        self.changed.notify_waiters();
    }
}

impl Map {
    fn space(&self) -> Keyspace {
        Keyspace { db: 0, publish: self.publish.unwrap_or(Publish::Plain), has_slots: true }
    }

    fn owner(&self, slot: u16) -> Option<(Arc<ClusterNode>, Keyspace)> {
        self.table.owner(slot).map(|owner| (Arc::clone(owner), self.space()))
    }

    fn serves(&self, member: &Arc<ClusterNode>, slot: u16) -> bool {
        self.table.owner(slot).is_some_and(|owner| Arc::ptr_eq(owner, member))
    }

    /// Those who listen where their messages are not said any more are told so.
    fn dismiss(&self) {
        for (member, _) in self.nodes.values() {
            member.node.notifications.keep(|channel, publish| {
                Some(publish) == self.publish && self.serves(member, keys::slot(channel))
            });
        }
    }
}

/// Where a request goes.
struct Route {
    member: Arc<ClusterNode>,
    pipeline: Arc<Pipeline>,
    space: Keyspace,
}

/// How often a request was sent on.
#[derive(Default)]
struct Turns {
    count: u32,
    /// It was not sent anywhere else: to ask again at once would be to no avail.
    is_over: bool,
}

impl Turns {
    fn pause(&mut self) -> Option<Duration> {
        self.count += 1;
        let waits = std::mem::take(&mut self.is_over) || self.count > HASTY;
        waits.then(|| PAUSE_MIN.saturating_mul(1 << (self.count - 1).min(8)).min(PAUSE_MAX))
    }
}

/// Asks who serves what whenever there is trouble, and not too often.
async fn topology_refresh(cluster: Weak<ClusterInner>) {
    let Some((runtime, trouble)) =
        cluster.upgrade().map(|inner| (Arc::clone(&inner.runtime), Arc::clone(&inner.trouble)))
    else {
        return;
    };
    loop {
        trouble.notified().await;
        let Some(inner) = cluster.upgrade() else { return };
        inner.look().await;
        drop(inner);
        runtime.sleep_until(runtime.now() + PAUSE).await;
    }
}

/// Also requests without a handle, such as an inspection.
fn fits(spec: LockSpec, name: &LockName) -> Result<(), Failure> {
    match keys::share_a_slot(spec, name.as_str()) {
        true => Ok(()),
        false => Err(Failure::Refused(Failure::cause(TWO_SLOTS))),
    }
}

fn unserved() -> Failure {
    Failure::NotSent(Failure::cause("no node is known to serve its slot"))
}

/// The same failure, with the node that it is about.
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
