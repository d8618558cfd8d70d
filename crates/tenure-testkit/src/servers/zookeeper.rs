//! ZooKeeper for one test: one server or an ensemble on loopback ports, in a temporary directory.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::authority::Certificate;
use super::between::Between;
use super::eventually;
use super::members::Members;
use super::port::Port;
use super::process::Process;

/// A ZooKeeper of one or several servers. Dropping it kills them and removes their directories.
#[derive(Debug)]
pub struct ZooKeeper {
    members: Members,
    places: Vec<Place>,
    settings: String,
    /// The TLS port of a single server.
    encrypts: Option<Port>,
    between: Option<Between>,
}

/// A server's ports, and the addresses at which its peers reach it.
#[derive(Debug)]
struct Place {
    client: Port,
    peer: Port,
    election: Port,
    reached: [SocketAddr; 2],
}

/// Default limits of session timeouts, in ms.
const SESSIONS: &str = "minSessionTimeout=500\nmaxSessionTimeout=86400000\n";

impl ZooKeeper {
    /// For a ZooKeeper in a `static`, which is never dropped: removes its directory when this process ends.
    #[must_use]
    pub fn until_exit(self) -> Self {
        self.members.until_exit();
        self
    }

    /// One server, with session timeouts from half a second to a day.
    ///
    /// # Panics
    /// Like each function here: if the server cannot be started, with its log in the message.
    pub fn start() -> Self {
        Self::of(1, SESSIONS, None, None)
    }

    /// One server with additional lines in its `zoo.cfg`.
    pub fn start_with(settings: &str) -> Self {
        Self::of(1, settings, None, None)
    }

    /// One server that takes so many connections, and tells its limit.
    pub fn with_clients(most: u32) -> Self {
        let limit = format!("{SESSIONS}maxClientCnxns={most}\n4lw.commands.whitelist=srvr,conf\n");
        Self::of(1, &limit, None, None)
    }

    /// A client that only takes a connection.
    ///
    /// # Panics
    /// If the server has no room for it within a minute.
    pub fn client(&self) -> TcpStream {
        for _ in 0..600 {
            let mut client = TcpStream::connect(self.address()).expect("it listens");
            client.set_read_timeout(Some(Duration::from_millis(100))).expect("a limit");
            // A full server hangs up.
            if client.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                return client;
            }
        }
        panic!("it is full");
    }

    /// Three servers, of which one may fail.
    pub fn ensemble() -> Self {
        Self::of(3, SESSIONS, None, None)
    }

    /// Three servers whose network can be [cut](Self::isolate).
    pub fn partitioned() -> Self {
        Self::of(3, SESSIONS, None, Some(Between::default()))
    }

    /// One server with an additional TLS port and this certificate. Clients on that port need a certificate
    /// of the authority in `ca`.
    ///
    /// # Panics
    /// As [`ZooKeeper::start`].
    pub fn with_tls(certificate: &Certificate, ca: &Path) -> Self {
        let port = Port::claim();
        let shown = certificate.cert.with_extension("both.pem");
        let read = |file: &Path| fs::read_to_string(file).expect("a file");
        fs::write(&shown, read(&certificate.key) + &read(&certificate.cert)).expect("a file");
        let settings = format!(
            "{SESSIONS}secureClientPort={}\nsecureClientPortAddress=127.0.0.1\n\
             serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
             ssl.keyStore.type=PEM\nssl.keyStore.location={}\n\
             ssl.trustStore.type=PEM\nssl.trustStore.location={}\n",
            port.number(),
            shown.display(),
            ca.display(),
        );
        Self::of(1, &settings, Some(port), None)
    }

    /// The TLS port: `HOST:PORT`.
    ///
    /// # Panics
    /// If it was started without one.
    pub fn encrypted(&self) -> String {
        self.encrypts.as_ref().expect("a server that encrypts").address().to_string()
    }

    fn of(count: usize, settings: &str, encrypts: Option<Port>, mut between: Option<Between>) -> Self {
        let places = (0..count).map(|at| {
            let (client, peer, election) = (Port::claim(), Port::claim(), Port::claim());
            let reached = [peer.address(), election.address()];
            let reached = match &mut between {
                Some(between) => reached.map(|address| between.relay(at, address)),
                None => reached,
            };
            Place { client, peer, election, reached }
        });
        let (places, settings) = (places.collect(), settings.to_owned());
        let zookeeper = Self { members: Members::new(count), places, settings, encrypts, between };
        fs::write(zookeeper.logging(), LOGGING).expect("a file");
        (0..count).for_each(|at| zookeeper.launch(at));
        zookeeper.ready();
        zookeeper
    }

    /// Cuts a server from the others in both directions while all keep running and serving clients.
    ///
    /// # Panics
    /// If it was not started by `partitioned`.
    pub fn isolate(&self, at: usize) {
        let between = self.between.as_ref().expect("servers whose network can be cut");
        (0..self.places.len()).filter(|other| *other != at).for_each(|other| between.cut(at, other));
    }

    /// Ends all cuts.
    pub fn heal(&self) {
        self.between.as_ref().expect("servers whose network can be cut").heal();
    }

    /// The servers' memory, in bytes.
    pub fn memory(&self) -> u64 {
        self.members.memory()
    }

    /// The URL with all servers.
    pub fn url(&self) -> String {
        let places = self.places.iter().map(|member| member.client.address().to_string());
        format!("zookeeper://{}", places.collect::<Vec<_>>().join(","))
    }

    /// The URL of one server.
    pub fn url_of(&self, at: usize) -> String {
        format!("zookeeper://{}", self.places[at].client.address())
    }

    /// The client address of the first server.
    pub fn address(&self) -> SocketAddr {
        self.places[0].client.address()
    }

    /// Waits until every running server serves requests.
    pub fn ready(&self) {
        let limit = Duration::from_secs(90);
        eventually("ZooKeeper serves", limit, || (0..self.places.len()).all(|at| self.serves(at)));
    }

    fn serves(&self, at: usize) -> bool {
        !self.members.is_running(at) || self.mode(at).is_some()
    }

    /// The index of the leader; waits until there is one.
    pub fn leader(&self) -> usize {
        let mut leader = None;
        eventually("ZooKeeper has a leader", Duration::from_secs(60), || {
            let running = (0..self.places.len()).filter(|at| self.members.is_running(*at));
            leader = running.into_iter().find(|at| self.mode(*at).as_deref() == Some("leader"));
            leader.is_some()
        });
        leader.expect("there is one")
    }

    /// A server's role in the ensemble; `None` if it does not serve requests.
    fn mode(&self, at: usize) -> Option<String> {
        let said = self.command(at, "srvr")?;
        let (_, mode) = said.split_once("Mode: ")?;
        Some(mode.lines().next()?.to_owned())
    }

    /// The reply to a four-letter command.
    pub fn command(&self, at: usize, word: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.places[at].client.address()).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        stream.write_all(word.as_bytes()).ok()?;
        let mut said = String::new();
        stream.read_to_string(&mut said).ok()?;
        Some(said)
    }

    /// Stops a server (SIGSTOP).
    pub fn stop(&self, at: usize) {
        self.members.stop(at);
    }

    /// Resumes a server (SIGCONT).
    pub fn cont(&self, at: usize) {
        self.members.cont(at);
    }

    /// Kills a server; its data stays.
    pub fn kill(&self, at: usize) {
        self.members.kill(at);
    }

    /// Restarts a killed server with its data.
    pub fn restart(&self, at: usize) {
        assert!(!self.members.is_running(at), "it runs already");
        self.launch(at);
        self.ready();
    }

    /// Replaces a killed server by a new one without data.
    pub fn replace(&self, at: usize) {
        fs::remove_dir_all(self.data(at)).expect("a directory");
        self.restart(at);
    }

    fn launch(&self, at: usize) {
        let data = self.data(at);
        fs::create_dir_all(&data).expect("a directory");
        fs::write(data.join("myid"), (at + 1).to_string()).expect("a file");
        let port = self.places[at].client.number();
        let mut config = format!("dataDir={}\nclientPort={port}\n", data.display());
        config += "clientPortAddress=127.0.0.1\ntickTime=200\ninitLimit=50\nsyncLimit=10\nmaxClientCnxns=0\n";
        config += "admin.enableServer=false\n4lw.commands.whitelist=srvr,mntr\npreAllocSize=1024\n";
        config += &self.settings;
        if self.places.len() > 1 {
            for (other, place) in self.places.iter().enumerate() {
                let own = [place.peer.number(), place.election.number()];
                let [peer, election] = if other == at { own } else { place.reached.map(|to| to.port()) };
                config += &format!("server.{}=127.0.0.1:{peer}:{election}\n", other + 1);
            }
        }
        let file = self.members.dir().join(format!("zoo{at}.cfg"));
        fs::write(&file, config).expect("a file");
        let logging = format!("-Dlog4j.configuration=file:{}", self.logging().display());
        let file = file.to_str().expect("a temporary directory in UTF-8");
        let classes = classes();
        let arguments = [
            // For a small heap and a fast start.
            "-Xmx256m",
            "-Xss512k",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xshare:auto",
            "-Dzookeeper.skipACL=no",
            "-Dzookeeper.jmx.log4j.disable=true",
            &logging,
            "-cp",
            &classes,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            file,
        ];
        let process = Process::start(&java(), &arguments, &[], &self.members.log(at)).expect("setpriv");
        self.members.runs(at, process);
        if let Some(between) = &self.between {
            between.know(self.members.pids());
        }
    }

    fn data(&self, at: usize) -> PathBuf {
        self.members.dir().join(format!("m{at}"))
    }

    fn logging(&self) -> PathBuf {
        self.members.dir().join("log4j.properties")
    }
}

const LOGGING: &str = "log4j.rootLogger=WARN, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d %p %c{1}: %m%n
";

/// The class path of Debian's package.
fn classes() -> String {
    let classes = PathBuf::from("/usr/share/java/zookeeper.jar");
    assert!(classes.exists(), "no ZooKeeper; the tests need one: apt-get install zookeeper");
    let classes = classes.to_str().expect("a path in UTF-8");
    // The classes for TLS are missing from the package's own class path.
    format!("{classes}:/usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar")
}

fn java() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain([PathBuf::from("/usr/bin")]);
    let found = places.find_map(|dir| Some(dir.join("java")).filter(|program| program.exists()));
    found.expect("no java; the tests need one for ZooKeeper: apt-get install default-jre-headless")
}
