//! etcd for one test: one or several members on loopback ports, in a temporary directory.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use super::authority::Certificate;
use super::between::Between;
use super::members::{Ensemble, Members};
use super::port::Port;
use super::process::program;

/// An etcd of one or several members. Dropping it kills them and removes their directories.
#[derive(Debug)]
pub struct Etcd {
    members: Members,
    /// The port of each member for its peers, and the address at which they reach it.
    peers: Vec<(Port, SocketAddr)>,
    /// Additional arguments of each member's command line.
    words: Vec<String>,
}

impl Etcd {
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

    /// One member that takes so many operations in a transaction.
    pub fn with_operations(most: usize) -> Self {
        Self::of(1, vec!["--max-txn-ops".into(), most.to_string()], None, None)
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

    /// One member whose tokens of a login are signed with this RSA key.
    pub fn with_signed_tokens(private: &Path, public: &Path) -> Self {
        let (private, public) = (private.display(), public.display());
        let keys = format!("jwt,sign-method=RS256,priv-key={private},pub-key={public}");
        Self::of(1, vec!["--auth-token".into(), keys], None, None)
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
        let peers = (0..count).map(|at| {
            let peer = Port::claim();
            let reached =
                between.as_mut().map_or(peer.address(), |between| between.relay(at, peer.address()));
            (peer, reached)
        });
        let peers = peers.collect();
        let etcd = Self { members: Members::new(count, encrypts, between), peers, words };
        (0..count).for_each(|at| etcd.launch(at));
        etcd.ready();
        etcd
    }

    /// Sends a GET request to a member.
    pub fn get(&self, at: usize, path: &str) -> Option<String> {
        self.http(at, &format!("GET /{path} HTTP/1.0\r\n\r\n"))
    }

    /// Sends a JSON request to a member: `path` is relative to `/v3/`.
    pub fn post(&self, at: usize, path: &str, body: &str) -> Option<String> {
        self.post_as(at, "", path, body)
    }

    /// The same with the token of a login.
    pub fn post_as(&self, at: usize, token: &str, path: &str, body: &str) -> Option<String> {
        let head = if token.is_empty() { String::new() } else { format!("Authorization: {token}\r\n") };
        let length = body.len();
        self.http(at, &format!("POST /v3/{path} HTTP/1.0\r\n{head}Content-Length: {length}\r\n\r\n{body}"))
    }

    fn http(&self, at: usize, request: &str) -> Option<String> {
        let limit = Some(Duration::from_secs(2));
        let mut stream = TcpStream::connect(self.members.clients[at].address()).ok()?;
        stream.set_read_timeout(limit).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        let mut said = String::new();
        stream.read_to_string(&mut said).ok()?;
        Some(said.split_once("\r\n\r\n")?.1.to_owned())
    }
}

impl Ensemble for Etcd {
    fn members(&self) -> &Members {
        &self.members
    }

    fn scheme(&self) -> &'static str {
        "etcd"
    }

    fn leads(&self, at: usize) -> Option<bool> {
        let said = self.post(at, "maintenance/status", "{}")?;
        let field = |name: &str| {
            let (_, rest) = said.split_once(&format!("\"{name}\":\""))?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        let (leader, member) = (field("leader")?, field("member_id")?);
        (leader != "0").then_some(leader == member)
    }

    fn launch(&self, at: usize) {
        let (peer, reached) = &self.peers[at];
        let url = |port: &Port| format!("http://{}", port.address());
        let all = self.peers.iter().enumerate();
        let all: Vec<String> = all.map(|(at, (_, reached))| format!("m{at}=http://{reached}")).collect();
        let (name, all) = (format!("m{at}"), all.join(","));
        let data = self.members.dir().join(&name);
        let data = data.to_str().expect("a temporary directory in UTF-8");
        let (client, peer, reached) =
            (url(&self.members.clients[at]), url(peer), format!("http://{reached}"));
        let encrypts = self.members.encrypts.as_ref().map(|port| format!("https://{}", port.address()));
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
        self.members.run(at, &program("etcd", "etcd-server"), &arguments);
    }
}
