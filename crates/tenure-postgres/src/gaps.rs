//! What a URL leaves out, as `psql` would find it: PostgreSQL's environment variables, service file, password file
//! and certificates.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use tenure_core::net::Address;

/// Our name of a parameter, libpq's, and its variable.
const GAPS: &[(&str, &str, &str)] = &[
    ("host", "host", "PGHOST"),
    ("port", "port", "PGPORT"),
    ("user", "user", "PGUSER"),
    ("password", "password", "PGPASSWORD"),
    ("dbname", "dbname", "PGDATABASE"),
    ("passfile", "passfile", "PGPASSFILE"),
    ("sslmode", "sslmode", "PGSSLMODE"),
    ("sslnegotiation", "sslnegotiation", "PGSSLNEGOTIATION"),
    ("channel_binding", "channel_binding", "PGCHANNELBINDING"),
    ("ca", "sslrootcert", "PGSSLROOTCERT"),
    ("cert", "sslcert", "PGSSLCERT"),
    ("key", "sslkey", "PGSSLKEY"),
    ("connect_timeout", "connect_timeout", "PGCONNECT_TIMEOUT"),
    ("application_name", "application_name", "PGAPPNAME"),
    ("options", "options", "PGOPTIONS"),
    ("target_session_attrs", "target_session_attrs", "PGTARGETSESSIONATTRS"),
];

/// Where libpq looks if neither the URL nor a variable says so: in `~/.postgresql`.
const FILES: [(&str, &str); 3] = [("ca", "root.crt"), ("cert", "postgresql.crt"), ("key", "postgresql.key")];

/// The surroundings of a program, which fill the gaps of a URL.
#[derive(Default)]
pub(super) struct PostgresGaps {
    service: BTreeMap<String, String>,
    variables: BTreeMap<String, String>,
    home: Option<PathBuf>,
}

impl PostgresGaps {
    /// Those of this process.
    pub(super) fn of_process() -> Self {
        let home = env::home_dir().filter(|home| !home.as_os_str().is_empty());
        let variables = env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok().filter(|name| name.starts_with("PG"))?;
            Some((name, value.into_string().ok()?))
        });
        Self { service: BTreeMap::new(), variables: variables.collect(), home }
    }

    /// None, for a URL that was completed before.
    #[cfg(test)]
    pub(super) fn of(variables: &[(&str, &str)], home: Option<&Path>) -> Self {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let (service, home) = (BTreeMap::new(), home.map(Path::to_owned));
        Self { service, variables: variables.collect(), home }
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).filter(|value| !value.is_empty()).cloned()
    }

    fn in_home(&self, file: &str) -> Option<PathBuf> {
        self.home.as_ref().map(|home| home.join(file))
    }

    /// Reads the service that the URL or a variable names; `false` if no service file has it.
    pub(super) fn read_service(&mut self, name: Option<String>) -> bool {
        let Some(name) = name.or_else(|| self.variable("PGSERVICE")) else { return true };
        let own = self.variable("PGSERVICEFILE").map(PathBuf::from).or(self.in_home(".pg_service.conf"));
        let system = self.variable("PGSYSCONFDIR").map(|dir| Path::new(&dir).join("pg_service.conf"));
        for file in [own, system].into_iter().flatten() {
            if let Some(service) = fs::read_to_string(file).ok().and_then(|text| section(&text, &name)) {
                self.service = service;
                return true;
            }
        }
        false
    }

    /// The value of a parameter that the URL leaves out.
    pub(super) fn get(&self, key: &str) -> Option<String> {
        let (_, name, variable) = GAPS.iter().find(|(known, ..)| *known == key)?;
        let file = || {
            let (_, file) = FILES.iter().find(|(known, _)| *known == key)?;
            let file = self.in_home(".postgresql")?.join(file);
            file.exists().then(|| file.to_str().map(str::to_owned)).flatten()
        };
        self.service.get(*name).cloned().or_else(|| self.variable(variable)).or_else(file)
    }

    /// The password file, if neither the URL nor a variable names one.
    pub(super) fn passfile(&self) -> Option<PathBuf> {
        self.get("passfile").map(PathBuf::from).or_else(|| self.in_home(".pgpass"))
    }
}

/// The settings of a service in a service file.
fn section(text: &str, name: &str) -> Option<BTreeMap<String, String>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let title = format!("[{name}]");
    let mut lines = lines.skip_while(|line| *line != title);
    lines.next()?;
    let settings = lines.take_while(|line| !line.starts_with('[')).filter_map(|line| line.split_once('='));
    Some(settings.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).collect())
}

/// The password of a login in a password file. A file that others may read does not count, as in `psql`.
pub(super) fn password_in(file: &Path, address: &Address, database: &str, user: &str) -> Option<String> {
    let is_own = fs::metadata(file).is_ok_and(|metadata| metadata.is_file() && is_private(&metadata));
    let text = fs::read_to_string(file).ok().filter(|_| is_own)?;
    let (host, port) = match address {
        Address::Tcp(host, port) => (host.clone(), port.to_string()),
        // A directory and `.s.PGSQL.PORT`.
        Address::Unix(path) => {
            let port = path.extension().unwrap_or_default().to_string_lossy().into_owned();
            (path.parent()?.to_string_lossy().into_owned(), port)
        }
    };
    let is_socket = matches!(address, Address::Unix(_));
    let wanted = [host.as_str(), &port, database, user];
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let [of_host, .., password] = &fields[..] else { return None };
        let fits = |(given, wanted): (&String, &&str)| given == "*" || given == wanted;
        let is_local = is_socket && of_host == "localhost";
        let all = fields[1..].iter().zip(&wanted[1..]).all(fits) && (is_local || fits((of_host, &wanted[0])));
        (all && fields.len() == 5).then(|| password.clone())
    })
}

#[cfg(unix)]
fn is_private(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    metadata.mode() & 0o077 == 0
}

#[cfg(not(unix))]
fn is_private(_: &fs::Metadata) -> bool {
    true
}

/// The fields of a line, between colons. `\` escapes a colon and itself.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        match char {
            ':' => fields.push(String::new()),
            '\\' => fields.iter_mut().last().into_iter().for_each(|field| field.extend(chars.next())),
            char => fields.iter_mut().last().into_iter().for_each(|field| field.push(char)),
        }
    }
    fields
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_first_line_that_fits_has_the_password() {
        let dir = std::env::temp_dir().join(format!("tenure-pgpass-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let file = dir.join("pgpass");
        let text =
            "# a comment\nother:*:*:*:no\ndb:5432:app:me:a\\:b\\\\c\nlocalhost:*:*:me:local\n*:*:*:*:rest\n";
        fs::write(&file, text).expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("our file");
        let tcp = |host: &str| Address::Tcp(host.to_owned(), 5432);
        let socket = Address::Unix("/run/postgresql/.s.PGSQL.5432".into());
        let found = |address: &Address, user| password_in(&file, address, "app", user);
        assert_eq!(found(&tcp("db"), "me").as_deref(), Some("a:b\\c"));
        assert_eq!(found(&tcp("db"), "you").as_deref(), Some("rest"));
        assert_eq!(found(&socket, "me").as_deref(), Some("local"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("our file");
        assert_eq!(found(&tcp("db"), "me"), None, "others may read it");
        fs::remove_dir_all(&dir).expect("our directory");
    }
}
