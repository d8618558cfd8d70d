//! A master with its replicas, and the sentinels that watch over them.

use std::time::Duration;
use std::{iter, thread};

use super::{Config, Server, eventually, fields, sweep_at_exit};

/// A master that says nothing for so long is taken for lost, unless they are [told
/// otherwise](Sentinels::down_after).
const DOWN_AFTER: Duration = Duration::from_millis(1_500);
/// A busy machine keeps none from running for so long.
const CALM: Duration = Duration::from_secs(60);
/// Servers find each other within seconds.
const READY: Duration = Duration::from_secs(20);
/// To be elected, to promote and to tell the others takes two or three.
const FAILOVER: Duration = Duration::from_secs(20);

/// One master, two replicas and three sentinels.
#[derive(Debug)]
pub struct Sentinels {
    /// The first was the master in the beginning.
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Sentinels {
    /// What the sentinels call the master and its replicas.
    pub const SERVICE: &'static str = "locks";

    /// With the defaults.
    ///
    /// # Panics
    /// Like each function here: if the servers cannot be had, or do not do in time what they are
    /// told.
    pub fn start() -> Self {
        Self::start_with(&Config::new(), &Config::new(), "")
    }

    /// Servers and sentinels with these settings. The sentinels log in at the servers with this
    /// password, unless it is empty.
    pub fn start_with(servers: &Config, sentinels: &Config, password: &str) -> Self {
        let servers = servers.clone().set("repl-diskless-sync-delay", "0").set("repl-timeout", "5");
        let servers = match password {
            "" => servers,
            password => servers.set("masterauth", password),
        };
        let master = Server::start_with(servers.clone());
        let of = |server: &Server| format!("127.0.0.1 {}", server.address().port());
        let replicas = together(2, &servers.set("replicaof", &of(&master)));
        eventually("the replicas have what the master has", READY, || {
            replicas.iter().all(|replica| says(replica, "master_link_status", "up"))
        });
        master.replicates(2, "told");

        let service = Self::SERVICE;
        let mut config = sentinels
            .clone()
            .sentinel()
            .set("sentinel monitor", &format!("{service} {} 2", of(&master)))
            .set("sentinel down-after-milliseconds", &format!("{service} {}", DOWN_AFTER.as_millis()))
            .set("sentinel failover-timeout", &format!("{service} 4000"));
        if !password.is_empty() {
            config = config.set("sentinel auth-pass", &format!("{service} {password}"));
        }
        let sentinels = together(3, &config);
        for sentinel in &sentinels {
            // They look at each other more often than by default. A server before 7.0 does not know
            // this, and takes longer. One that was stopped is not to hold back for half a minute.
            let periods = ["INFO-PERIOD", "500", "PUBLISH-PERIOD", "200", "ASK-PERIOD", "200"];
            let periods = [&periods[..], &["TILT-TRIGGER", "60000"]].concat();
            sentinel.command(&[&["SENTINEL", "DEBUG"], &periods[..]].concat());
        }
        let whole = Self { servers: iter::once(master).chain(replicas).collect(), sentinels };
        whole.settles();
        whole
    }

    /// The same, where no master is taken for lost any more, however busy the machine is.
    #[must_use]
    pub fn calm(self) -> Self {
        self.down_after(CALM);
        self
    }

    /// How long a master says nothing from now on until it is taken for lost.
    pub fn down_after(&self, time: Duration) {
        for sentinel in &self.sentinels {
            let time = time.as_millis().to_string();
            sentinel.command(&["SENTINEL", "SET", Self::SERVICE, "down-after-milliseconds", &time]);
        }
    }

    /// `redis-sentinel://` with all sentinels and the service, without a user.
    pub fn url(&self) -> String {
        let addresses: Vec<_> =
            self.sentinels.iter().map(|sentinel| sentinel.address().to_string()).collect();
        let scheme = self.sentinels[0].scheme();
        format!("{scheme}-sentinel://{}/{}", addresses.join(","), Self::SERVICE)
    }

    /// For a `static`, which is never dropped: its directories are removed when this process ends,
    /// as its servers do.
    #[must_use]
    pub fn until_exit(self) -> Self {
        sweep_at_exit(self.servers.iter().chain(&self.sentinels));
        self
    }

    /// The master and the replicas, as they were in the beginning.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The server that the first sentinel that runs calls the master.
    pub fn master(&self) -> &Server {
        let sentinel = self.sentinels.iter().find(|sentinel| sentinel.is_running()).expect("a sentinel runs");
        let named = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::SERVICE]);
        let port = named.items()[1].int();
        let is_named = |server: &&Server| i64::from(server.address().port()) == port;
        self.servers.iter().find(is_named).expect("one of the servers")
    }

    /// Waits until the sentinels call another server the master, which is one. Returns it.
    pub fn fails_over_from(&self, old: &Server) -> &Server {
        eventually("a failover", FAILOVER, || {
            let master = self.master();
            master.address() != old.address() && says(master, "role", "master")
        });
        self.master()
    }

    /// Has a replica take over from the master, which lives and is told. Returns the new master.
    pub fn fail_over(&self) -> &Server {
        let old = self.master();
        let sentinel = &self.sentinels[0];
        eventually("a failover begins", FAILOVER, || {
            sentinel.command(&["SENTINEL", "FAILOVER", Self::SERVICE]) == "OK"
        });
        self.fails_over_from(old)
    }

    /// Waits until all sentinels that run know one master, its replicas and each other, and the
    /// replicas that run have what the master has.
    pub fn settles(&self) {
        eventually("the sentinels and replicas are at one", READY, || {
            let master = self.master().address().port();
            let agrees = |sentinel: &Server| {
                let said = sentinel.command(&["SENTINEL", "MASTER", Self::SERVICE]);
                let field = |name: &str| {
                    let pairs = said.items().chunks_exact(2);
                    pairs.filter(|pair| pair[0] == name).map(|pair| pair[1].text().to_owned()).next()
                };
                field("port") == Some(master.to_string())
                    && field("flags").as_deref() == Some("master")
                    && field("num-slaves").as_deref() == Some("2")
                    && field("num-other-sentinels").as_deref() == Some("2")
            };
            let follows = |server: &Server| {
                server.address().port() == master
                    || (says(server, "role", "slave")
                        && says(server, "master_port", &master.to_string())
                        && says(server, "master_link_status", "up"))
            };
            self.sentinels.iter().filter(|sentinel| sentinel.is_running()).all(agrees)
                && self.servers.iter().filter(|server| server.is_running()).all(follows)
        });
    }
}

/// Whether INFO has it. A sentinel that changes a server's role ends its connections, also this
/// one.
fn says(server: &Server, field: &str, value: &str) -> bool {
    let info = server.try_command(&["INFO", "replication"]);
    info.is_ok_and(|info| fields(&info).get(field).is_some_and(|said| said == value))
}

/// So many servers with the same settings.
fn together(count: usize, config: &Config) -> Vec<Server> {
    let start = || {
        let config = config.clone();
        thread::spawn(|| Server::start_with(config))
    };
    let starts: Vec<_> = (0..count).map(|_| start()).collect();
    starts.into_iter().map(|start| start.join().expect("a server")).collect()
}
