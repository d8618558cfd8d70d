//! `tenure serve`: the locks of a store over HTTP, read-only: metrics, JSON, and a page for people. `answers`
//! renders the responses; `page.html`, `page.css` and `page.js` are the page.

mod answers;
mod series;
mod state;
mod uses;
mod versions;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::time::Duration;

use futures_util::future::join3;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tenure::Locks;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::cli::Serve;
use crate::exit::{Failure, of_signal};
use crate::look::Look;
use crate::observed::Observed;
use crate::signals::{END_THE_WAIT, Signals};
use crate::table::{Row, walk};
use crate::versions::Versions;
use crate::{clock, output, store};
use state::StateFile;
use uses::Uses;
use versions::connected;

/// Maximum concurrent clients, and the timeout of each.
const CLIENTS: usize = 64;
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at the versions that are connected, each by a connection of its own.
const OF_VERSIONS: Duration = Duration::from_secs(60);
/// The page loads only its own style and script, and cannot turn text into markup.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

type Shared = Arc<Mutex<Seen>>;

/// What was observed so far.
#[derive(Default)]
struct Seen {
    locks: Observed,
    /// Elections as locks that their leaders hold.
    elections: Observed,
    /// The pause after the last refresh.
    pause: Duration,
    uses: Uses,
    /// The versions that are connected, or why they are unknown.
    versions: Option<Result<Versions, String>>,
}

/// The watched parts of the store.
struct Watched<'a> {
    locks: &'a Locks,
    prefix: &'a str,
}

/// The result of one refresh: locks, and jobs and elections.
type Looked = (Vec<Row>, Uses);

/// Serves until a signal arrives; returns the exit code.
#[expect(clippy::disallowed_methods, reason = "a timer of this command's own")]
pub(crate) async fn serve(args: &Serve) -> Result<u8, Failure> {
    store::must_be_named(&args.locks.store, "a page of locks")?;
    let mut signals = Signals::catch(&END_THE_WAIT)?;
    let locks = store::open_existing(&args.locks.store)?;
    let watched = Watched { locks: &locks, prefix: &args.locks.names };
    let own = |error: io::Error| Failure::own(&format!("cannot listen at {}", args.listen), &error);
    let listener = TcpListener::bind(args.listen).await.map_err(own)?;
    let at = listener.local_addr().map_err(own)?;
    let of = [locks.url().to_owned(), format!("{}{}", args.locks.store.prefix, args.locks.names)];
    let state = args.state.as_ref().map(|path| StateFile::open(path, of)).transpose()?;
    let (mut state, seen) = state.unzip();
    let seen: Shared = Arc::new(Mutex::new(seen.unwrap_or_default()));
    // Fail before announcing the address if the store is unreachable.
    let look = Look::begin();
    let found = match signals.or_end(store::unless_absent(&locks, watched.look())).await {
        Ok(found) => found??,
        Err(signal) => return Ok(of_signal(signal)),
    };
    record(&seen, Ok(found), look, args.every);
    match signals.or_end(output::print_aside(format!("listening at http://{at}/\n"))).await {
        Ok(printed) => output::unless_closed(printed)?,
        Err(signal) => return Ok(of_signal(signal)),
    }
    let looks = async {
        loop {
            let pause = locked(&seen).pause;
            sleep(pause).await;
            let look = Look::begin();
            locked(&seen).locks.looking = Some(look);
            record(&seen, watched.look().await, look, args.every);
            if let Some(state) = &mut state {
                state.keep(&locked(&seen), false);
            }
        }
    };
    let (flags, lacks_login) = store::flags(&args.locks.store)?;
    let page = answers::Pages {
        flags,
        lacks_login,
        store: locks.url().to_owned(),
        prefix: args.locks.store.prefix.clone(),
        elections: args.election.clone(),
        jobs: args.job.clone(),
        every: args.every,
        series: args.series,
        is_local: at.ip().is_loopback(),
    };
    let url = store::url(&args.locks.store)?;
    let versions = async {
        loop {
            let found = connected(&url).await;
            locked(&seen).versions = Some(found);
            sleep(OF_VERSIONS).await;
        }
    };
    let ended = signals.or_end(join3(looks, versions, answer_all(&listener, &page, &seen))).await;
    if let Some(state) = &mut state {
        state.keep(&locked(&seen), true);
    }
    Ok(ended.map_or_else(of_signal, |_| 0))
}

impl Watched<'_> {
    async fn look(&self) -> Result<Looked, Failure> {
        let found = walk(self.locks, self.prefix).await?;
        let uses = Uses::look(self.locks, self.prefix).await?;
        Ok((found.into_iter().map(|found| found.row).collect(), uses))
    }
}

fn locked(seen: &Shared) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records the result of a refresh.
fn record(seen: &Shared, found: Result<Looked, Failure>, look: Look, every: Duration) {
    let mut seen = locked(seen);
    let (now, took) = (clock::unix(), look.took());
    seen.pause = look.pause(every, found.is_ok());
    match found {
        Ok((rows, uses)) => {
            seen.locks.looked(Ok(rows), now, took);
            // What cannot be read has not ended.
            if uses.trouble.is_none() {
                seen.elections.looked(Ok(uses.leaders()), now, took);
            }
            seen.uses = uses;
        }
        Err(failure) => seen.locks.looked(Err(failure), now, took),
    }
}

/// Accepts clients and answers one request of each.
#[expect(clippy::disallowed_methods, reason = "a timer of this command's own")]
async fn answer_all(listener: &TcpListener, page: &answers::Pages, seen: &Shared) {
    let mut clients: VecDeque<Pin<Box<dyn Future<Output = ()> + '_>>> = VecDeque::new();
    loop {
        let accepted = poll_fn(|context| {
            clients.retain_mut(|client| client.as_mut().poll(context).is_pending());
            listener.poll_accept(context)
        });
        if let Ok((stream, _)) = accepted.await {
            // An answer takes no time: the first of so many asks nothing, or does not read.
            if clients.len() >= CLIENTS {
                clients.pop_front();
            }
            clients.push_back(Box::pin(answer(stream, page, seen)));
        } else {
            // For example, too many open files, which may be temporary.
            sleep(Duration::from_millis(100)).await;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a timer of this command's own")]
async fn answer(stream: TcpStream, page: &answers::Pages, seen: &Shared) {
    let service = service_fn(async |request: Request<Incoming>| {
        Ok::<_, std::convert::Infallible>(answered(&request, page, seen))
    });
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
    let _ = timeout(PATIENCE, connection).await;
}

fn answered(request: &Request<Incoming>, page: &answers::Pages, seen: &Shared) -> Response<Full<Bytes>> {
    let host = request.headers().get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
    let seen = locked(seen);
    let plain = |status, text: &str| (status, "text/plain", text.to_owned());
    let (status, kind, text) = match request.uri().path() {
        _ if ![Method::GET, Method::HEAD].contains(request.method()) => {
            plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n")
        }
        _ if !page.may_ask(host) => {
            plain(StatusCode::FORBIDDEN, "this address serves only programs on this machine\n")
        }
        "/" => (StatusCode::OK, "text/html; charset=utf-8", answers::PAGE.to_owned()),
        "/page.css" => (StatusCode::OK, "text/css; charset=utf-8", answers::STYLE.to_owned()),
        "/page.js" => (StatusCode::OK, "text/javascript; charset=utf-8", answers::SCRIPT.to_owned()),
        "/metrics" => (StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page.metrics(&seen)),
        "/locks.json" => {
            let after = request.uri().query().and_then(|query| query.strip_prefix("after=")?.parse().ok());
            (StatusCode::OK, "application/json", page.json(&seen, after.unwrap_or(0)))
        }
        _ => plain(StatusCode::NOT_FOUND, "not found\n"),
    };
    let response = Response::builder()
        .status(status)
        .header("content-type", kind)
        .header("cache-control", "no-store")
        .header("x-content-type-options", "nosniff")
        .header("referrer-policy", "no-referrer")
        .header("content-security-policy", POLICY);
    response.body(Full::new(Bytes::from(text))).expect("these headers are valid")
}
