//! A Redis master with replicas and sentinels.

use std::iter;
use std::time::Duration;

use super::{Config, Server, eventually, fields, sweep_at_exit};

/// Default silence after which sentinels consider a master down: see [`Sentinels::down_after`].
const DOWN_AFTER: Duration = Duration::from_millis(1_500);
/// Longer than a busy machine keeps any process from running.
const CALM: Duration = Duration::from_secs(60);
/// Timeout for servers to find each other.
const READY: Duration = Duration::from_secs(20);
/// Timeout of a failover: election, promotion and reconfiguration take two or three seconds.
const FAILOVER: Duration = Duration::from_secs(20);

/// One master, two replicas and three sentinels.
#[derive(Debug)]
pub struct Sentinels {
    /// The first is the initial master.
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Sentinels {
    /// The service name under which the sentinels monitor the master.
    pub const SERVICE: &'static str = "locks";

    /// Starts with the defaults.
    ///
    /// # Panics
    /// Like each function here: if the servers cannot be started, or do not reach the requested state in
    /// time.
    pub fn start() -> Self {
        Self::start_with(&Config::new(), &Config::new(), "")
    }

    /// Starts servers and sentinels with these settings. Unless it is empty, the sentinels log in to the
    /// servers with `password`.
    pub fn start_with(servers: &Config, sentinels: &Config, password: &str) -> Self {
        let servers = servers.clone().set("repl-diskless-sync-delay", "0").set("repl-timeout", "5");
        let servers = match password {
            "" => servers,
            password => servers.set("masterauth", password),
        };
        let master = Server::start_with(servers.clone());
        let of = |server: &Server| format!("127.0.0.1 {}", server.address().port());
        let replicas = Server::together(2, &servers.set("replicaof", &of(&master)));
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
        let sentinels = Server::together(3, &config);
        for sentinel in &sentinels {
            // Shorter intervals than the defaults; servers before 7.0 do not support them and take longer. A
            // raised tilt trigger, because a sentinel that was stopped should not be inactive for half a
            // minute.
            let periods = ["INFO-PERIOD", "500", "PUBLISH-PERIOD", "200", "ASK-PERIOD", "200"];
            let periods = [&periods[..], &["TILT-TRIGGER", "60000"]].concat();
            sentinel.command(&[&["SENTINEL", "DEBUG"], &periods[..]].concat());
        }
        let whole = Self { servers: iter::once(master).chain(replicas).collect(), sentinels };
        whole.settles();
        whole
    }

    /// Raises the timeout, so that no master is considered down, however busy the machine is.
    #[must_use]
    pub fn calm(self) -> Self {
        self.down_after(CALM);
        self
    }

    /// Sets the silence after which a master is considered down.
    pub fn down_after(&self, time: Duration) {
        for sentinel in &self.sentinels {
            let time = time.as_millis().to_string();
            sentinel.command(&["SENTINEL", "SET", Self::SERVICE, "down-after-milliseconds", &time]);
        }
    }

    /// The `redis-sentinel://` URL with all sentinels and the service, without a user.
    pub fn url(&self) -> String {
        let addresses: Vec<_> =
            self.sentinels.iter().map(|sentinel| sentinel.address().to_string()).collect();
        let scheme = self.sentinels[0].scheme();
        format!("{scheme}-sentinel://{}/{}", addresses.join(","), Self::SERVICE)
    }

    /// For sentinels in a `static`, which are never dropped: removes their directories when this process
    /// ends.
    #[must_use]
    pub fn until_exit(self) -> Self {
        sweep_at_exit(self.servers.iter().chain(&self.sentinels));
        self
    }

    /// The servers, initial master first.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The master according to the first running sentinel.
    pub fn master(&self) -> &Server {
        let sentinel = self.sentinels.iter().find(|sentinel| sentinel.is_running()).expect("a sentinel runs");
        let named = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::SERVICE]);
        let port = named.items()[1].int();
        let is_named = |server: &&Server| i64::from(server.address().port()) == port;
        self.servers.iter().find(is_named).expect("one of the servers")
    }

    /// Waits until the sentinels name another master that reports this role, and returns it.
    pub fn fails_over_from(&self, old: &Server) -> &Server {
        eventually("a failover", FAILOVER, || {
            let master = self.master();
            master.address() != old.address() && says(master, "role", "master")
        });
        self.master()
    }

    /// Fails over from a running master. Returns the new master.
    pub fn fail_over(&self) -> &Server {
        let old = self.master();
        let sentinel = &self.sentinels[0];
        eventually("a failover begins", FAILOVER, || {
            sentinel.command(&["SENTINEL", "FAILOVER", Self::SERVICE]) == "OK"
        });
        self.fails_over_from(old)
    }

    /// Waits until all running sentinels agree on the master, its replicas and each other, and the running
    /// replicas have caught up.
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

/// Whether INFO reports this value. A role change closes all connections to a server, including this one.
fn says(server: &Server, field: &str, value: &str) -> bool {
    let info = server.try_command(&["INFO", "replication"]);
    info.is_ok_and(|info| fields(&info).get(field).is_some_and(|said| said == value))
}
