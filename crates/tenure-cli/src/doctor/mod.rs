//! `tenure doctor`: finds problems in a store's setup that would cost locks.
//!
//! It queries the servers through [`tenure::diagnosis`], and each check adds to a [`report`]. It acquires and
//! releases one lock with a new random name, which leaves only the token counter that all locks share.
//!
//! | module | what it holds |
//! |---|---|
//! | `cluster` | checks of a cluster |
//! | `etcd` | version and members of an etcd cluster |
//! | `file` | checks of a directory |
//! | `mysql` | checks of a MySQL or MariaDB server |
//! | `postgres` | checks of a PostgreSQL server |
//! | `proxy` | detection of proxies and balancers |
//! | `quorum` | checks of a quorum |
//! | `report` | the report as text and JSON |
//! | `rights` | checks of a user's permissions |
//! | `sentinel` | checks of sentinels |
//! | `server` | checks of one Redis server |
//! | `settings` | checks of the URL and flags |
//! | `versions` | whether the versions that are connected may share a server |
//! | `zookeeper` | versions, members and connection limits of ZooKeeper servers |

mod cluster;
#[cfg(feature = "etcd")]
mod etcd;
mod file;
#[cfg(feature = "mysql")]
mod mysql;
mod postgres;
mod proxy;
mod quorum;
mod report;
mod rights;
mod sentinel;
mod server;
mod settings;
mod versions;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tenure::diagnosis::{Address, Console, Namespace, Target, Topology};
use tenure::{LockName, Locks};

use crate::cli::Doctor;
use crate::exit::{FINDINGS, Failure, chain};
use crate::output;
use crate::store::{self, Guarantees};
#[cfg(feature = "serve")]
pub(crate) use cluster::masters;
use report::Report;
pub(crate) use sentinel::master;
use server::Server;

struct Setup {
    ttl: Duration,
    acks: u32,
    restart_grace: Option<Duration>,
    prefix: String,
    /// The name of the trial lock, with the prefix.
    trial: String,
    namespace: Namespace,
    topology: Topology,
}

impl Setup {
    /// What is left of a lease just before its renewal.
    fn least_left(&self) -> Duration {
        self.ttl * 2 / 3
    }

    fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    fn is_quorum(&self) -> bool {
        matches!(self.topology, Topology::Quorum(_))
    }
}

/// Examines the store; returns the exit code, which tells whether there are findings.
pub(crate) async fn doctor(args: &Doctor) -> Result<u8, Failure> {
    let url = store::url(&args.store)?;
    let known = tenure::diagnosis::shown(&url);
    let scheme = store::scheme(known.as_deref().unwrap_or(&url));
    let mut report = Report::default();
    let name = format!("doctor-{:016x}", RandomState::new().hash_one(0));
    LockName::new(&format!("{}{name}", args.store.prefix))?;
    let open =
        |ttl| store::open_existing_with(&args.store, Guarantees::default(), |options| options.ttl(ttl));
    let locks = if let Some(path) = store::directory(&url) {
        let locks = open(args.ttl)?;
        file::check(path, &mut report)?;
        report.saw(locks.url(), "this machine alone: a reboot frees its locks".to_owned());
        locks
    } else if scheme.starts_with("postgres") {
        let locks = open(args.ttl)?;
        postgres::check(&url, locks.url(), args.ttl, &mut report).await?;
        locks
    } else if ["mysql", "mariadb"].contains(&scheme) {
        let locks = open(args.ttl)?;
        #[cfg(feature = "mysql")]
        mysql::check(&url, locks.url(), &mut report).await?;
        locks
    } else if ["etcd", "etcds", "zookeeper", "zookeepers"].contains(&scheme) {
        // A ping covers reachability, version, leader and majority; a trial lock covers session limits and
        // permissions.
        let locks = open(args.ttl)?;
        locks.ping().await?;
        #[cfg(feature = "etcd")]
        if scheme.starts_with("etcd") {
            etcd::check(&url, locks.url(), &mut report).await;
        }
        #[cfg(feature = "zookeeper")]
        if scheme.starts_with("zookeeper") {
            zookeeper::check(&url, locks.url(), &mut report).await;
        }
        locks
    } else {
        let topology = Topology::parse(&url)?;
        let access = topology.access();
        let (acks, restart_grace) = (access.guarantees.acks, access.guarantees.restart_grace);
        // A longer lease is reported below, and an error of the library.
        let locks = open(restart_grace.map_or(args.ttl, |grace| args.ttl.min(grace)))?;
        let (ttl, prefix, namespace) = (args.ttl, args.store.prefix.clone(), access.namespace);
        let trial = format!("{prefix}{name}");
        let setup = Setup { ttl, acks, restart_grace, prefix, trial, namespace, topology };
        settings::of_the_url(&setup, locks.url(), &mut report);
        match &setup.topology {
            Topology::Server(target) => drop(examine(target, &setup, &mut report).await?),
            Topology::Sentinel(sentinels) => sentinel::check(sentinels, &setup, &mut report).await?,
            Topology::Cluster(seeds) => cluster::check(seeds, &setup, &mut report).await?,
            Topology::Quorum(members) => quorum::check(members, &setup, &mut report).await?,
        }
        locks
    };
    if let Some(what) = tenure::diagnosis::exposure(&url) {
        report.note("encryption", locks.url(), what);
    }
    let written = store::scheme(&url);
    if ["postgres", "mysql"].contains(&scheme) && (written == "jdbc" || written.contains('+')) {
        let what = format!("the scheme names a driver, which changes nothing: {scheme}:// is the same");
        report.note("scheme", locks.url(), what);
    }
    // The reason why it would fail has been reported already.
    if !report.has(&["role", "scripts", "rights"]) {
        try_a_lock(&locks, &name, &mut report).await;
    }
    let told = if args.json { report.json(locks.url()) } else { report.text(locks.url()) };
    output::print(told)?;
    Ok(if report.has_findings() { FINDINGS } else { 0 })
}

/// Connects to one server and runs all checks of a server.
async fn examine(target: &Target, setup: &Setup, report: &mut Report) -> Result<Server, tenure::Error> {
    let console = Console::open(target).await?;
    let mut server = Server::new(console, target);
    server.examine(setup, report).await?;
    proxy::check(&mut server, target, report).await?;
    rights::check(&mut server, setup, target.user(), report).await?;
    Ok(server)
}

/// Timeout of each request of the trial. The store has answered before; a slow one is not what the trial is
/// meant to find.
const TRIAL: Duration = Duration::from_secs(5);

const IN_GRACE: &str = "no lock is granted now: the server is in its restart-grace";

/// Acquires and releases a lock that no other client uses.
async fn try_a_lock(locks: &Locks, name: &str, report: &mut Report) {
    let tried = async {
        let locks = locks.with(|options| options.op_timeout(TRIAL))?;
        let guard = locks.mutex(name)?.try_lock().await?;
        match guard {
            Some(guard) => guard.verify().await.and(guard.release().await),
            // Nobody else uses this name.
            None => return Ok(false),
        }
        .map(|()| true)
    };
    match tried.await {
        Ok(true) => {}
        Ok(false) => report.note("trial", locks.url(), IN_GRACE),
        Err(error) => report.find(
            "trial",
            locks.url(),
            format!("cannot acquire a lock with a new name: {}", chain(&error)),
            "other locks of this store would be refused too",
            "fix the cause, and run `tenure doctor` again",
        ),
    }
}

/// A TCP address as reported by a server; without a host, that of the server that was asked.
pub(crate) fn address(host: &str, port: i64, asked: &Target) -> Option<Address> {
    let port = u16::try_from(port).ok().filter(|port| *port != 0)?;
    match (host, &asked.address) {
        ("" | "?", Address::Tcp(host, _)) => Some(Address::Tcp(host.clone(), port)),
        ("" | "?", Address::Unix(_)) => None,
        (host, _) => Some(Address::Tcp(host.to_owned(), port)),
    }
}
