//! etcd for one test: one member or several, on loopback ports, in a temporary directory.

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

/// Members of one etcd. Dropping it kills them and removes their directories.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    dir: TempDir,
}

#[derive(Debug)]
struct Member {
    process: Mutex<Option<Process>>,
    client: Port,
    peer: Port,
}

impl Etcd {
    /// The same for as long as this program runs, for a `static`: its directory is removed then.
    #[must_use]
    pub fn until_exit(self) -> Self {
        sweep_dirs_at_exit([self.dir.path()]);
        self
    }

    /// One member.
    ///
    /// # Panics
    /// Like each function here: if the server cannot be had, with its log in the message.
    pub fn start() -> Self {
        Self::of(1)
    }

    /// Three members, of which one may fail.
    pub fn cluster() -> Self {
        Self::of(3)
    }

    fn of(count: usize) -> Self {
        let shm = Path::new("/dev/shm"); // each write is synced
        let mut dir = tempfile::Builder::new();
        dir.prefix("tenure-");
        let dir = if shm.is_dir() { dir.tempdir_in(shm) } else { dir.tempdir() };
        let dir = dir.expect("a temporary directory");
        let member = |_| Member { process: Mutex::default(), client: Port::claim(), peer: Port::claim() };
        let etcd = Self { members: (0..count).map(member).collect(), dir };
        for at in 0..count {
            etcd.launch(at);
        }
        etcd.ready();
        etcd
    }

    /// Its URL: that of all members.
    pub fn url(&self) -> String {
        let places: Vec<String> =
            self.members.iter().map(|member| member.client.address().to_string()).collect();
        format!("etcd://{}", places.join(","))
    }

    /// The URL of one member.
    pub fn url_of(&self, at: usize) -> String {
        format!("etcd://{}", self.members[at].client.address())
    }

    /// Where the first member takes clients.
    pub fn address(&self) -> SocketAddr {
        self.members[0].client.address()
    }

    /// What a member has at this path, by HTTP.
    pub fn get(&self, at: usize, path: &str) -> Option<String> {
        self.http(at, &format!("GET /{path} HTTP/1.0\r\n\r\n"))
    }

    /// Waits until every member that runs knows a leader.
    pub fn ready(&self) {
        let limit = Duration::from_secs(60);
        eventually("etcd has a leader", limit, || (0..self.members.len()).all(|at| self.knows_leader(at)));
    }

    fn knows_leader(&self, at: usize) -> bool {
        let mut process = self.process(at);
        let Some(running) = process.as_mut() else { return true };
        assert!(!running.has_ended(), "etcd ended: {}", fs::read_to_string(self.log(at)).unwrap_or_default());
        drop(process);
        self.leader_of(at).is_some()
    }

    /// Which member leads.
    pub fn leader(&self) -> usize {
        let mut leader = None;
        eventually("etcd has a leader", Duration::from_secs(30), || {
            let running = (0..self.members.len()).filter(|at| self.process(*at).is_some());
            leader = running.into_iter().find(|at| self.leader_of(*at) == Some(true));
            leader.is_some()
        });
        leader.expect("there is one")
    }

    /// Whether this member leads; `None` if it knows no leader.
    fn leader_of(&self, at: usize) -> Option<bool> {
        let said = self.post(at, "maintenance/status", "{}")?;
        let field = |name: &str| {
            let (_, rest) = said.split_once(&format!("\"{name}\":\""))?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        let (leader, member) = (field("leader")?, field("member_id")?);
        (leader != "0").then_some(leader == member)
    }

    /// Asks a member by HTTP: `path` behind `/v3/`, a body in JSON.
    pub fn post(&self, at: usize, path: &str, body: &str) -> Option<String> {
        let length = body.len();
        self.http(at, &format!("POST /v3/{path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}"))
    }

    fn http(&self, at: usize, request: &str) -> Option<String> {
        let limit = Some(Duration::from_secs(2));
        let mut stream = TcpStream::connect(self.members[at].client.address()).ok()?;
        stream.set_read_timeout(limit).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        let mut said = String::new();
        stream.read_to_string(&mut said).ok()?;
        Some(said.split_once("\r\n\r\n")?.1.to_owned())
    }

    /// Lets a member stand still (SIGSTOP).
    pub fn stop(&self, at: usize) {
        self.process(at).as_ref().expect("it runs").stop();
    }

    /// Lets it go on.
    pub fn cont(&self, at: usize) {
        self.process(at).as_ref().expect("it runs").cont();
    }

    /// Kills a member; its data stays.
    pub fn kill(&self, at: usize) {
        drop(self.process(at).take().expect("it runs"));
    }

    /// Starts a member that was killed, with its data.
    pub fn restart(&self, at: usize) {
        assert!(self.process(at).is_none(), "it runs already");
        self.launch(at);
        self.ready();
    }

    fn launch(&self, at: usize) {
        let Member { client, peer, .. } = &self.members[at];
        let url = |port: &Port| format!("http://{}", port.address());
        let all = self.members.iter().enumerate();
        let all: Vec<String> = all.map(|(at, member)| format!("m{at}={}", url(&member.peer))).collect();
        let (name, all) = (format!("m{at}"), all.join(","));
        let data = self.dir.path().join(&name);
        let data = data.to_str().expect("a temporary directory in UTF-8");
        let (client, peer) = (url(client), url(peer));
        let arguments = [
            "--name",
            &name,
            "--data-dir",
            data,
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
            "--initial-cluster",
            &all,
            "--initial-cluster-state",
            "new",
            "--heartbeat-interval",
            "50",
            "--election-timeout",
            "500",
            "--snapshot-count",
            "100000",
        ];
        let process = Process::start(&program(), &arguments, &[], &self.log(at)).expect("setpriv");
        *self.process(at) = Some(process);
    }

    fn log(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("log{at}"))
    }

    fn process(&self, at: usize) -> MutexGuard<'_, Option<Process>> {
        self.members[at].process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain([PathBuf::from("/usr/bin")]);
    let found = places.find_map(|dir| Some(dir.join("etcd")).filter(|program| program.exists()));
    found.expect("no etcd; the tests need one: apt-get install etcd-server")
}
