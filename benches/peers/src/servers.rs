//! The servers of `scripts/peers --store`, and a relay before them.

use std::io::stdin;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tenure_testkit::servers::{Disk, Ensemble, Etcd, MariaDb, Postgres, ZooKeeper};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};

use crate::say;

/// `STORE serve DISK` starts a server, prints its port and stays until its input ends. `PORT relay -` passes
/// connections on to this port, prints its own, and for each line the number of messages from clients.
pub(crate) async fn run(action: &str, what: &str, disk: &str) {
    if action == "relay" {
        return relay(SocketAddr::from(([127, 0, 0, 1], what.parse().expect("a port")))).await;
    }
    let disk = match disk {
        "memory" => Disk::Unused,
        "fsync" => Disk::Synced,
        more => Disk::Slow(Duration::from_micros(more.parse().expect("a number of microseconds"))),
    };
    match what {
        "postgres" => {
            let server = Postgres::start_on(disk);
            stay(server.address());
        }
        "mysql" => {
            let server = MariaDb::start_on(disk);
            stay(server.address());
        }
        "etcd" => {
            let server = Etcd::start();
            stay(server.address());
        }
        "zookeeper" => {
            let server = ZooKeeper::start_on(disk);
            stay(server.address());
        }
        other => panic!("no store {other:?}"),
    }
}

fn stay(address: SocketAddr) {
    say(&address.port().to_string());
    while stdin().read_line(&mut String::new()).is_ok_and(|read| read > 0) {}
}

/// Messages from clients: what one read returns, which is what one write sent, unless they come faster.
static MESSAGES: AtomicU64 = AtomicU64::new(0);

async fn relay(server: SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    say(&listener.local_addr().expect("a port").port().to_string());
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.expect("a client");
            let server = TcpStream::connect(server).await.expect("a server");
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let ((mut asks, mut hears), (mut answers, mut asked)) = (client.into_split(), server.into_split());
            tokio::spawn(async move { copy(&mut answers, &mut hears).await });
            tokio::spawn(async move {
                let mut buffer = vec![0; 1 << 16];
                while let Ok(count @ 1..) = asks.read(&mut buffer).await {
                    MESSAGES.fetch_add(1, Relaxed);
                    if asked.write_all(&buffer[..count]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    while stdin().read_line(&mut String::new()).is_ok_and(|read| read > 0) {
        say(&MESSAGES.load(Relaxed).to_string());
    }
}
