//! A web service of many processes: a cached report, and a job that runs in one of them at a time.
//!
//! ```text
//! cargo run -p tenure --example axum -- redis://127.0.0.1 127.0.0.1:8080
//! curl http://127.0.0.1:8080/report
//! curl -X POST http://127.0.0.1:8080/rebuild
//! ```
//! Without arguments: `memory:`, and a free port. On SIGTERM or Ctrl-C it finishes its requests and releases
//! its locks.
#![expect(clippy::disallowed_methods, reason = "a program has its own time and tasks")]

use std::error::Error;
use std::io;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tenure::{Cache, Locks, Mutex, Options};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// What all requests share. Handles are cheap to clone, and all use one connection.
#[derive(Clone)]
struct App {
    report: Cache,
    rebuild: Mutex,
}

type Answer = Result<String, Response>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let store = arguments.next().unwrap_or_else(|| "memory:".to_owned());
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let label = |options: Options| options.label("example-axum");
    let locks = Locks::connect(&store).await?.with(label)?;
    let app = App {
        report: locks.cache("example:page")?.stale(Duration::from_secs(60)),
        rebuild: locks.mutex("example:rebuild")?,
    };
    let router = Router::new().route("/report", get(report)).route("/rebuild", post(rebuild)).with_state(app);

    let mut terminated = signal(SignalKind::terminate())?;
    let end = async move {
        let interrupted = std::pin::pin!(tokio::signal::ctrl_c());
        futures_util::future::select(interrupted, std::pin::pin!(terminated.recv())).await;
    };
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, router).with_graceful_shutdown(end).await?;
    // The handler of a disconnected client was dropped together with its guard: wait for that release.
    locks.flush().await?;
    println!("ended, and all locks are given back");
    Ok(())
}

/// One process computes the report, and the others wait for its result, for 5 s at most.
async fn report(State(app): State<App>) -> Answer {
    let slow_query = async || {
        println!("computing the report");
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok::<_, io::Error>("42 orders\n".to_owned())
    };
    let report = app.report.get_or_compute(Duration::from_secs(30), slow_query).await;
    report
        .map_err(failed)?
        .map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response())
}

/// Refused while another process rebuilds.
async fn rebuild(State(app): State<App>) -> Answer {
    let Some(guard) = app.rebuild.try_lock().await.map_err(failed)? else {
        let busy = (StatusCode::CONFLICT, [(RETRY_AFTER, "1")], "another process rebuilds\n");
        return Err(busy.into_response());
    };
    let rebuilt = guard.run(async |guard| {
        println!("rebuilding, with token {}", guard.fence());
        tokio::time::sleep(Duration::from_millis(800)).await;
    });
    rebuilt.await.map_err(failed)?;
    Ok("rebuilt\n".to_owned())
}

/// If the store does not answer, the client may retry. If the lock was lost, the work may be half done.
fn failed(error: tenure::Error) -> Response {
    let text = format!("{error}\n");
    if error.is_unreachable() || error.is_unknown() {
        return (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "5")], text).into_response();
    }
    (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
}
