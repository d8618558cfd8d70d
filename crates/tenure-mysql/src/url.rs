//! Parses the URL: servers, credentials and options.
//!
//! `mysql://user[:password]@host[:port][,host[:port]…]/database[?…]`, or `mariadb://`. A host that begins with
//! `/`, percent-encoded, is the path of a socket. The query may have `password-file`, `sslmode`, `ca`, `cert`,
//! `key`, and parameters of MySQL's programs. `gaps` knows what the URL leaves out.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::gaps::MysqlGaps;
use super::login::ServerKey;
use super::parameters;
use tenure_core::credentials::Provider;
use tenure_core::error::Result;
use tenure_core::net::url::{Login, Password, StoreUrl, Syntax, require_tls, truth};
use tenure_core::net::{Address, Tls};
use tenure_core::store::Failure;

pub(super) const SYNTAX: Syntax = Syntax {
    server: "MySQL",
    form: "mysql://USER@HOST/DATABASE, or mysql://USER@%2Frun%2Fmysqld%2Fmysqld.sock/DATABASE for this socket",
    tls: "sslmode=verify-full",
    needs_user: false,
    needs_password: false,
    parameters: parameters::OURS,
    foreign: parameters::FOREIGN,
};
const PORT: u16 = 3306;

/// The servers, one of which takes writes, and how to log in.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct MysqlTarget {
    pub(super) addresses: Vec<Address>,
    login: Login,
    /// Called at each dial instead of using the login.
    provider: Option<Provider>,
    user: String,
    pub(super) database: String,
    pub(super) tls: Option<Tls>,
    pub(super) key: ServerKey,
    pub(super) connect_timeout: Option<Duration>,
    shown: Arc<str>,
}

impl MysqlTarget {
    /// Parses a URL. Errors name the part that is wrong, but never quote what may contain a password.
    pub(super) fn parse(url: &str) -> Result<Self> {
        Self::read(url, &MysqlGaps::of_process())
    }

    fn read(url: &str, gaps: &MysqlGaps) -> Result<Self> {
        let mut url = SYNTAX.parse(url)?;
        if !super::takes(url.scheme()) {
            return Err(url.unknown_scheme());
        }
        let Login { user, password } = url.login()?;
        let Some(user) = user.or_else(|| gaps.get("user")) else {
            return Err(SYNTAX.wrong(&format!("a user is missing, expected {}", SYNTAX.form)));
        };
        let password = password.or_else(|| gaps.get("password").map(Password::Text));
        let login = Login { user: Some(user.clone()), password };
        let addresses = addresses(&mut url, gaps)?;
        let database = SYNTAX.decoded(url.path(), "database")?;
        if database.is_empty() || database.contains('/') {
            return Err(SYNTAX.wrong(&format!("a database is missing, expected {}", SYNTAX.form)));
        }
        let tls = url.tls_to(&addresses, &|key| gaps.get(key))?;
        let key = server_key(&mut url, gaps)?;
        let connect_timeout = connect_timeout(&mut url)?;
        url.end()?;
        let shown = shown(&addresses, &database, tls.as_ref());
        if tls.is_some() {
            require_tls(&shown)?;
        }
        Ok(Self { addresses, login, provider: None, user, database, tls, key, connect_timeout, shown })
    }

    /// Has `provider` supply the login at each dial. `false` if there is a password, too.
    pub(super) fn ask_for_login(&mut self, provider: Provider) -> bool {
        self.provider = Some(provider);
        self.login.password.is_none()
    }

    /// User and password.
    pub(super) fn login(&self) -> Result<(String, String), Failure> {
        match &self.provider {
            Some(provider) => {
                let told = (provider.0)().map_err(Failure::NotSent)?;
                Ok((told.user.unwrap_or_else(|| self.user.clone()), told.password))
            }
            None => Ok((self.user.clone(), self.login.password()?.unwrap_or_default())),
        }
    }

    /// The URL without credentials.
    pub(super) fn shown(&self) -> Arc<str> {
        Arc::clone(&self.shown)
    }
}

impl fmt::Debug for MysqlTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MysqlTarget").field(&self.shown).finish()
    }
}

/// The servers before the path, or that of `socket`, or of `host` and `port`.
fn addresses(url: &mut StoreUrl<'_>, gaps: &MysqlGaps) -> Result<Vec<Address>> {
    let port =
        url.take_as("port", "a number from 1 to 65535", |port| port.parse().ok().filter(|port| *port != 0))?;
    let port = port.or_else(|| gaps.get("port")?.parse().ok()).unwrap_or(PORT);
    let (socket, host) = (url.take("socket"), url.take("host"));
    match (socket, host) {
        (Some(socket), _) => Ok(vec![Address::Unix(socket.into())]),
        (None, Some(host)) => host.split(',').map(|host| SYNTAX.host(host, port)).collect(),
        (None, None) if url.has_hosts() => url.hosts(port)?.into_iter().map(address).collect(),
        (None, None) => match (gaps.get("host"), gaps.get("socket")) {
            (Some(host), _) => Ok(vec![SYNTAX.host(&host, port)?]),
            (None, Some(socket)) => Ok(vec![Address::Unix(socket.into())]),
            (None, None) => url.hosts(port),
        },
    }
}

fn server_key(url: &mut StoreUrl<'_>, gaps: &MysqlGaps) -> Result<ServerKey> {
    url.fill("server-public-key", gaps.get("server-public-key"));
    let is_retrieved = url.take_as("allowPublicKeyRetrieval", "true or false", truth)? == Some(true);
    Ok(match url.take("server-public-key") {
        Some(file) => ServerKey::File(file.into()),
        None if is_retrieved => ServerKey::Retrieved,
        None => ServerKey::Unknown,
    })
}

/// In seconds, as MySQL's programs have it, or in milliseconds, as Connector/J and mysql2 do.
fn connect_timeout(url: &mut StoreUrl<'_>) -> Result<Option<Duration>> {
    let seconds = url.take_as("connect_timeout", "a number of seconds", |text| text.parse().ok())?;
    let millis = url.take_as("connectTimeout", "a number of milliseconds", |text| text.parse().ok())?;
    let limit = seconds.map(Duration::from_secs).or(millis.map(Duration::from_millis));
    Ok(limit.filter(|limit| !limit.is_zero()))
}

/// The database of a store, by its [shown](MysqlTarget::shown) URL.
#[cfg(feature = "sqlx")]
pub(super) fn database_of(shown: &str) -> Option<String> {
    let (scheme, rest) = shown.split_once("://")?;
    let path = rest.split('?').next()?.split_once('/')?.1;
    if super::takes(scheme) { SYNTAX.decoded(path, "database").ok() } else { None }
}

fn shown(addresses: &[Address], database: &str, tls: Option<&Tls>) -> Arc<str> {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let places = addresses.iter().map(|address| match address {
        Address::Unix(path) => encoded(&path.to_string_lossy()),
        Address::Tcp(..) => address.to_string(),
    });
    let places = places.collect::<Vec<_>>().join(",");
    let query = Tls::shown(tls).map_or_else(String::new, |mode| format!("?{mode}"));
    let database = database.replace('%', "%25").replace('/', "%2F").replace('?', "%3F");
    format!("mysql://{places}/{database}{query}").into()
}

/// The socket at a path, if the host is one.
fn address(address: Address) -> Result<Address> {
    match &address {
        Address::Tcp(host, _) if host.get(..3).is_some_and(|begin| begin.eq_ignore_ascii_case("%2f")) => {
            Ok(Address::Unix(SYNTAX.decoded(host, "socket")?.into()))
        }
        _ => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<MysqlTarget> {
        MysqlTarget::read(url, &MysqlGaps::default())
    }

    #[test]
    fn urls_of_other_programs_name_the_same_server() {
        for (url, same) in [
            ("mysql+pymysql://u:p@/db?unix_socket=/cloudsql/a:b:c", "mysql://u:p@%2Fcloudsql%2Fa%3Ab%3Ac/db"),
            ("mysql://u:p@localhost/db?socket=/run/s&connection_limit=1", "mysql://u:p@%2Frun%2Fs/db"),
            ("jdbc:mysql://h:1/db?user=u&password=p&useSSL=false", "mysql://u:p@h:1/db?sslmode=disable"),
            ("mysql://u:p@h/db?charset=utf8mb4&parseTime=true&loc=Local", "mysql://u:p@h/db"),
            ("mysql://u@h/db?connectTimeout=4000", "mysql://u@h/db?connect_timeout=4"),
            ("mysql://u@h/db?serverRSAPublicKeyFile=/k", "mysql://u@h/db?server-public-key=/k"),
        ] {
            let target = read(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!(target, read(same).expect(same), "{url}");
            assert!(!format!("{target:?} {}", target.shown()).contains("p@"), "{url}");
        }
    }

    #[test]
    fn each_parameter_of_other_programs_is_honoured_or_ignored() {
        let with = |query: &str| {
            read(&format!("mysql://u@h/db?{query}")).unwrap_or_else(|error| panic!("{query}: {error}"))
        };
        let bare = with("");
        for honoured in [
            "connectTimeout=9000",
            "connect_timeout=9",
            "socket=/s",
            "allowPublicKeyRetrieval=true",
            "server-public-key=/k",
            "host=i",
            "port=9",
            "user=v",
            "password=p",
        ] {
            assert_ne!(with(honoured), bare, "{honoured}");
        }
        let listed = SYNTAX.foreign.ignored.iter().flat_map(|(_, names)| names.iter().copied());
        for ignored in ["charset", "parseTime"].into_iter().chain(listed) {
            assert_eq!(with(&format!("{ignored}=1")), bare, "{ignored}");
        }
    }

    #[test]
    fn an_option_file_fills_gaps_only() {
        let gaps = MysqlGaps::of(
            "[client]\nuser=me\npassword=hush\nhost=db1\nport=7\nssl-mode=VERIFY_CA\nssl-ca=/ca\n",
        );
        let filled = MysqlTarget::read("mysql:///app?sslmode=disable", &gaps).expect("a target");
        assert_eq!(&*filled.shown(), "mysql://db1:7/app");
        assert_eq!(filled.login().expect("a login"), ("me".to_owned(), "hush".to_owned()));
        let own = MysqlTarget::read("mysql://you:own@h:1/app?sslmode=disable", &gaps).expect("a target");
        assert_eq!((&*own.shown(), own.login().expect("a login").1.as_str()), ("mysql://h:1/app", "own"));
        if cfg!(feature = "tls") {
            let checked = MysqlTarget::read("mysql://h/app", &gaps).expect("a target");
            assert_eq!(&*checked.shown(), "mysql://h:7/app?sslmode=verify-ca");
        }
    }

    #[test]
    fn what_is_wrong_is_named_without_the_password() {
        for (url, what) in [
            ("mysql://h/app", "a user is missing"),
            ("mysql://u:secret@h", "a database is missing"),
            ("mysql://u:secret@h/app?charst=utf8", "unknown parameter `charst`"),
            ("mysql://u:secret@h/app?allowPublicKeyRetrival=true", "did you mean `allowPublicKeyRetrieval`?"),
            ("mysql://u:secret@h/app?ssl-mode=on", "`ssl-mode` must be"),
            ("mysql://u@h/app?password=secret&connectTimeout=soon", "milliseconds"),
            ("mysql+psycopg://u:secret@h/app", "unknown scheme"),
        ] {
            let error = read(url).expect_err(url).to_string();
            assert!(error.contains(what) && !error.contains("secret"), "{url}: {error}");
        }
    }
}
