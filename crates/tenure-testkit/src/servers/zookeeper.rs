//! ZooKeeper for one test: one server or an ensemble, on loopback ports, in a temporary directory.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use super::port::Port;
use super::process::Process;
use super::{eventually, sweep_dirs_at_exit};

/// Servers of one ZooKeeper. Dropping it kills them and removes their directories.
#[derive(Debug)]
pub struct ZooKeeper {
    members: Vec<Member>,
    settings: String,
    dir: TempDir,
}

#[derive(Debug)]
struct Member {
    process: Mutex<Option<Process>>,
    client: Port,
    peer: Port,
    election: Port,
}

impl ZooKeeper {
    /// The same for as long as this program runs, for a `static`: its directory is removed then.
    #[must_use]
    pub fn until_exit(self) -> Self {
        sweep_dirs_at_exit([self.dir.path()]);
        self
    }

    /// One server, whose sessions may last from half a second to a day.
    ///
    /// # Panics
    /// Like each function here: if the server cannot be had, with its log in the message.
    pub fn start() -> Self {
        Self::of(1, "minSessionTimeout=500\nmaxSessionTimeout=86400000\n")
    }

    /// One server with further lines in its `zoo.cfg`.
    pub fn start_with(settings: &str) -> Self {
        Self::of(1, settings)
    }

    /// Three servers, of which one may fail.
    pub fn ensemble() -> Self {
        Self::of(3, "minSessionTimeout=500\nmaxSessionTimeout=86400000\n")
    }

    fn of(count: usize, settings: &str) -> Self {
        let shm = Path::new("/dev/shm"); // each write is synced
        let mut dir = tempfile::Builder::new();
        dir.prefix("tenure-");
        let dir = if shm.is_dir() { dir.tempdir_in(shm) } else { dir.tempdir() };
        let dir = dir.expect("a temporary directory");
        let member = |_| {
            let (client, peer, election) = (Port::claim(), Port::claim(), Port::claim());
            Member { process: Mutex::default(), client, peer, election }
        };
        let settings = settings.to_owned();
        let zookeeper = Self { members: (0..count).map(member).collect(), settings, dir };
        fs::write(zookeeper.logging(), LOGGING).expect("a file");
        (0..count).for_each(|at| zookeeper.launch(at));
        zookeeper.ready();
        zookeeper
    }

    /// Its URL: that of all servers.
    pub fn url(&self) -> String {
        let places = self.members.iter().map(|member| member.client.address().to_string());
        format!("zookeeper://{}", places.collect::<Vec<_>>().join(","))
    }

    /// The URL of one server.
    pub fn url_of(&self, at: usize) -> String {
        format!("zookeeper://{}", self.members[at].client.address())
    }

    /// Where the first server takes clients.
    pub fn address(&self) -> SocketAddr {
        self.members[0].client.address()
    }

    /// Waits until every server that runs serves.
    pub fn ready(&self) {
        let limit = Duration::from_secs(90);
        eventually("ZooKeeper serves", limit, || (0..self.members.len()).all(|at| self.serves(at)));
    }

    fn serves(&self, at: usize) -> bool {
        let mut process = self.process(at);
        let Some(running) = process.as_mut() else { return true };
        let log = || fs::read_to_string(self.log(at)).unwrap_or_default();
        assert!(!running.has_ended(), "ZooKeeper ended: {}", log());
        drop(process);
        self.mode(at).is_some()
    }

    /// Which server leads.
    pub fn leader(&self) -> usize {
        let mut leader = None;
        eventually("ZooKeeper has a leader", Duration::from_secs(60), || {
            let running = (0..self.members.len()).filter(|at| self.process(*at).is_some());
            leader = running.into_iter().find(|at| self.mode(*at).as_deref() == Some("leader"));
            leader.is_some()
        });
        leader.expect("there is one")
    }

    /// What a server is of the others; `None` if it does not serve.
    fn mode(&self, at: usize) -> Option<String> {
        let said = self.command(at, "srvr")?;
        let (_, mode) = said.split_once("Mode: ")?;
        Some(mode.lines().next()?.to_owned())
    }

    /// What a server says to a command of four letters.
    pub fn command(&self, at: usize, word: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.members[at].client.address()).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        stream.write_all(word.as_bytes()).ok()?;
        let mut said = String::new();
        stream.read_to_string(&mut said).ok()?;
        Some(said)
    }

    /// Lets a server stand still (SIGSTOP).
    pub fn stop(&self, at: usize) {
        self.process(at).as_ref().expect("it runs").stop();
    }

    /// Lets it go on.
    pub fn cont(&self, at: usize) {
        self.process(at).as_ref().expect("it runs").cont();
    }

    /// Kills a server; its data stays.
    pub fn kill(&self, at: usize) {
        drop(self.process(at).take().expect("it runs"));
    }

    /// Starts a server that was killed, with its data.
    pub fn restart(&self, at: usize) {
        assert!(self.process(at).is_none(), "it runs already");
        self.launch(at);
        self.ready();
    }

    /// Starts a server that was killed as a new one, which has nothing.
    pub fn replace(&self, at: usize) {
        fs::remove_dir_all(self.data(at)).expect("a directory");
        self.restart(at);
    }

    fn launch(&self, at: usize) {
        let data = self.data(at);
        fs::create_dir_all(&data).expect("a directory");
        fs::write(data.join("myid"), (at + 1).to_string()).expect("a file");
        let port = self.members[at].client.number();
        let mut config = format!("dataDir={}\nclientPort={port}\n", data.display());
        config += "clientPortAddress=127.0.0.1\ntickTime=200\ninitLimit=50\nsyncLimit=10\nmaxClientCnxns=0\n";
        config += "admin.enableServer=false\n4lw.commands.whitelist=srvr,mntr\npreAllocSize=1024\n";
        config += &self.settings;
        if self.members.len() > 1 {
            for (at, member) in self.members.iter().enumerate() {
                let (id, peer, election) = (at + 1, member.peer.number(), member.election.number());
                config += &format!("server.{id}=127.0.0.1:{peer}:{election}\n");
            }
        }
        let file = self.dir.path().join(format!("zoo{at}.cfg"));
        fs::write(&file, config).expect("a file");
        let logging = format!("-Dlog4j.configuration=file:{}", self.logging().display());
        let file = file.to_str().expect("a temporary directory in UTF-8");
        let classes = classes();
        let arguments = [
            // Small, and soon there.
            "-Xmx96m",
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
        let process = Process::start(&java(), &arguments, &[], &self.log(at)).expect("setpriv");
        *self.process(at) = Some(process);
    }

    fn data(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("m{at}"))
    }

    fn log(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("log{at}"))
    }

    fn logging(&self) -> PathBuf {
        self.dir.path().join("log4j.properties")
    }

    fn process(&self, at: usize) -> MutexGuard<'_, Option<Process>> {
        self.members[at].process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const LOGGING: &str = "log4j.rootLogger=WARN, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d %p %c{1}: %m%n
";

/// The classes of Debian's package.
fn classes() -> String {
    let classes = PathBuf::from("/usr/share/java/zookeeper.jar");
    assert!(classes.exists(), "no ZooKeeper; the tests need one: apt-get install zookeeper");
    classes.to_str().expect("a path in UTF-8").to_owned()
}

fn java() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain([PathBuf::from("/usr/bin")]);
    let found = places.find_map(|dir| Some(dir.join("java")).filter(|program| program.exists()));
    found.expect("no java; the tests need one for ZooKeeper: apt-get install default-jre-headless")
}
