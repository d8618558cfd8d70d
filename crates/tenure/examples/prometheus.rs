//! Serves `Locks::metrics` for Prometheus.
//!
//! ```text
//! cargo run --example prometheus -- [STORE] [ADDRESS]
//! curl http://127.0.0.1:9464/metrics
//! ```
//!
//! book/operate/grafana.json is a dashboard for these numbers.

use std::env;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use tenure::metrics::Groups;
use tenure::{Locks, block_on};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let store = args.next().unwrap_or_else(|| "memory:".to_owned());
    let address = args.next().unwrap_or_else(|| "127.0.0.1:9464".to_owned());
    // Locks with names like "orders:42" are counted as "orders".
    let locks = Locks::open(&store)?.with(|options| options.groups(Groups::by_prefix(':')))?;

    // Stands for the work of the program.
    let guard = block_on(locks.mutex("orders:42")?.lock())?;
    let busy = block_on(locks.mutex("orders:42")?.try_lock())?;
    assert!(busy.is_none());
    block_on(guard.release())?;

    let listener = TcpListener::bind(&address)?;
    println!("http://{}/metrics", listener.local_addr()?);
    for connection in listener.incoming() {
        // One at a time is enough for a scrape.
        if let Err(error) = connection.and_then(|connection| answer(connection, &locks)) {
            eprintln!("a scrape failed: {error}");
        }
    }
    Ok(())
}

fn answer(mut connection: TcpStream, locks: &Locks) -> std::io::Result<()> {
    connection.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") && request.len() < 16 * 1024 {
        let mut byte = [0];
        if connection.read(&mut byte)? == 0 {
            return Ok(());
        }
        request.push(byte[0]);
    }
    let (status, body) = match request.starts_with(b"GET /metrics ") {
        true => ("200 OK", locks.metrics().to_prometheus()),
        false => ("404 Not Found", "see /metrics\n".to_owned()),
    };
    let (len, kind) = (body.len(), "text/plain; version=0.0.4");
    write!(
        connection,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    )
}
