//! The connection to an etcd cluster, the login, and the meaning of errors.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::Stream;
use http::uri::PathAndQuery;
use tokio::sync::Mutex;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::url::EtcdTarget;
use super::wire::{AuthenticateRequest, AuthenticateResponse};
use tenure_core::error::Error;
use tenure_core::name::Quoted;
use tenure_core::net::Tls;
use tenure_core::platform::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES};
use tenure_core::store::Failure;
use tenure_core::sync::Locked;

/// Interval of keep-alive pings while a request or a watch is open. By default, etcd closes a connection that
/// sends them more often than every 5 s, or without either (`too_many_pings`).
const PING: Duration = Duration::from_millis(5_200);
/// Timeout of a keep-alive ping, and of connecting.
const PONG: Duration = Duration::from_secs(2);
/// The end of a member's error while it knows no leader.
pub(super) const NO_LEADER: &str = "no leader";
/// Maximum size of a reply: it bounds what a faulty server makes the client allocate. The longest replies are
/// pages of a listing, which shrink to fit, and reads of `PARTS` parts of a queue, of up to 3.2 MB.
const REPLY_MAX: usize = 4 << 20;
/// Hints for URLs that no retry can connect with.
const TRUST: &str = ": ca=FILE in the URL names the authority that vouches for it, and its host is the one it is certified for";
const PLAIN: &str = ": it does not seem to use TLS; without TLS, use etcd://";

/// State shared by all clones.
pub(super) struct EtcdShared {
    pub(super) target: EtcdTarget,
    tls: Option<ClientTlsConfig>,
    /// Index of the server to dial first.
    first: AtomicUsize,
    pub(super) connection: Locked<Option<Arc<EtcdConnection>>>,
    /// Held by the request that dials, for all others.
    dials: Mutex<()>,
    token: Locked<Option<String>>,
    /// Whether the version of a server was found new enough.
    pub(super) is_new_enough: AtomicBool,
}

/// A connection to one of the servers.
pub(super) struct EtcdConnection {
    channel: Channel,
    /// Index of the server.
    at: usize,
}

/// An etcd cluster. Clones share its connection.
#[derive(Clone)]
pub(super) struct EtcdCluster(pub(super) Arc<EtcdShared>);

impl EtcdCluster {
    pub(super) fn new(target: EtcdTarget, tls: Option<ClientTlsConfig>) -> Self {
        Self(Arc::new(EtcdShared {
            target,
            tls,
            first: AtomicUsize::new(0),
            connection: Locked::default(),
            dials: Mutex::default(),
            token: Locked::default(),
            is_new_enough: AtomicBool::new(false),
        }))
    }

    /// The connection, opened if there is none, to the first server that accepts it.
    pub(super) async fn connection(&self) -> Result<Arc<EtcdConnection>, Failure> {
        let shared = &self.0;
        let open = || shared.connection.lock().clone();
        if let Some(connection) = open() {
            return Ok(connection);
        }
        let _turn = shared.dials.lock().await;
        if let Some(connection) = open() {
            return Ok(connection);
        }
        let first = shared.first.load(Ordering::Relaxed);
        let count = shared.target.addresses.len();
        let mut failed = Failure::NotSent(Failure::cause("there is no server"));
        for at in (first..first + count).map(|at| at % count) {
            match self.dial(at).await {
                Ok(channel) => {
                    let connection = Arc::new(EtcdConnection { channel, at });
                    *shared.connection.lock() = Some(Arc::clone(&connection));
                    return Ok(connection);
                }
                Err(failure) => failed = failure,
            }
        }
        Err(failed)
    }

    async fn dial(&self, at: usize) -> Result<Channel, Failure> {
        let address = &self.0.target.addresses[at];
        let cause =
            |error: &dyn std::error::Error| Failure::cause(format!("{address}: {}", innermost(error)));
        let scheme = if self.0.tls.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .map_err(|error| Failure::Refused(cause(&error)))?
            .connect_timeout(PONG)
            .tcp_nodelay(true)
            .tcp_keepalive(Some(KEEPALIVE_IDLE))
            .tcp_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .tcp_keepalive_retries(Some(KEEPALIVE_PROBES))
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PONG);
        let endpoint = match &self.0.tls {
            Some(tls) => endpoint.tls_config(tls.clone()).map_err(|error| Failure::Refused(cause(&error)))?,
            None => endpoint,
        };
        endpoint.connect().await.map_err(|error| {
            let said = innermost(&error);
            let hint = self.hint(&said);
            let cause = Failure::cause(format!("{address}: {said}{hint}"));
            if [TRUST, PLAIN].contains(&hint) { Failure::Refused(cause) } else { Failure::NotSent(cause) }
        })
    }

    /// A hint about certificates.
    fn hint(&self, said: &str) -> &'static str {
        let Some(files) = &self.0.target.tls else { return "" };
        match said {
            _ if said.contains("peer certificate") => TRUST,
            _ if said.contains("corrupt message") => PLAIN,
            // A server that requires a client certificate rejects its absence only after the client considers
            // itself connected.
            _ if files.identity.is_none()
                && ["closed", "reset", "alert", "eof"].iter().any(|word| said.contains(word)) =>
            {
                "; it may require a client certificate (cert=FILE and key=FILE in the URL), or not use TLS \
                 (etcd://)"
            }
            _ => "",
        }
    }

    /// Makes the next request use the next server, unless another connection has replaced this one already.
    pub(super) fn leave(&self, connection: &Arc<EtcdConnection>) {
        let mut open = self.0.connection.lock();
        if open.take_if(|open| Arc::ptr_eq(open, connection)).is_some() {
            self.0.first.store((connection.at + 1) % self.0.target.addresses.len(), Ordering::Relaxed);
        }
    }

    /// A request with the login's token, which is fetched if there is none.
    pub(super) async fn signed<T>(
        &self,
        message: T,
        connection: &Arc<EtcdConnection>,
    ) -> Result<Request<T>, Failure> {
        let mut request = Request::new(message);
        let login = &self.0.target.login;
        let Some(user) = &login.user else { return Ok(request) };
        let known = self.0.token.lock().clone();
        let token = match known {
            Some(token) => token,
            None => {
                let asked = AuthenticateRequest {
                    name: user.clone(),
                    password: login.password()?.unwrap_or_default(),
                };
                let path = "/etcdserverpb.Auth/Authenticate";
                let answer: Result<AuthenticateResponse, Status> =
                    unary(connection, Request::new(asked), path).await;
                let token = answer.map_err(|status| self.failure(&status, connection).not_sent())?.token;
                *self.0.token.lock() = Some(token.clone());
                token
            }
        };
        let token: MetadataValue<_> = token
            .parse()
            .map_err(|_| Failure::Refused(Failure::cause("etcd gave a token that no header can have")))?;
        request.metadata_mut().insert("token", token);
        Ok(request)
    }

    /// A request that a member without a leader fails at once, or a stream that such a member ends. Otherwise it
    /// would keep both open.
    pub(super) async fn led<T>(
        &self,
        message: T,
        connection: &Arc<EtcdConnection>,
    ) -> Result<Request<T>, Failure> {
        let mut request = self.signed(message, connection).await?;
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        Ok(request)
    }

    pub(super) async fn ask<M, A>(&self, message: M, path: &'static str) -> Result<A, Failure>
    where
        M: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let connection = self.connection().await?;
        let request = self.signed(message, &connection).await?;
        unary(&connection, request, path).await.map_err(|status| self.failure(&status, &connection))
    }

    /// Whether the reply exceeds [`REPLY_MAX`]. From etcd itself, the code means a revision that is not kept, and
    /// no request here names one.
    pub(super) fn is_too_long(status: &Status) -> bool {
        status.code() == Code::OutOfRange
    }

    /// The failure for an error of the server, or of the connection, which is then used no more.
    pub(super) fn failure(&self, status: &Status, connection: &Arc<EtcdConnection>) -> Failure {
        let said = match std::error::Error::source(status) {
            Some(error) => innermost(error),
            None => status.message().trim_start_matches("etcdserver: ").to_owned(),
        };
        let address = &self.0.target.addresses[connection.at];
        let refused = |what: String| Failure::Refused(Failure::cause(format!("{address}: {what}")));
        match status.code() {
            Code::PermissionDenied => refused(format!(
                "{said}; the user needs the permission readwrite on the prefix {}",
                self.0.target.prefix
            )),
            Code::Unauthenticated if said.contains("token") => {
                // Tokens expire after five minutes. The request was not executed.
                *self.0.token.lock() = None;
                Failure::NotSent(Failure::cause(format!("{address}: {said}")))
            }
            Code::Unauthenticated => refused(said),
            Code::InvalidArgument if said.contains("user name is empty") => {
                refused(format!("it requires a user and a password: etcd://USER:PASSWORD@{address}"))
            }
            Code::InvalidArgument if said.contains("authentication failed") => {
                refused(format!("{said}: is the user, or the password in the URL, right?"))
            }
            Code::InvalidArgument => refused(said),
            Code::FailedPrecondition if said.contains("authentication is not enabled") => refused(
                "it has no users, and the URL names one: leave out USER:PASSWORD@, or enable authentication"
                    .into(),
            ),
            Code::ResourceExhausted if said.contains("space exceeded") => refused(format!(
                "{said}: compact and defragment it, and then disarm the alarm (etcdctl alarm disarm)"
            )),
            // No other server gives a shorter one.
            _ if Self::is_too_long(status) => {
                Failure::Unknown(Failure::cause(format!("{address}: the reply exceeds {REPLY_MAX} bytes")))
            }
            Code::Unimplemented => refused(format!("{said}: is this an etcd of 3.4 or newer?")),
            _ => {
                self.leave(connection);
                Failure::Unknown(Failure::cause(format!("{address}: {said}{}", self.hint(&said))))
            }
        }
    }
}

pub(super) async fn unary<M, A>(
    connection: &EtcdConnection,
    request: Request<M>,
    path: &'static str,
) -> Result<A, Status>
where
    M: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let mut grpc = grpc(connection);
    grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let answer = grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::default()).await?;
    Ok(answer.into_inner())
}

pub(super) async fn streaming<M, A>(
    connection: &EtcdConnection,
    request: Request<impl Stream<Item = M> + Send + 'static>,
    path: &'static str,
) -> Result<Streaming<A>, Status>
where
    M: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let mut grpc = grpc(connection);
    grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let answers = grpc.streaming(request, PathAndQuery::from_static(path), ProstCodec::default()).await?;
    Ok(answers.into_inner())
}

fn grpc(connection: &EtcdConnection) -> Grpc<Channel> {
    Grpc::new(connection.channel.clone()).max_decoding_message_size(REPLY_MAX)
}

/// The root cause: the error of the system or of the peer.
pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Reads the certificate files.
pub(super) fn tls(files: &Tls) -> Result<ClientTlsConfig, Error> {
    let read = |file: &Path| {
        fs::read(file).map_err(|error| {
            let file = Quoted(file.to_str().expect("text of a URL"));
            Error::invalid(format!("the file {file} of this etcd URL cannot be read: {error}"))
        })
    };
    let mut config = ClientTlsConfig::new();
    match &files.ca {
        Some(file) => config = config.ca_certificate(Certificate::from_pem(read(file)?)),
        None => config = config.with_native_roots(),
    }
    if let Some((certificate, key)) = &files.identity {
        config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    Ok(config)
}
