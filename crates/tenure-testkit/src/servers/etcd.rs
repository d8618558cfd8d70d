//! etcd for one test: one member or several, on loopback ports, in a temporary directory.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use super::authority::Certificate;
use super::port::Port;
use super::process::Process;
use super::{eventually, sweep_dirs_at_exit};

/// Members of one etcd. Dropping it kills them and removes their directories.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    dir: TempDir,
    /// Further words of the command line of each.
    words: Vec<String>,
    /// Where the only member encrypts.
    encrypts: Option<Port>,
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
        Self::of(1, Vec::new(), None)
    }

    /// One member that keeps no more than so many bytes.
    pub fn with_quota(bytes: u64) -> Self {
        Self::of(1, vec!["--quota-backend-bytes".into(), bytes.to_string()], None)
    }

    /// One member that also listens where it encrypts, and shows this certificate. Clients there
    /// show one of the authority in `ca`, if that is given.
    pub fn with_tls(certificate: &Certificate, ca: Option<&Path>) -> Self {
        let word = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
        let mut words = vec!["--cert-file".into(), word(&certificate.cert)];
        words.extend(["--key-file".into(), word(&certificate.key)]);
        if let Some(ca) = ca {
            words.extend(["--client-cert-auth".into(), "--trusted-ca-file".into(), word(ca)]);
        }
        Self::of(1, words, Some(Port::claim()))
    }

    /// Where it encrypts: `HOST:PORT`.
    ///
    /// # Panics
    /// If it was not started so.
    pub fn encrypted(&self) -> String {
        self.encrypts.as_ref().expect("a member that encrypts").address().to_string()
    }

    /// Three members, of which one may fail.
    pub fn cluster() -> Self {
        Self::of(3, Vec::new(), None)
    }

    fn of(count: usize, words: Vec<String>, encrypts: Option<Port>) -> Self {
        let shm = Path::new("/dev/shm"); // each write is synced
        let mut dir = tempfile::Builder::new();
        dir.prefix("tenure-");
        let dir = if shm.is_dir() { dir.tempdir_in(shm) } else { dir.tempdir() };
        let dir = dir.expect("a temporary directory");
        let member = |_| Member { process: Mutex::default(), client: Port::claim(), peer: Port::claim() };
        let etcd = Self { members: (0..count).map(member).collect(), dir, words, encrypts };
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
        let encrypts = self.encrypts.as_ref().map(|port| format!("https://{}", port.address()));
        let client = [client].into_iter().chain(encrypts).collect::<Vec<_>>().join(",");
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
        let arguments: Vec<&str> =
            arguments.into_iter().chain(self.words.iter().map(String::as_str)).collect();
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
