//! The versions of tenure that are connected to the store.

use tenure::diagnosis::{Console, ConsoleReply, Topology, diagnose_postgres};

use crate::exit::chain;
use crate::versions::{UNTOLD, Versions, names};
use crate::{doctor, store};

/// Asks the servers of a store, by a connection of its own; or why that is unknown.
pub(super) async fn connected(url: &str) -> Result<Versions, String> {
    let known = tenure::diagnosis::shown(url);
    let scheme = store::scheme(known.as_deref().unwrap_or(url));
    match scheme {
        "postgres" | "postgresql" => {
            let server = diagnose_postgres(url).await.map_err(|error| chain(&error))?;
            Ok(Versions::of(&server.clients))
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => {
            let server = tenure::diagnosis::diagnose_mysql(url).await.map_err(|error| chain(&error))?;
            let clients = server.clients.as_ref().ok_or_else(|| UNTOLD.to_owned())?;
            Ok(Versions::of(clients))
        }
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => {
            let cluster = tenure::diagnosis::diagnose_etcd(url).await.map_err(|error| chain(&error))?;
            Ok(Versions::of(&cluster.clients))
        }
        #[cfg(feature = "zookeeper")]
        "zookeeper" | "zookeepers" => {
            let clients = tenure::diagnosis::zookeeper_clients(url).await.map_err(|error| chain(&error))?;
            Ok(Versions::of(clients))
        }
        _ if scheme.starts_with("redis") || scheme.starts_with("valkey") => on_redis(url).await,
        _ => Err("a directory does not tell which versions use it".to_owned()),
    }
}

async fn on_redis(url: &str) -> Result<Versions, String> {
    let servers = match Topology::parse(url).map_err(|error| chain(&error))? {
        Topology::Server(target) => vec![target],
        Topology::Sentinel(sentinels) => {
            vec![doctor::master(&sentinels).await.map_err(|failure| failure.message)?]
        }
        Topology::Cluster(seeds) => doctor::masters(&seeds).await.map_err(|failure| failure.message)?,
        Topology::Quorum(members) => members,
    };
    let mut versions = Versions::default();
    for target in servers {
        let at = &target.address;
        let asked = async { Console::open(&target).await?.ask(&["CLIENT", "LIST"]).await };
        match asked.await {
            Ok(ConsoleReply::Text(list)) => versions.add(names(&list)),
            Ok(ConsoleReply::Error(error)) => return Err(format!("{at} refuses CLIENT LIST: {error}")),
            Ok(_) => return Err(format!("{at} does not answer CLIENT LIST with a text")),
            Err(error) => return Err(chain(&error)),
        }
    }
    Ok(versions)
}
