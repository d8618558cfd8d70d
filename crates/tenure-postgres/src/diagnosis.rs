//! Server settings for `tenure doctor`.

use super::connection::PrimaryConnector;
use super::url::PostgresTarget;
use tenure_core::error::Result;
use tenure_core::store::{BareThread, Failure};

/// Version and settings of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// Its version, as in `server_version`.
    pub version: String,
    /// The settings that this user may see, by name, and what else was asked.
    pub settings: Vec<(String, String)>,
    /// Number of standbys that replicate from it and are visible to this user.
    pub standbys: i64,
    /// `application_name` of the other connections.
    pub clients: Vec<String>,
    /// Its clock, in microseconds since 1970.
    pub clock_us: i64,
}

impl Diagnosis {
    /// The value of a setting, or an empty string.
    #[must_use]
    pub fn setting(&self, name: &str) -> &str {
        self.settings.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }
}

/// Connects as a store does, and reads the settings.
///
/// # Errors
/// `is_unreachable` without an answer in time, `is_refused` where the server refuses.
pub async fn diagnose_postgres(url: &str) -> Result<Diagnosis> {
    let target = PostgresTarget::parse(url)?;
    let url = target.shown();
    BareThread::run(&url, |runtime| async move { ask(&PrimaryConnector::new(runtime, target)).await }).await
}

async fn ask(connector: &PrimaryConnector) -> Result<Diagnosis, Failure> {
    let session = connector.dial().await?;
    let settings = session.look_up(
        "SELECT name, setting FROM pg_settings
        UNION ALL SELECT 'standbys', count(*)::text FROM pg_stat_replication
        UNION ALL SELECT 'connections', count(*)::text FROM pg_stat_activity WHERE backend_type = 'client backend'
        UNION ALL SELECT 'client', application_name FROM pg_stat_activity
            WHERE application_name <> '' AND pid <> pg_backend_pid()
        UNION ALL SELECT 'clock', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text
        UNION ALL SELECT 'commit of this user', coalesce((SELECT split_part(setting, '=', 2)
            FROM pg_db_role_setting AS s, unnest(s.setconfig) AS setting
            WHERE setting LIKE 'synchronous\\_commit=%' LIMIT 1), '')",
    );
    let mut settings = settings.await?;
    let clients = settings.extract_if(.., |(name, _)| name == "client").map(|(_, name)| name).collect();
    let number = |name: &str| {
        settings
            .iter()
            .find(|(known, _)| known == name)
            .and_then(|(_, value)| value.parse().ok())
            .unwrap_or(0)
    };
    let version = settings.iter().find(|(known, _)| known == "server_version");
    let version = version.map_or_else(String::new, |(_, value)| value.clone());
    let (standbys, clock_us) = (number("standbys"), number("clock"));
    Ok(Diagnosis { version, settings, standbys, clients, clock_us })
}
