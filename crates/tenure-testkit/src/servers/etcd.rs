//! etcd for one test: one or several members on loopback ports, in a temporary directory.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::authority::Certificate;
use super::between::Between;
use super::eventually;
use super::members::Members;
use super::port::Port;
use super::process::Process;

/// An etcd of one or several members. Dropping it kills them and removes their directories.
#[derive(Debug)]
pub struct Etcd {
    members: Members,
    places: Vec<Place>,
    /// Additional arguments of each member's command line.
    words: Vec<String>,
    /// The TLS port of a single member.
    encrypts: Option<Port>,
    between: Option<Between>,
}

/// A member's ports, and the address at which its peers reach it.
#[derive(Debug)]
struct Place {
    client: Port,
    peer: Port,
    reached: SocketAddr,
}

impl Etcd {
    /// For an etcd in a `static`, which is never dropped: removes its directory when this process ends.
    #[must_use]
    pub fn until_exit(self) -> Self {
        self.members.until_exit();
        self
    }

    /// One member.
    ///
    /// # Panics
    /// Like each function here: if the server cannot be started, with its log in the message.
    pub fn start() -> Self {
        Self::of(1, Vec::new(), None, None)
    }

    /// One member with a storage quota in bytes.
    pub fn with_quota(bytes: u64) -> Self {
        Self::of(1, vec!["--quota-backend-bytes".into(), bytes.to_string()], None, None)
    }

    /// One member with an additional TLS port and this certificate. If `ca` is given, clients on that port
    /// need a certificate of this authority.
    pub fn with_tls(certificate: &Certificate, ca: Option<&Path>) -> Self {
        let word = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
        let mut words = vec!["--cert-file".into(), word(&certificate.cert)];
        words.extend(["--key-file".into(), word(&certificate.key)]);
        if let Some(ca) = ca {
            words.extend(["--client-cert-auth".into(), "--trusted-ca-file".into(), word(ca)]);
        }
        Self::of(1, words, Some(Port::claim()), None)
    }

    /// The TLS port: `HOST:PORT`.
    ///
    /// # Panics
    /// If it was started without one.
    pub fn encrypted(&self) -> String {
        self.encrypts.as_ref().expect("a member that encrypts").address().to_string()
    }

    /// Three members, of which one may fail.
    pub fn cluster() -> Self {
        Self::of(3, Vec::new(), None, None)
    }

    /// Three members whose network can be [cut](Self::isolate).
    pub fn partitioned() -> Self {
        Self::of(3, Vec::new(), None, Some(Between::default()))
    }

    fn of(count: usize, words: Vec<String>, encrypts: Option<Port>, mut between: Option<Between>) -> Self {
        let places = (0..count).map(|at| {
            let (client, peer) = (Port::claim(), Port::claim());
            let reached =
                between.as_mut().map_or(peer.address(), |between| between.relay(at, peer.address()));
            Place { client, peer, reached }
        });
        let places = places.collect();
        let etcd = Self { members: Members::new(count), places, words, encrypts, between };
        for at in 0..count {
            etcd.launch(at);
        }
        etcd.ready();
        etcd
    }

    /// Cuts a member from the others in both directions while all keep running and serving clients.
    ///
    /// # Panics
    /// If it was not started by `partitioned`.
    pub fn isolate(&self, at: usize) {
        let between = self.between.as_ref().expect("members whose network can be cut");
        (0..self.places.len()).filter(|other| *other != at).for_each(|other| between.cut(at, other));
    }

    /// Ends all cuts.
    pub fn heal(&self) {
        self.between.as_ref().expect("members whose network can be cut").heal();
    }

    /// The members' memory, in bytes.
    pub fn memory(&self) -> u64 {
        self.members.memory()
    }

    /// The URL with all members.
    pub fn url(&self) -> String {
        let places: Vec<String> =
            self.places.iter().map(|member| member.client.address().to_string()).collect();
        format!("etcd://{}", places.join(","))
    }

    /// The URL of one member.
    pub fn url_of(&self, at: usize) -> String {
        format!("etcd://{}", self.places[at].client.address())
    }

    /// The client address of the first member.
    pub fn address(&self) -> SocketAddr {
        self.places[0].client.address()
    }

    /// Sends a GET request to a member.
    pub fn get(&self, at: usize, path: &str) -> Option<String> {
        self.http(at, &format!("GET /{path} HTTP/1.0\r\n\r\n"))
    }

    /// Waits until every running member knows a leader.
    pub fn ready(&self) {
        let limit = Duration::from_secs(60);
        eventually("etcd has a leader", limit, || (0..self.places.len()).all(|at| self.knows_leader(at)));
    }

    fn knows_leader(&self, at: usize) -> bool {
        !self.members.is_running(at) || self.leader_of(at).is_some()
    }

    /// The index of the leader; waits until there is one.
    pub fn leader(&self) -> usize {
        let mut leader = None;
        eventually("etcd has a leader", Duration::from_secs(30), || {
            let running = (0..self.places.len()).filter(|at| self.members.is_running(*at));
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

    /// Sends a JSON request to a member: `path` is relative to `/v3/`.
    pub fn post(&self, at: usize, path: &str, body: &str) -> Option<String> {
        let length = body.len();
        self.http(at, &format!("POST /v3/{path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}"))
    }

    fn http(&self, at: usize, request: &str) -> Option<String> {
        let limit = Some(Duration::from_secs(2));
        let mut stream = TcpStream::connect(self.places[at].client.address()).ok()?;
        stream.set_read_timeout(limit).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        let mut said = String::new();
        stream.read_to_string(&mut said).ok()?;
        Some(said.split_once("\r\n\r\n")?.1.to_owned())
    }

    /// Stops a member (SIGSTOP).
    pub fn stop(&self, at: usize) {
        self.members.stop(at);
    }

    /// Resumes a member (SIGCONT).
    pub fn cont(&self, at: usize) {
        self.members.cont(at);
    }

    /// Kills a member; its data stays.
    pub fn kill(&self, at: usize) {
        self.members.kill(at);
    }

    /// Restarts a killed member with its data.
    pub fn restart(&self, at: usize) {
        assert!(!self.members.is_running(at), "it runs already");
        self.launch(at);
        self.ready();
    }

    fn launch(&self, at: usize) {
        let Place { client, peer, reached } = &self.places[at];
        let url = |port: &Port| format!("http://{}", port.address());
        let all = self.places.iter().enumerate();
        let all: Vec<String> = all.map(|(at, member)| format!("m{at}=http://{}", member.reached)).collect();
        let (name, all) = (format!("m{at}"), all.join(","));
        let data = self.members.dir().join(&name);
        let data = data.to_str().expect("a temporary directory in UTF-8");
        let (client, peer, reached) = (url(client), url(peer), format!("http://{reached}"));
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
            &reached,
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
        let process = Process::start(&program(), &arguments, &[], &self.members.log(at)).expect("setpriv");
        self.members.runs(at, process);
        if let Some(between) = &self.between {
            between.know(self.members.pids());
        }
    }
}

fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain([PathBuf::from("/usr/bin")]);
    let found = places.find_map(|dir| Some(dir.join("etcd")).filter(|program| program.exists()));
    found.expect("no etcd; the tests need one: apt-get install etcd-server")
}
