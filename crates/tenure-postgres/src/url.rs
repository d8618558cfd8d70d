//! Parses the URL: servers, credentials and options.
//!
//! `postgres://[user[:password]@]host[:port][,host[:port]…][/database][?…]`, or `postgresql://`. A host that
//! begins with `/`, percent-encoded, is the directory of a socket. The query may have `schema`, or
//! `namespace` with the same meaning, `password-file`, `sslmode`, `ca`, `cert`, `key`, `pgbouncer`, and the
//! parameters of libpq. `gaps` knows what the URL leaves out.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio_postgres::config::ChannelBinding;

use super::gaps::{PostgresGaps, password_in};
use super::parameters;
use tenure_core::credentials::Provider;
use tenure_core::error::Result;
use tenure_core::net::url::{Login, Password, StoreUrl, Syntax, require_tls, truth};
use tenure_core::net::{Address, Tls, TlsMode};
use tenure_core::platform::Keepalive;
use tenure_core::store::Failure;

pub(super) const SYNTAX: Syntax = Syntax {
    server: "PostgreSQL",
    form: "postgres://HOST, or postgres://%2Frun%2Fpostgresql for the socket in this directory",
    tls: "sslmode=verify-full",
    needs_user: false,
    needs_password: false,
    parameters: parameters::OURS,
    foreign: parameters::FOREIGN,
};
const PORT: u16 = 5432;

/// The servers, one of which is the primary, and how to log in.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PostgresTarget {
    pub(super) addresses: Vec<Address>,
    login: Login,
    /// Called at each dial instead of using the login.
    pub(super) provider: Option<Provider>,
    /// Where to look for a password if there is none.
    passfile: Option<PathBuf>,
    user: String,
    pub(super) database: String,
    /// The table's schema, if not the first on the server's search path.
    pub(super) schema: Option<String>,
    pub(super) tls: Option<Tls>,
    pub(super) session: SessionSettings,
    /// Connections go through a pooler that assigns a server connection per transaction.
    pub(super) is_pooled: bool,
    shown: Arc<str>,
}

/// How a connection is opened, apart from where and as whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SessionSettings {
    pub(super) connect_timeout: Option<Duration>,
    pub(super) keepalive: Keepalive,
    /// What `application_name` begins with.
    pub(super) application: String,
    /// Settings of the server's session, as on its command line.
    pub(super) options: Option<String>,
    pub(super) channel_binding: ChannelBinding,
    /// TLS begins without a request for it.
    pub(super) is_direct: bool,
}

impl PostgresTarget {
    /// Parses a URL. Errors name the part that is wrong, but never quote what may contain a password.
    pub(super) fn parse(url: &str) -> Result<Self> {
        Self::read(url, PostgresGaps::of_process())
    }

    fn read(url: &str, mut gaps: PostgresGaps) -> Result<Self> {
        let mut url = SYNTAX.parse(url)?;
        if !super::takes(url.scheme()) {
            return Err(url.unknown_scheme());
        }
        if !gaps.read_service(url.take("service")) {
            return Err(SYNTAX.wrong("its service is in no service file"));
        }
        let Login { user, password } = url.login()?;
        let user = user.or_else(|| gaps.get("user")).unwrap_or_else(|| "postgres".to_owned());
        let password = password.or_else(|| gaps.get("password").map(Password::Text));
        let passfile = url.take("passfile").map(PathBuf::from).or_else(|| gaps.passfile());
        let login = Login { user: Some(user.clone()), password };
        let addresses = addresses(&mut url, &gaps)?;
        let path = Some(SYNTAX.decoded(url.path(), "database")?).filter(|path| !path.is_empty());
        let database = url.take("dbname").or(path).or_else(|| gaps.get("dbname"));
        let database = database.unwrap_or_else(|| user.clone());
        if database.contains('/') {
            return Err(SYNTAX.wrong("the database must not contain a `/`"));
        }
        let schema = schema(&mut url)?;
        let mut tls = url.tls_to(&addresses, &|key| gaps.get(key))?;
        let session = session(&mut url, &gaps, tls.as_ref())?;
        if let Some(tls) = &mut tls {
            tls.protocol = Some("postgresql");
        }
        let is_pooled = url.take_as("pgbouncer", "true or false", truth)?.unwrap_or(false);
        url.end()?;
        let shown = shown(&addresses, &database, schema.as_deref(), tls.as_ref(), is_pooled);
        if tls.is_some() {
            require_tls(&shown)?;
        }
        let provider = None;
        Ok(Self {
            addresses,
            login,
            provider,
            passfile,
            user,
            database,
            schema,
            tls,
            session,
            is_pooled,
            shown,
        })
    }

    /// Has `provider` supply the login at each dial. `false` if there is a password, too.
    pub(super) fn ask_for_login(&mut self, provider: Provider) -> bool {
        self.provider = Some(provider);
        self.login.password.is_none()
    }

    /// User and password for a server.
    pub(super) fn login(&self, address: &Address) -> Result<(String, Option<String>), Failure> {
        if let Some(provider) = &self.provider {
            let told = (provider.0)().map_err(Failure::NotSent)?;
            return Ok((told.user.unwrap_or_else(|| self.user.clone()), Some(told.password)));
        }
        let in_file = || {
            let file = self.passfile.as_ref()?;
            password_in(file, address, &self.database, &self.user)
        };
        Ok((self.user.clone(), self.login.password()?.or_else(in_file)))
    }

    /// The URL without credentials.
    pub(super) fn shown(&self) -> Arc<str> {
        Arc::clone(&self.shown)
    }

    /// The table's name in SQL.
    pub(super) fn table(&self) -> String {
        table_in(self.schema.as_deref())
    }
}

impl fmt::Debug for PostgresTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresTarget").field(&self.shown).finish()
    }
}

/// The table's name in SQL, qualified if a schema is given.
pub fn table_in(schema: Option<&str>) -> String {
    schema.map_or_else(|| "tenure_lock".to_owned(), |schema| format!("{}.tenure_lock", quoted(schema)))
}

/// A quoted SQL identifier.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The servers before the path, or those of `host` and `port`, as in libpq.
fn addresses(url: &mut StoreUrl<'_>, gaps: &PostgresGaps) -> Result<Vec<Address>> {
    let ports = url.take("port").or_else(|| gaps.get("port"));
    let read = |port: &str| port.parse().ok().filter(|port| *port != 0);
    let ports: Option<Vec<u16>> = ports.map_or(Some(vec![PORT]), |text| text.split(',').map(read).collect());
    let ports = ports.ok_or_else(|| SYNTAX.wrong("parameter `port` must be a number from 1 to 65535"))?;
    let hosts = match url.take("host") {
        None if url.has_hosts() => {
            return url.hosts(ports[0])?.into_iter().map(address).collect();
        }
        hosts => hosts.or_else(|| gaps.get("host")),
    };
    let Some(hosts) = hosts.filter(|hosts| !hosts.is_empty()) else {
        return url.hosts(PORT);
    };
    let hosts: Vec<&str> = hosts.split(',').collect();
    if ports.len() != 1 && ports.len() != hosts.len() {
        return Err(SYNTAX.wrong("parameter `port` must have one number, or one for each host"));
    }
    let port = |at: usize| ports.get(at).unwrap_or(&ports[0]);
    let all = hosts.iter().enumerate().map(|(at, host)| match host.starts_with('/') {
        true => Ok(socket(host, *port(at))),
        false => SYNTAX.host(host, *port(at)),
    });
    all.collect()
}

/// The socket in a directory, if the host is one.
fn address(address: Address) -> Result<Address> {
    match &address {
        Address::Tcp(host, port) if host.get(..3).is_some_and(|begin| begin.eq_ignore_ascii_case("%2f")) => {
            Ok(socket(&SYNTAX.decoded(host, "socket")?, *port))
        }
        _ => Ok(address),
    }
}

fn socket(directory: &str, port: u16) -> Address {
    Address::Unix(Path::new(directory).join(format!(".s.PGSQL.{port}")))
}

/// The schema, by any of its names.
fn schema(url: &mut StoreUrl<'_>) -> Result<Option<String>> {
    let schema = url.take("schema").filter(|schema| !schema.is_empty());
    let namespace = Some(url.namespace()?.as_str().to_owned()).filter(|text| !text.is_empty());
    // The first of several is where the server would create the table.
    let path = url.take("search_path").and_then(|path| Some(path.split(',').next()?.trim().to_owned()));
    let path = path.filter(|first| !first.is_empty() && first != "$user" && first != "\"$user\"");
    let mut all = [schema, namespace, path].into_iter().flatten();
    match (all.next(), all.next()) {
        (Some(one), Some(other)) if one != other => {
            Err(SYNTAX
                .wrong("two schemas; `schema`, `namespace` and the first of `search_path` mean the same"))
        }
        (one, _) => Ok(one),
    }
}

fn session(url: &mut StoreUrl<'_>, gaps: &PostgresGaps, tls: Option<&Tls>) -> Result<SessionSettings> {
    for key in ["connect_timeout", "application_name", "options", "target_session_attrs", "channel_binding"] {
        url.fill(key, gaps.get(key));
    }
    if tls.is_some() {
        url.fill("sslnegotiation", gaps.get("sslnegotiation"));
    }
    let seconds = url.take_as("connect_timeout", "a number of seconds", |text| text.trim().parse().ok())?;
    let connect_timeout =
        seconds.filter(|seconds| *seconds > 0).map(|seconds: u32| Duration::from_secs(seconds.into()));
    let expected = "any, read-write or primary, because only a primary has the locks";
    url.take_as("target_session_attrs", expected, |attrs| {
        ["any", "read-write", "primary", "master"].contains(&attrs).then_some(())
    })?;
    let channel_binding =
        url.take_as("channel_binding", "disable, prefer or require", |value| match value {
            "disable" => Some(ChannelBinding::Disable),
            "prefer" => Some(ChannelBinding::Prefer),
            "require" => Some(ChannelBinding::Require),
            _ => None,
        })?;
    let is_direct = url.take_as("sslnegotiation", "postgres or direct", |value| match value {
        "postgres" => Some(false),
        "direct" => Some(true),
        _ => None,
    })?;
    let is_direct = is_direct.unwrap_or(false);
    if is_direct && tls.is_none_or(|tls| tls.mode == TlsMode::Prefer) {
        return Err(SYNTAX.wrong("`sslnegotiation=direct` needs sslmode=require, verify-ca or verify-full"));
    }
    let (application, fallback) = (url.take("application_name"), url.take("fallback_application_name"));
    Ok(SessionSettings {
        connect_timeout,
        keepalive: keepalive(url)?,
        application: application.or(fallback).unwrap_or_default(),
        options: url.take("options"),
        channel_binding: channel_binding.unwrap_or(ChannelBinding::Prefer),
        is_direct,
    })
}

/// Values of libpq that notice a lost server sooner than the default; zero is the system's.
fn keepalive(url: &mut StoreUrl<'_>) -> Result<Keepalive> {
    let mut number = |key, default: u32| -> Result<u32> {
        let given = url.take_as(key, "a number", |text| text.trim().parse::<u32>().ok())?;
        Ok(given.filter(|given| *given > 0).map_or(default, |given| given.min(default)))
    };
    let seconds = |duration: Duration| duration.as_secs() as u32;
    let Keepalive { idle, interval, probes } = Keepalive::DEFAULT;
    Ok(Keepalive {
        idle: Duration::from_secs(number("keepalives_idle", seconds(idle))?.into()),
        interval: Duration::from_secs(number("keepalives_interval", seconds(interval))?.into()),
        probes: number("keepalives_count", probes)?,
    })
}

fn shown(
    addresses: &[Address],
    database: &str,
    schema: Option<&str>,
    tls: Option<&Tls>,
    is_pooled: bool,
) -> Arc<str> {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let places = addresses.iter().map(|address| match address {
        Address::Unix(path) => {
            let text = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
            format!("{}:{}", encoded(&text(path.parent().map(Path::as_os_str))), text(path.extension()))
        }
        Address::Tcp(..) => address.to_string(),
    });
    let places = places.collect::<Vec<_>>().join(",");
    let mut query = Vec::new();
    query.extend(schema.map(|schema| format!("schema={}", encoded(schema))));
    query.extend(Tls::shown(tls));
    query.extend(is_pooled.then(|| "pgbouncer=1".to_owned()));
    let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
    format!("postgres://{places}/{}{query}", database.replace('/', "%2F")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<PostgresTarget> {
        PostgresTarget::read(url, PostgresGaps::default())
    }

    fn filled(url: &str, variables: &[(&str, &str)]) -> PostgresTarget {
        PostgresTarget::read(url, PostgresGaps::of(variables, None))
            .unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    fn password(target: &PostgresTarget) -> Option<String> {
        target.login(&target.addresses[0]).expect("a login").1
    }

    #[test]
    fn a_url_says_where_and_as_whom() {
        let target = read("postgresql://me:p%40ss@a,[::1]:6000/app?schema=My%20locks&pgbouncer=1");
        let target = target.expect("a target");
        let at = [Address::Tcp("a".into(), 5432), Address::Tcp("::1".into(), 6000)];
        assert_eq!((&target.addresses[..], &*target.user, &*target.database), (&at[..], "me", "app"));
        assert_eq!((password(&target).as_deref(), target.is_pooled), (Some("p@ss"), true));
        assert_eq!(target.table(), "\"My locks\".tenure_lock");
        let shown = target.shown();
        assert_eq!(&*shown, "postgres://a:5432,[::1]:6000/app?schema=My%20locks&pgbouncer=1");
        assert_eq!(read(&shown).expect("a target").addresses, target.addresses);
        let socket = read("postgres://me@%2Frun%2Fpg/app").expect("a target");
        assert_eq!(socket.addresses, [Address::Unix("/run/pg/.s.PGSQL.5432".into())]);
        assert_eq!(&*socket.shown(), "postgres://%2Frun%2Fpg:5432/app");
        assert_eq!(read("postgres://h").expect("a target").database, "postgres");
        let target = read("postgres://h?namespace=app").expect("a target");
        assert_eq!(target, read("postgres://h?schema=app").expect("a target"));
        assert_eq!(target, read("postgres://h?search_path=app,public").expect("a target"));
    }

    #[test]
    fn parameters_of_libpq_are_those_of_the_url() {
        for (url, same) in [
            ("postgres:///db?host=/run/postgresql&user=app", "postgres://app@%2Frun%2Fpostgresql/db"),
            ("postgres://u:p@/db?host=/cloudsql/a:b:c", "postgres://u:p@%2Fcloudsql%2Fa%3Ab%3Ac/db"),
            ("postgres://?host=a,::1&port=1,2&dbname=db&user=u&password=p", "postgres://u:p@a:1,[::1]:2/db"),
            ("jdbc:postgresql://h/db?user=u&password=p&ssl=true", "postgres://u:p@h/db?sslmode=verify-full"),
            ("postgresql+asyncpg://u:p@h/db?ssl=require", "postgres://u:p@h/db?sslmode=require"),
            ("postgres://u:p@h/db?pgbouncer=true&connection_limit=1", "postgres://u:p@h/db?pgbouncer=1"),
            ("postgres://h?keepalives_idle=9&target_session_attrs=read-write", "postgres://h"),
            ("postgres://h?sslrootcert=system", "postgres://h?sslmode=verify-full"),
        ] {
            if !url.contains("ssl") || cfg!(feature = "tls") {
                let target = read(url).unwrap_or_else(|error| panic!("{url}: {error}"));
                assert_eq!(target, read(same).expect(same), "{url}");
                let shown = target.shown();
                assert!(!shown.contains("p@") && !shown.contains("password"), "{shown}");
            }
        }
        let target = read("postgres://h?connect_timeout=10&application_name=web&options=-c%20a%3D1");
        let session = target.expect("a target").session;
        assert_eq!(session.connect_timeout, Some(Duration::from_secs(10)));
        assert_eq!((&*session.application, session.options.as_deref()), ("web", Some("-c a=1")));
    }

    #[test]
    fn each_parameter_of_other_programs_is_honoured_or_ignored() {
        let with = |query: &str| {
            read(&format!("postgres://u@h/db?{query}")).unwrap_or_else(|error| panic!("{query}: {error}"))
        };
        let bare = with("");
        for honoured in [
            "connect_timeout=9",
            "keepalives_idle=1",
            "keepalives_count=1",
            "application_name=web",
            "options=-c%20a%3D1",
            "channel_binding=require",
            "host=i",
            "port=9",
            "user=v",
            "dbname=e",
            "password=p",
            "schema=s",
            "search_path=s,public",
            "currentSchema=s",
            "pgbouncer=true",
        ] {
            assert_ne!(with(honoured), bare, "{honoured}");
        }
        // Only a primary has locks, and a longer keepalive would notice a lost one later.
        let primary = ["any", "read-write", "primary"].map(|value| format!("target_session_attrs={value}"));
        for same in primary.iter().map(String::as_str).chain(["keepalives_idle=60", "keepalives_interval=10"])
        {
            assert_eq!(with(same), bare, "{same}");
        }
        if cfg!(feature = "tls") {
            assert_ne!(with("sslmode=require&sslnegotiation=direct"), with("sslmode=require"));
        }
        let named = ["pool_max_conns", "pool_timeout", "connection_limit", "statement_cache_size"];
        let named = named.into_iter().chain(["prepared_statements", "sslcompression"]);
        let listed = SYNTAX.foreign.ignored.iter().flat_map(|(_, names)| names.iter().copied());
        for ignored in named.chain(listed) {
            assert_eq!(with(&format!("{ignored}=1")), bare, "{ignored}");
        }
    }

    #[test]
    fn variables_fill_gaps_only() {
        let all = [
            ("PGHOST", "h"),
            ("PGPORT", "7"),
            ("PGUSER", "u"),
            ("PGPASSWORD", "p"),
            ("PGDATABASE", "d"),
            ("PGAPPNAME", "web"),
        ];
        let target = filled("postgres://", &all);
        assert_eq!((&*target.shown(), &*target.user), ("postgres://h:7/d", "u"));
        assert_eq!((password(&target).as_deref(), &*target.session.application), (Some("p"), "web"));
        let target = filled("postgres://me:own@a:1/app?application_name=job", &all);
        assert_eq!((&*target.shown(), &*target.user), ("postgres://a:1/app", "me"));
        assert_eq!((password(&target).as_deref(), &*target.session.application), (Some("own"), "job"));
        assert!(!format!("{target:?} {:?}", filled("postgres://", &all)).contains("\"p\""));
        let socket = filled("postgres://%2Frun/db", &[("PGSSLMODE", "verify-full")]);
        assert_eq!(socket.tls, None);
    }

    #[test]
    #[cfg(feature = "tls")]
    fn a_variable_sets_the_mode_where_the_url_does_not() {
        let all = [("PGSSLMODE", "require"), ("PGSSLROOTCERT", "/ca")];
        let mode = |url| filled(url, &all).tls.map(|tls| tls.mode);
        assert_eq!(mode("postgres://h"), Some(TlsMode::VerifyCa));
        assert_eq!(mode("postgres://h?sslmode=prefer"), Some(TlsMode::Prefer));
        assert_eq!(mode("postgres://h?sslmode=disable"), None);
        assert_eq!(read("postgres://h").expect("a target").tls.map(|tls| tls.mode), Some(TlsMode::Prefer));
        assert_eq!(read("postgres://localhost").expect("a target").tls, None);
    }

    #[test]
    fn a_service_fills_gaps_before_variables() {
        let home = std::env::temp_dir().join(format!("tenure-service-{}", std::process::id()));
        std::fs::create_dir_all(&home).expect("a directory");
        let text =
            "# ours\n[other]\nhost=no\n[app]\nhost = db1\nport=6\nuser=svc\npassword=hush\n[last]\nuser=no\n";
        std::fs::write(home.join(".pg_service.conf"), text).expect("a file");
        let gaps = || PostgresGaps::of(&[("PGPORT", "9"), ("PGDATABASE", "d")], Some(&home));
        let target = PostgresTarget::read("postgres://?service=app", gaps()).expect("a target");
        assert_eq!((&*target.shown(), &*target.user), ("postgres://db1:6/d", "svc"));
        assert_eq!(password(&target).as_deref(), Some("hush"));
        let error = PostgresTarget::read("postgres://?service=none", gaps()).expect_err("no service");
        assert!(error.to_string().contains("in no service file"), "{error}");
        std::fs::remove_dir_all(&home).expect("our directory");
    }

    #[test]
    fn what_is_wrong_is_named_and_no_password_is_shown() {
        for (url, what) in [
            ("postgres:h", "//"),
            ("postgres://", "host is missing"),
            ("postgres://u:secret/x@h/db", "port"),
            ("postgres://u:sec?ret@h/db", "unknown parameter"),
            ("postgres://u:secret@h/db?sslcrl=f", "unknown parameter `sslcrl`"),
            ("postgres://h/db?password=secret&conect_timeout=1", "did you mean `connect_timeout`?"),
            ("postgres://h/a/b", "`/`"),
            ("postgres://h/?sslmode=on", "sslmode"),
            ("postgres://h/?ca=/x", "verify-full"),
            ("postgres://%2Frun/?sslmode=verify-full", "socket"),
            ("postgres://h/?pgbouncer=maybe", "pgbouncer"),
            ("postgres://h/?schema=a&namespace=b", "`schema`, `namespace`"),
            ("postgres://h/?namespace=", "`namespace` must be 1 to 63"),
            ("postgres://h/?target_session_attrs=standby", "only a primary has the locks"),
            ("postgres://h/?sslnegotiation=direct", "needs sslmode=require"),
            ("postgres://?host=a,b&port=1,2,3", "one for each host"),
            ("postgres://?host=a%20b", "invalid character"),
        ] {
            let error = read(url).expect_err(url);
            let text = error.to_string();
            assert!(error.is_invalid() && text.contains(what), "{url}: {text}");
            assert!(!text.contains("secret") && !text.contains('\n'), "{text}");
        }
    }
}
