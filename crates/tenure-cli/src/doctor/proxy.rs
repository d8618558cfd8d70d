//! Detects what is between this machine and a server: a proxy, a balancer, or address translation.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

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
                format!("this address leads to several servers, as those with the run_id {id} and {other}"),
                "each of them grants the same lock, to clients that happen to reach it",
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
                "a proxy passes the requests of one connection on by several",
                "a request that was lost can be carried out late, after another client got the lock",
                "name the server itself in the URL, or let the proxy keep a connection for each client",
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
    // A path means a Unix socket on this machine.
    let seen = told.split(' ').find_map(|field| field.strip_prefix("addr=")?.parse::<SocketAddr>().ok());
    let seen = seen.map(|seen| SocketAddr::new(seen.ip().to_canonical(), seen.port()));
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let ours = our_sockets();
    let is_here = |seen: SocketAddr| {
        let mut all = tables.iter().flat_map(|table| sockets(table));
        all.any(|(local, inode)| local == seen && ours.contains(&inode))
    };
    // Without access to the kernel's socket tables, nothing is known.
    if tables.iter().all(String::is_empty) || ours.is_empty() {
        return Ok(());
    }
    if let Some(seen) = seen.filter(|seen| !is_here(*seen)) {
        report.note(
            "proxy",
            &server.at,
            format!(
                "the server sees this client at {seen}, so a proxy or address translation is between: it must \
                 end the connection to the server when the client's ends, and must hold no request back"
            ),
        );
    }
    Ok(())
}

/// Inodes of this process's sockets.
fn our_sockets() -> BTreeSet<u64> {
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| {
        let link = fs::read_link(entry.path()).ok()?;
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    open.filter_map(number).collect()
}

/// Local addresses and inodes in a kernel socket table, which writes addresses as words in host byte order.
fn sockets(table: &str) -> impl Iterator<Item = (SocketAddr, u64)> {
    table.lines().skip(1).filter_map(|line| {
        let mut columns = line.split_whitespace();
        let (address, port) = columns.nth(1)?.split_once(':')?;
        let words: Vec<u8> = (0..address.len() / 8)
            .map(|word| u32::from_str_radix(address.get(word * 8..word * 8 + 8)?, 16).ok())
            .collect::<Option<Vec<_>>>()?
            .into_iter()
            .flat_map(u32::to_ne_bytes)
            .collect();
        let address = match words.len() {
            4 => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(words).ok()?)),
            _ => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(words).ok()?)).to_canonical(),
        };
        let port = u16::from_str_radix(port, 16).ok()?;
        Some((SocketAddr::new(address, port), columns.nth(7)?.parse().ok()?))
    })
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_kernels_tables_are_read() {
        let table = "  sl  local_address rem_address   st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode\n\
                     0: 0100007F:1F90 0200007F:18EB 01 00000000:00000000 00:00000000 00000000 0 0 71 1\n\
                     1: B80D0120000000000000000001000000:0050 0:0 01 0:0 0:0 0 0 0 72 1\n\
                     2: 0000000000000000FFFF00000100007F:0016 0:0 01 0:0 0:0 0 0 0 73 1\n\
                     3: nonsense 00000000:0000\n";
        let found: Vec<_> = sockets(table).map(|(address, inode)| format!("{address} {inode}")).collect();
        assert_eq!(found, ["127.0.0.1:8080 71", "[2001:db8::1]:80 72", "127.0.0.1:22 73"]);
    }
}
