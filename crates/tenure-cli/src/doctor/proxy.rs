//! Detects what is between this machine and a server: a proxy, a balancer, or address translation.

use std::net::SocketAddr;

use tenure::Error;
use tenure::diagnosis::{Console, ConsoleReply, Target};

use super::report::Report;
use super::server::{Server, fields};

/// Number of connections made: a balancer distributes them in turn, or at random.
const CONNECTIONS: usize = 6;
/// How often a connection is asked for its id.
const ASKED: usize = 8;

pub(super) async fn check(server: &mut Server, target: &Target, report: &mut Report) -> Result<(), Error> {
    several_servers(server, target, report).await?;
    if shared_connection(server, report).await? {
        return Ok(());
    }
    another_address(server, report).await
}

/// Checks that all connections lead to one server.
async fn several_servers(server: &Server, target: &Target, report: &mut Report) -> Result<(), Error> {
    // Missing permissions have been reported already.
    let Some(id) = server.info("run_id").map(str::to_owned) else { return Ok(()) };
    for _ in 1..CONNECTIONS {
        let reply = Console::open(target).await?.ask(&["INFO", "server"]).await?;
        let ConsoleReply::Text(info) = reply else { return Ok(()) };
        if let Some(other) = fields(&info).get("run_id").filter(|other| **other != id) {
            report.find(
                "proxy",
                &server.at,
                format!("this address leads to several servers, such as those with run_id {id} and {other}"),
                "each of them grants the same lock to the clients that reach it",
                "name one server in the URL, or its sentinels (redis-sentinel://), and no balancer",
            );
            return Ok(());
        }
    }
    Ok(())
}

/// Whether requests on one connection arrive on several.
async fn shared_connection(server: &mut Server, report: &mut Report) -> Result<bool, Error> {
    let mut first = None;
    for _ in 0..ASKED {
        let id = match server.ask(&["CLIENT", "ID"]).await? {
            ConsoleReply::Int(id) => id,
            ConsoleReply::Error(error) => {
                let why = format!("CLIENT ID was refused ({error}): give this user +client|id");
                report.cannot_check("proxy", &server.at, why);
                return Ok(false);
            }
            _ => return Ok(false),
        };
        if *first.get_or_insert(id) != id {
            report.find(
                "proxy",
                &server.at,
                "a proxy distributes the requests of one connection over several",
                "a lost request can be executed late, after another client got the lock",
                "name the server itself in the URL, or configure the proxy to keep one connection per client",
            );
            return Ok(true);
        }
    }
    Ok(false)
}

/// Notes whether the server sees another address than that of this machine's connection. Not a finding:
/// address translation, as for containers, costs no lock.
async fn another_address(server: &mut Server, report: &mut Report) -> Result<(), Error> {
    let told = match server.ask(&["CLIENT", "INFO"]).await? {
        ConsoleReply::Text(told) => told,
        ConsoleReply::Error(error) => {
            let why = format!("CLIENT INFO was refused ({error}): give this user +client|info");
            report.cannot_check("proxy", &server.at, why);
            return Ok(());
        }
        _ => return Ok(()),
    };
    let seen = told.split(' ').find_map(|field| field.strip_prefix("addr=")?.parse::<SocketAddr>().ok());
    let canonical = |it: SocketAddr| (it.ip().to_canonical(), it.port());
    // A Unix socket has a path instead.
    if let (Some(seen), Some(local)) = (seen, server.local())
        && canonical(seen) != canonical(local)
    {
        report.note(
            "proxy",
            &server.at,
            format!(
                "the server sees this client at {seen}, so there is a proxy or address translation in between: it must \
                 close its connection to the server when the client's closes, and must not hold back requests"
            ),
        );
    }
    Ok(())
}
