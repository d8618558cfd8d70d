//! ZooKeeper for one test: one server or an ensemble on loopback ports, in a temporary directory.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::authority::Certificate;
use super::between::Between;
use super::disk::Disk;
use super::members::{Ensemble, Members};
use super::port::Port;
use super::process::program;

/// A ZooKeeper of one or several servers. Dropping it kills them and removes their directories.
#[derive(Debug)]
pub struct ZooKeeper {
    members: Members,
    /// The ports of each server for its peers and for elections, and the addresses at which its peers reach it.
    peers: Vec<([Port; 2], [SocketAddr; 2])>,
    settings: String,
    disk: Disk,
}

/// Default limits of session timeouts, in ms.
const SESSIONS: &str = "minSessionTimeout=500\nmaxSessionTimeout=86400000\n";

impl ZooKeeper {
    /// One server, with session timeouts from half a second to a day.
    ///
    /// # Panics
    /// Like each function here: if the server cannot be started, with its log in the message.
    pub fn start() -> Self {
        Self::of(1, SESSIONS, None, None)
    }

    /// Like `start`, with the speed of this disk. Each server waits for its disk.
    pub fn start_on(disk: Disk) -> Self {
        Self::on(disk, 1, SESSIONS, None, None)
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

    fn of(count: usize, settings: &str, encrypts: Option<Port>, between: Option<Between>) -> Self {
        Self::on(Disk::Synced, count, settings, encrypts, between)
    }

    fn on(
        disk: Disk,
        count: usize,
        settings: &str,
        encrypts: Option<Port>,
        mut between: Option<Between>,
    ) -> Self {
        let peers = (0..count).map(|at| {
            let ports = [Port::claim(), Port::claim()];
            let reached = [ports[0].address(), ports[1].address()];
            let reached = match &mut between {
                Some(between) => reached.map(|address| between.relay(at, address)),
                None => reached,
            };
            (ports, reached)
        });
        let (peers, settings) = (peers.collect(), settings.to_owned());
        let zookeeper = Self { members: Members::new(count, encrypts, between), peers, settings, disk };
        fs::write(zookeeper.logging(), LOGGING).expect("a file");
        (0..count).for_each(|at| zookeeper.launch(at));
        zookeeper.ready();
        zookeeper
    }

    /// The reply to a four-letter command.
    pub fn command(&self, at: usize, word: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.members.clients[at].address()).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        stream.write_all(word.as_bytes()).ok()?;
        let mut said = String::new();
        stream.read_to_string(&mut said).ok()?;
        Some(said)
    }

    /// Replaces a killed server by a new one without data.
    pub fn replace(&self, at: usize) {
        fs::remove_dir_all(self.data(at)).expect("a directory");
        self.restart(at);
    }

    fn data(&self, at: usize) -> PathBuf {
        self.members.dir().join(format!("m{at}"))
    }

    fn logging(&self) -> PathBuf {
        self.members.dir().join("log4j.properties")
    }
}

impl Ensemble for ZooKeeper {
    fn members(&self) -> &Members {
        &self.members
    }

    fn scheme(&self) -> &'static str {
        "zookeeper"
    }

    fn leads(&self, at: usize) -> Option<bool> {
        let said = self.command(at, "srvr")?;
        let (_, mode) = said.split_once("Mode: ")?;
        Some(mode.lines().next()? == "leader")
    }

    fn launch(&self, at: usize) {
        let data = self.data(at);
        fs::create_dir_all(&data).expect("a directory");
        fs::write(data.join("myid"), (at + 1).to_string()).expect("a file");
        let port = self.members.clients[at].number();
        let mut config = format!("dataDir={}\nclientPort={port}\n", data.display());
        config += "clientPortAddress=127.0.0.1\ntickTime=200\ninitLimit=50\nsyncLimit=10\nmaxClientCnxns=0\n";
        config += "admin.enableServer=false\n4lw.commands.whitelist=srvr,mntr\npreAllocSize=1024\n";
        config += &self.settings;
        if self.peers.len() > 1 {
            for (other, (ports, reached)) in self.peers.iter().enumerate() {
                let own = [ports[0].number(), ports[1].number()];
                let [peer, election] = if other == at { own } else { reached.map(|to| to.port()) };
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
        let java = program("java", "default-jre-headless");
        let command = self.disk.command(java.to_str().expect("a path in UTF-8"), self.members.dir());
        let words: Vec<&str> = command.iter().map(String::as_str).chain(arguments).collect();
        self.members.run(at, Path::new(words[0]), &words[1..]);
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
