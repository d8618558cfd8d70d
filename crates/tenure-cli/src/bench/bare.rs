//! The bare commands as a baseline: what one would write without tenure.
#![expect(
    clippy::disallowed_methods,
    reason = "a timer of this command's own; the clock of leases is the library's"
)]

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use futures_util::future::{join, join_all};
use rustix::fs::{FlockOperation, flock};
use tenure::diagnosis::{BareStep, Console, ConsoleReply, LockKeys, Namespace, Target, Topology};
use tokio::time::sleep;

use super::others::Others;
use super::samples::Times;
use super::{HEAD_START, Missing, POLL, Part, Until};
use crate::clock;
use crate::exit::{Failure, chain};

/// Deletes a key if it has this value. `DELETE_SHA` is its SHA-1.
const DELETE: &str =
    r#"if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end"#;
const DELETE_SHA: &str = "b70c2384248f88e6b75b9f89241a180f856ad852";

/// What the bare commands run against.
pub(super) enum Bare {
    Servers(Servers),
    Others(Others),
    Directory(Directory),
}

impl Bare {
    /// A short description of the commands.
    pub(super) fn what(&self, part: Part) -> String {
        let poll = format!("polls every {} ms", POLL.as_millis());
        match (self, part) {
            (Self::Servers(_), Part::Renewal) => "PEXPIRE".into(),
            (Self::Servers(_), Part::Uncontended) => {
                "SET NX PX, then EVALSHA that compares and deletes".into()
            }
            (Self::Servers(_), _) => format!("SET NX PX {poll}, then EVALSHA that compares and deletes"),
            (Self::Others(others), part) => others.what(part),
            (Self::Directory(_), Part::Renewal) => "flock, a file written and renamed".into(),
            (Self::Directory(_), _) => "flock, a file written and renamed, then unlinked".into(),
        }
    }

    pub(super) async fn pair(&mut self, times: &mut Times) -> Result<(), Missing> {
        let start = clock::now();
        match self {
            Self::Servers(servers) => {
                let Servers { clients, key, ttl_ms, .. } = servers;
                if clients[0].acquire(key, ttl_ms).await? {
                    clients[0].release(key).await?;
                }
            }
            Self::Others(others) => others.pair().await?,
            Self::Directory(directory) => directory.pair().map_err(told)?,
        }
        times.add_alone(clock::now() - start);
        Ok(())
    }

    pub(super) async fn contended(&mut self, until: Until, times: &mut Times) -> Result<(), Missing> {
        let start = clock::now();
        let waits: Result<Vec<Vec<Duration>>, Missing> = match self {
            Self::Servers(Servers { clients, key, ttl_ms, .. }) => {
                let each = clients.iter_mut().map(|client| client.take_turns(key, ttl_ms, until));
                join_all(each).await.into_iter().collect()
            }
            Self::Others(others) => others.contended(until).await,
            Self::Directory(directory) => directory.take_turns(until).map_err(told),
        };
        times.add_all(waits?.into_iter().flatten(), clock::now() - start);
        Ok(())
    }

    pub(super) async fn handover(&mut self, times: &mut Times) -> Result<(), Missing> {
        let (released, granted) = match self {
            Self::Servers(Servers { clients, key, ttl_ms, .. }) => {
                let [first, second, ..] = &mut clients[..] else { unreachable!("there are two clients") };
                if !first.acquire(key, ttl_ms).await? {
                    return Ok(());
                }
                let waiting = async {
                    let granted = second.wait(key, ttl_ms, Until::after(HEAD_START * 20)).await?;
                    let at = clock::now();
                    if granted {
                        second.release(key).await?;
                    }
                    Ok::<_, Missing>(at)
                };
                let (granted, released) = join(waiting, async {
                    sleep(HEAD_START).await;
                    let at = clock::now();
                    first.release(key).await.map(|()| at)
                })
                .await;
                (released?, granted?)
            }
            Self::Others(others) => others.handover().await?,
            Self::Directory(directory) => directory.handover().map_err(told)?,
        };
        times.add_alone(granted.saturating_sub(released));
        Ok(())
    }

    /// Acquires what [`renew`](Self::renew) renews.
    pub(super) async fn hold(&mut self) -> Result<(), Missing> {
        match self {
            Self::Servers(Servers { clients, key, ttl_ms, .. }) => {
                clients[0].acquire(key, ttl_ms).await.map(|_| ())
            }
            Self::Others(others) => others.first(BareStep::Take).await.map(drop),
            Self::Directory(directory) => directory.write().map_err(told),
        }
    }

    pub(super) async fn renew(&mut self, times: &mut Times) -> Result<(), Missing> {
        let start = clock::now();
        match self {
            Self::Servers(Servers { clients, key, ttl_ms, .. }) => {
                clients[0].ask(&["PEXPIRE", key, ttl_ms]).await?;
            }
            Self::Others(others) => drop(others.first(BareStep::Renew).await?),
            Self::Directory(directory) => directory.renew().map_err(told)?,
        }
        times.add_alone(clock::now() - start);
        Ok(())
    }

    /// Releases what [`hold`](Self::hold) acquired.
    pub(super) async fn let_go(&mut self) -> Result<(), Missing> {
        match self {
            Self::Servers(Servers { clients, key, .. }) => clients[0].release(key).await,
            Self::Others(others) => others.first(BareStep::Give).await.map(drop),
            Self::Directory(_) => Ok(()),
        }
    }

    /// Whether the bare key exists, or a quorum has ballots of these names.
    pub(super) async fn has_used(&mut self, names: &[String]) -> Result<bool, Missing> {
        let Self::Servers(servers) = self else { return Ok(false) };
        for key in servers.kept(names) {
            if servers.clients[0].ask(&["EXISTS", &key]).await?.contains(&ConsoleReply::Int(1)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Deletes the remains of these names and the bare key. The token counter stays, because other locks use
    /// it.
    pub(super) async fn clear_away(&mut self, names: &[String]) {
        match self {
            Self::Servers(servers) => {
                let kept = servers.kept(names);
                // Requests of interrupted clients are carried out before this.
                let Servers { clients, key, .. } = servers;
                join_all(clients.iter_mut().map(|client| client.release(key))).await;
                for key in kept {
                    let _ = clients[0].ask(&["DEL", &key]).await;
                }
            }
            Self::Others(others) => others.clear_away().await,
            Self::Directory(directory) => directory.clear_away(),
        }
    }
}

fn told(error: io::Error) -> Missing {
    error.to_string()
}

/// Servers that are all queried at once, by several clients.
pub(super) struct Servers {
    clients: Vec<Client>,
    key: String,
    ttl_ms: String,
    is_quorum: bool,
    namespace: Namespace,
}

/// A connection to each server.
struct Client {
    value: String,
    consoles: Vec<Console>,
}

impl Servers {
    pub(super) async fn open(
        topology: &Topology,
        key: String,
        ttl: Duration,
        clients: usize,
    ) -> Result<Self, Failure> {
        let namespace = topology.access().namespace;
        let key = format!("{}{key}", namespace.as_str());
        let targets = targets(topology, &key).await?;
        let mut all = Vec::new();
        for number in 0..clients {
            let consoles = join_all(targets.iter().map(Console::open)).await;
            // A quorum tolerates missing members.
            let (answering, silent): (Vec<_>, Vec<_>) = consoles.into_iter().partition(Result::is_ok);
            let consoles: Vec<Console> = answering.into_iter().flatten().collect();
            if let Some(Err(error)) = silent.into_iter().next().filter(|_| consoles.is_empty()) {
                return Err(error.into());
            }
            all.push(Client { value: format!("{key}/{number}"), consoles });
        }
        let is_quorum = matches!(topology, Topology::Quorum(_));
        Ok(Self { clients: all, key, ttl_ms: ttl.as_millis().to_string(), is_quorum, namespace })
    }

    /// The keys of these names and of the bare lock that no other lock uses.
    fn kept(&self, names: &[String]) -> Vec<String> {
        let ballot = |name: &String| LockKeys::new(&self.namespace, 0, name, false).ballot();
        let ballots = names.iter().filter(|_| self.is_quorum).map(ballot);
        ballots.chain([self.key.clone()]).collect()
    }
}

/// The servers that keep this key.
async fn targets(topology: &Topology, key: &str) -> Result<Vec<Target>, Failure> {
    match topology {
        Topology::Server(target) => Ok(vec![target.clone()]),
        Topology::Quorum(members) => Ok(members.clone()),
        Topology::Sentinel(sentinels) => {
            let master = crate::doctor::master(sentinels).await?;
            Ok(vec![master])
        }
        Topology::Cluster(seeds) => {
            let mut failure = None;
            for seed in seeds {
                let console = match Console::open(seed).await {
                    Ok(console) => Some(console),
                    Err(error) => {
                        failure = Some(error.into());
                        None
                    }
                };
                let Some(mut console) = console else { continue };
                // A node that does not serve the key names the one that does.
                let ConsoleReply::Error(error) = console.ask(&["EXISTS", key]).await? else {
                    return Ok(vec![seed.clone()]);
                };
                let moved = error.strip_prefix("MOVED ").and_then(|rest| rest.split_once(' '));
                let place = moved.and_then(|(_, place)| place.rsplit_once(':'));
                let (host, port) = place.unwrap_or_default();
                if let Some(address) = crate::doctor::address(host, port.parse().unwrap_or(0), seed) {
                    return Ok(vec![seed.at(address)]);
                }
                failure = Some(Failure::new(crate::exit::STORE, error));
            }
            let none = || Failure::new(crate::exit::STORE, "the URL names no node");
            Err(failure.unwrap_or_else(none))
        }
    }
}

impl Client {
    /// Queries all servers at once; the first error reply is the result.
    async fn ask(&mut self, words: &[&str]) -> Result<Vec<ConsoleReply>, Missing> {
        let replies = join_all(self.consoles.iter_mut().map(|console| console.ask(words))).await;
        let replies: Result<Vec<_>, _> = replies.into_iter().collect();
        let replies = replies.map_err(|error| chain(&error))?;
        let error = replies.iter().find_map(|reply| match reply {
            ConsoleReply::Error(error) => Some(error.clone()),
            _ => None,
        });
        error.map_or(Ok(replies), Err)
    }

    async fn acquire(&mut self, key: &str, ttl_ms: &str) -> Result<bool, Missing> {
        let value = self.value.clone();
        let replies = self.ask(&["SET", key, &value, "NX", "PX", ttl_ms]).await?;
        let granted = replies.iter().filter(|reply| matches!(reply, ConsoleReply::Text(_))).count();
        let is_held = granted > replies.len() / 2;
        if !is_held && granted > 0 {
            self.release(key).await?;
        }
        Ok(is_held)
    }

    async fn release(&mut self, key: &str) -> Result<(), Missing> {
        let value = self.value.clone();
        match self.ask(&["EVALSHA", DELETE_SHA, "1", key, &value]).await {
            Err(error) if error.starts_with("NOSCRIPT") => {
                self.ask(&["EVAL", DELETE, "1", key, &value]).await.map(drop)
            }
            answered => answered.map(drop),
        }
    }

    /// Retries until granted; `false` when the time is over.
    async fn wait(&mut self, key: &str, ttl_ms: &str, until: Until) -> Result<bool, Missing> {
        while !self.acquire(key, ttl_ms).await? {
            if until.is_over() {
                return Ok(false);
            }
            sleep(POLL).await;
        }
        Ok(true)
    }

    async fn take_turns(&mut self, key: &str, ttl_ms: &str, until: Until) -> Result<Vec<Duration>, Missing> {
        let mut waits = Vec::new();
        while !until.is_over() {
            let asked = clock::now();
            if !self.wait(key, ttl_ms, until).await? {
                break;
            }
            waits.push(clock::now() - asked);
            self.release(key).await?;
        }
        Ok(waits)
    }
}

/// A directory beside the store's, on the same file system.
pub(super) struct Directory {
    path: PathBuf,
    clients: usize,
}

impl Directory {
    pub(super) fn make(store: &Path, name: &str, clients: usize) -> Result<Self, Missing> {
        let beside = store.parent().filter(|parent| !parent.as_os_str().is_empty());
        let path = beside.unwrap_or(Path::new(".")).join(format!(".tenure-{}", name.replace('/', "-")));
        fs::create_dir(&path).map_err(|error| format!("cannot make {}: {error}", path.display()))?;
        let directory = Self { path, clients };
        File::create(directory.path.join("guard")).map_err(told)?;
        Ok(directory)
    }

    fn locked(&self) -> io::Result<File> {
        let guard = File::open(self.path.join("guard"))?;
        flock(&guard, FlockOperation::LockExclusive)?;
        Ok(guard)
    }

    fn write(&self) -> io::Result<()> {
        fs::write(self.path.join("new"), b"an owner, a token and the end of a lease")?;
        fs::rename(self.path.join("new"), self.path.join("lock"))
    }

    /// The lock is free again when the returned file is dropped.
    fn acquire(&self) -> io::Result<File> {
        let guard = self.locked()?;
        self.write()?;
        Ok(guard)
    }

    fn release(&self, guard: File) -> io::Result<()> {
        fs::remove_file(self.path.join("lock"))?;
        drop(guard);
        Ok(())
    }

    fn pair(&self) -> io::Result<()> {
        self.release(self.acquire()?)
    }

    fn renew(&self) -> io::Result<()> {
        let _guard = self.locked()?;
        self.write()
    }

    fn take_turns(&self, until: Until) -> io::Result<Vec<Vec<Duration>>> {
        let turns = || {
            let mut waits = Vec::new();
            while !until.is_over() {
                let asked = clock::now();
                let guard = self.acquire()?;
                waits.push(clock::now() - asked);
                self.release(guard)?;
            }
            Ok(waits)
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.clients).map(|_| scope.spawn(turns)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    /// When it was released, and when the other thread acquired it.
    fn handover(&self) -> io::Result<(Duration, Duration)> {
        let guard = self.acquire()?;
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let guard = self.acquire()?;
                let granted = clock::now();
                self.release(guard).map(|()| granted)
            });
            thread::sleep(HEAD_START);
            let released = clock::now();
            self.release(guard)?;
            waiting.join().expect("no panic").map(|granted| (released, granted))
        })
    }

    fn clear_away(&self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
