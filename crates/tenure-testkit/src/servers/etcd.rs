//! etcd for one test: one member or several, on loopback ports, in a temporary directory.

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

/// Members of one etcd. Dropping it kills them and removes their directories.
#[derive(Debug)]
pub struct Etcd {
    members: Members,
    places: Vec<Place>,
    /// Further words of the command line of each.
    words: Vec<String>,
    /// Where the only member encrypts.
    encrypts: Option<Port>,
    between: Option<Between>,
}

/// Where a member listens, and where the others reach it.
#[derive(Debug)]
struct Place {
    client: Port,
    peer: Port,
    reached: SocketAddr,
}

impl Etcd {
    /// The same for as long as this program runs, for a `static`: its directory is removed then.
    #[must_use]
    pub fn until_exit(self) -> Self {
        self.members.until_exit();
        self
    }

    /// One member.
    ///
    /// # Panics
    /// Like each function here: if the server cannot be had, with its log in the message.
    pub fn start() -> Self {
        Self::of(1, Vec::new(), None, None)
    }

    /// One member that keeps no more than so many bytes.
    pub fn with_quota(bytes: u64) -> Self {
        Self::of(1, vec!["--quota-backend-bytes".into(), bytes.to_string()], None, None)
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
        Self::of(1, words, Some(Port::claim()), None)
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
        Self::of(3, Vec::new(), None, None)
    }

    /// The same, and their network can be [cut](Self::isolate).
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

    /// Cuts a member from the others, each way, while all of them run. Clients reach it.
    ///
    /// # Panics
    /// If they were not started so.
    pub fn isolate(&self, at: usize) {
        let between = self.between.as_ref().expect("members whose network can be cut");
        (0..self.places.len()).filter(|other| *other != at).for_each(|other| between.cut(at, other));
    }

    /// Ends all cuts.
    pub fn heal(&self) {
        self.between.as_ref().expect("members whose network can be cut").heal();
    }

    /// The memory of its members, in bytes.
    pub fn memory(&self) -> u64 {
        self.members.memory()
    }

    /// Its URL: that of all members.
    pub fn url(&self) -> String {
        let places: Vec<String> =
            self.places.iter().map(|member| member.client.address().to_string()).collect();
        format!("etcd://{}", places.join(","))
    }

    /// The URL of one member.
    pub fn url_of(&self, at: usize) -> String {
        format!("etcd://{}", self.places[at].client.address())
    }

    /// Where the first member takes clients.
    pub fn address(&self) -> SocketAddr {
        self.places[0].client.address()
    }

    /// What a member has at this path, by HTTP.
    pub fn get(&self, at: usize, path: &str) -> Option<String> {
        self.http(at, &format!("GET /{path} HTTP/1.0\r\n\r\n"))
    }

    /// Waits until every member that runs knows a leader.
    pub fn ready(&self) {
        let limit = Duration::from_secs(60);
        eventually("etcd has a leader", limit, || (0..self.places.len()).all(|at| self.knows_leader(at)));
    }

    fn knows_leader(&self, at: usize) -> bool {
        !self.members.is_running(at) || self.leader_of(at).is_some()
    }

    /// Which member leads.
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

    /// Asks a member by HTTP: `path` behind `/v3/`, a body in JSON.
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

    /// Lets a member stand still (SIGSTOP).
    pub fn stop(&self, at: usize) {
        self.members.stop(at);
    }

    /// Lets it go on.
    pub fn cont(&self, at: usize) {
        self.members.cont(at);
    }

    /// Kills a member; its data stays.
    pub fn kill(&self, at: usize) {
        self.members.kill(at);
    }

    /// Starts a member that was killed, with its data.
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
