//! `tenure serve`: the locks of a store over HTTP, read-only: metrics, and a page with a table. `answers`
//! renders the responses.

mod answers;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::sync::{Arc, Mutex, PoisonError};
use tenure::Locks;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::cli::Serve;
use crate::exit::{Failure, of_signal};
use crate::list::pause;
use crate::observed::Observed;
use crate::signals::{END_THE_WAIT, Signals};
use crate::table::walk;
use crate::{clock, output, store};

/// Maximum concurrent clients, and the timeout of each.
const CLIENTS: usize = 64;
const PATIENCE: Duration = Duration::from_secs(10);

type Shared = Arc<Mutex<Observed>>;

/// Serves until a signal arrives; returns the exit code.
#[expect(clippy::disallowed_methods, reason = "a timer of this command's own")]
pub(crate) async fn serve(args: &Serve) -> Result<u8, Failure> {
    let mut signals =
        Signals::catch(&END_THE_WAIT).map_err(|error| Failure::own("cannot catch signals", &error))?;
    let locks = store::open_existing(&args.store)?;
    let own = |error: io::Error| Failure::own(&format!("cannot listen at {}", args.listen), &error);
    let listener = TcpListener::bind(args.listen).await.map_err(own)?;
    let at = listener.local_addr().map_err(own)?;
    let seen = Shared::default();
    // Fail before announcing the address if the store is unreachable.
    let asked = clock::now();
    let rows = match signals.or_end(store::unless_absent(&locks, walk(&locks, &args.names, &[]))).await {
        Ok(found) => found??.into_iter().map(|(row, _)| row).collect(),
        Err(signal) => return Ok(of_signal(signal)),
    };
    seen.lock().unwrap_or_else(PoisonError::into_inner).looked(Ok(rows), clock::unix(), clock::now() - asked);
    output::print(format!("listening at http://{at}/\n"))
        .map_err(|error| Failure::own("cannot print", &error))?;
    let looks = async {
        loop {
            let took = look(&locks, args, &seen).await;
            sleep(pause(args.every, took)).await;
        }
    };
    let page = answers::Pages {
        store: locks.url().to_owned(),
        series: args.series,
        is_local: at.ip().is_loopback(),
    };
    match signals.or_end(both(looks, answer_all(&listener, &page, &seen))).await {
        Ok(()) => Ok(0),
        Err(signal) => Ok(of_signal(signal)),
    }
}

/// Scans the store once; returns what that cost.
async fn look(locks: &Locks, args: &Serve, seen: &Shared) -> Duration {
    let asked = clock::now();
    let found = walk(locks, &args.names, &[]).await;
    let took = clock::now() - asked;
    let rows = found.map(|found| found.into_iter().map(|(row, _)| row).collect());
    let cost = if rows.is_ok() { took } else { Duration::ZERO };
    seen.lock().unwrap_or_else(PoisonError::into_inner).looked(rows, clock::unix(), took);
    cost
}

/// Polls both, which never end.
async fn both(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    futures_util::future::join(one, other).await;
}

/// Accepts clients and answers one request of each.
async fn answer_all(listener: &TcpListener, page: &answers::Pages, seen: &Shared) {
    let mut clients: FuturesUnordered<Pin<Box<dyn Future<Output = ()> + '_>>> = FuturesUnordered::new();
    loop {
        let accepted = poll_fn(|context| {
            while let Poll::Ready(Some(())) = clients.poll_next_unpin(context) {}
            if clients.len() >= CLIENTS {
                return Poll::Pending;
            }
            listener.poll_accept(context)
        });
        if let Ok((stream, _)) = accepted.await {
            clients.push(Box::pin(answer(stream, page, seen)));
        } else {
            // For example, too many open files, which may be temporary.
            nap().await;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a timer of this command's own")]
async fn nap() {
    sleep(Duration::from_millis(100)).await;
}

#[expect(clippy::disallowed_methods, reason = "a timer of this command's own")]
async fn answer(stream: TcpStream, page: &answers::Pages, seen: &Shared) {
    let service = service_fn(async |request: Request<Incoming>| {
        Ok::<_, std::convert::Infallible>(answered(&request, page, seen))
    });
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
    // An idle client occupies its slot for this long.
    let _ = timeout(PATIENCE, connection).await;
}

fn answered(request: &Request<Incoming>, page: &answers::Pages, seen: &Shared) -> Response<Full<Bytes>> {
    let host = request.headers().get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let (status, kind, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, _) if !page.may_ask(host) => {
            (StatusCode::FORBIDDEN, "text/plain", "this address is for programs of this machine\n".to_owned())
        }
        (&Method::GET | &Method::HEAD, "/") => {
            (StatusCode::OK, "text/html; charset=utf-8", answers::PAGE.to_owned())
        }
        (&Method::GET | &Method::HEAD, "/metrics") => {
            (StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page.metrics(&seen))
        }
        (&Method::GET | &Method::HEAD, "/locks.json") => {
            (StatusCode::OK, "application/json", page.json(&seen))
        }
        (&Method::GET | &Method::HEAD, _) => (StatusCode::NOT_FOUND, "text/plain", "not found\n".to_owned()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET and HEAD\n".to_owned()),
    };
    let response = Response::builder()
        .status(status)
        .header("content-type", kind)
        .header("cache-control", "no-store")
        .header("x-content-type-options", "nosniff")
        .header(
            "content-security-policy",
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'",
        );
    response.body(Full::new(Bytes::from(text))).expect("these headers are valid")
}
