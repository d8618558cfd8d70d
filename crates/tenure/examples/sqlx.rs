//! A web service with a `PgPool`, whose transactions commit only for the holder of a lock.
//!
//! ```text
//! cargo run -p tenure --features sqlx --example sqlx -- postgres://app@db1/shop 127.0.0.1:8080
//! curl -X POST http://127.0.0.1:8080/close
//! curl -X POST http://127.0.0.1:8080/report
//! ```
//! The lock of `/close` is in the database of the pool, so the database itself refuses a commit without it
//! (`check_in`). `/report` passes its token, which works with a lock on any store. SIGTERM and Ctrl-C end it.
#![expect(clippy::disallowed_methods, reason = "a program has its own time and tasks")]

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use sqlx::PgPool;
use tenure::{Locks, Mutex, fence};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// What all requests share.
#[derive(Clone)]
struct App {
    pool: PgPool,
    close: Mutex,
    report: Mutex,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("usage: sqlx postgres://USER@HOST/DATABASE [ADDRESS]")?;
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let pool = PgPool::connect(&url).await?;
    migrate(&pool).await?;
    // A short lease, so that a pause of some seconds loses the lock.
    let locks = Locks::connect(&url).await?.with(|options| options.ttl(Duration::from_secs(2)))?;
    let app = App { pool, close: locks.mutex("example:close")?, report: locks.mutex("example:report")? };
    let router = Router::new().route("/close", post(close)).route("/report", post(report)).with_state(app);

    let mut terminated = signal(SignalKind::terminate())?;
    let end = async move {
        let interrupted = std::pin::pin!(tokio::signal::ctrl_c());
        futures_util::future::select(interrupted, std::pin::pin!(terminated.recv())).await;
    };
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, router).with_graceful_shutdown(end).await?;
    locks.flush().await?;
    Ok(())
}

/// Closes the day: commits only while the lock is held.
async fn close(State(app): State<App>) -> Result<&'static str, Refusal> {
    let guard = app.close.try_lock().await?.ok_or(Refusal::Busy)?;
    let mut transaction = app.pool.begin().await?;
    guard.check_in(&mut *transaction).await?;
    println!("closing");
    tokio::time::sleep(Duration::from_secs(1)).await; // slow statements
    sqlx::query("UPDATE day SET closed = closed + 1").execute(&mut *transaction).await?;
    transaction.commit().await?; // no other process could get the lock until here
    guard.release().await?;
    Ok("closed\n")
}

/// Writes the report: the database refuses the token of a former holder.
async fn report(State(app): State<App>) -> Result<&'static str, Refusal> {
    let guard = app.report.try_lock().await?.ok_or(Refusal::Busy)?;
    println!("computing");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut transaction = app.pool.begin().await?;
    let pass = sqlx::query("SELECT tenure_pass($1, $2)").bind("example:report").bind(guard.fence_i64());
    pass.execute(&mut *transaction).await?; // before the first statement that reads or writes
    sqlx::query("UPDATE day SET report = $1").bind(guard.fence_i64()).execute(&mut *transaction).await?;
    transaction.commit().await?;
    guard.release().await?;
    Ok("written\n")
}

/// Usually a migration.
async fn migrate(pool: &PgPool) -> sqlx::Result<()> {
    let mut transaction = pool.begin().await?;
    sqlx::raw_sql("SELECT pg_advisory_xact_lock(1)").execute(&mut *transaction).await?;
    let there = sqlx::query_scalar("SELECT to_regclass('tenure_fence') IS NOT NULL");
    if !there.fetch_one(&mut *transaction).await? {
        sqlx::raw_sql(fence::POSTGRES).execute(&mut *transaction).await?;
        let day = "CREATE TABLE day (closed int, report bigint); INSERT INTO day VALUES (0, 0)";
        sqlx::raw_sql(day).execute(&mut *transaction).await?;
    }
    transaction.commit().await
}

/// Why a request changed nothing.
enum Refusal {
    Busy,
    Locks(tenure::Error),
    Database(sqlx::Error),
}

impl From<tenure::Error> for Refusal {
    fn from(error: tenure::Error) -> Self {
        Self::Locks(error)
    }
}

impl From<sqlx::Error> for Refusal {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl axum::response::IntoResponse for Refusal {
    fn into_response(self) -> axum::response::Response {
        let (status, text) = match self {
            Self::Busy => (StatusCode::CONFLICT, "another process is at it".to_owned()),
            // The transaction may have committed.
            Self::Locks(error) if error.is_lost() => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            // A server does not answer: the client may retry.
            Self::Locks(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
            Self::Database(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        };
        (status, format!("{text}\n")).into_response()
    }
}
