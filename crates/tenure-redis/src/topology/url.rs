//! Parsing of store URLs.
//!
//! | URL | servers |
//! |---|---|
//! | `redis://[[user]:password@]host[:port][/database]` | one server |
//! | `redis+unix:///path/to/socket[?db=…&user=…&password=…]` | one server, by its Unix socket |
//! | `redis-sentinel://[[user]:password@]host[:port],…/service[/database][?sentinel-user=…&sentinel-password=…]` | sentinels |
//! | `redis-cluster://[[user]:password@]host[:port],…` | seed nodes of a cluster |
//! | `redis-quorum://[[user]:password@]host[:port],…[/database]` | independent servers |
//!
//! `valkey` is a synonym of `redis`, `+` of `-` in a scheme, and `sentinel` of `redis-sentinel`. With
//! `rediss` or `valkeys` connections use TLS, and the query may have `ca`, `cert` and `key`, paths of PEM
//! files. User, password, service, paths and query values may be percent-encoded. `password-file` and
//! `sentinel-password-file` name a file that holds the password; `user@` then has none.
//!
//! For a lock kept by one server and its replicas, the query may set terms: `acks=N` for servers with
//! replicas, `restart-grace=30s` for a single server or Sentinel.

use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use tenure_core::error::{Error, Result};
use tenure_core::name::Quoted;

use crate::topology::{Access, Address, Sentinels, Target, Terms, Topology};
use tenure_core::net::Tls;
use tenure_core::protocol::lease::{TTL_MAX, TTL_MIN};

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The part before `://`.
struct Scheme {
    form: Form,
    tls: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Server,
    Unix,
    Sentinel,
    Cluster,
    Quorum,
}

impl Scheme {
    fn read(scheme: &str) -> Option<Self> {
        // Other clients use this spelling.
        let scheme = if scheme == "sentinel" { "redis-sentinel" } else { scheme };
        let (base, form) = match scheme.split_once(['-', '+']) {
            Some((base, form)) => (base, Some(form)),
            None => (scheme, None),
        };
        let tls = match base {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return None,
        };
        let form = match form {
            None => Form::Server,
            // A Unix socket cannot be eavesdropped on, so there is no TLS variant.
            Some("unix") if !tls => Form::Unix,
            Some("sentinel") => Form::Sentinel,
            Some("cluster") => Form::Cluster,
            Some("quorum") => Form::Quorum,
            _ => return None,
        };
        Some(Self { form, tls })
    }
}

impl Topology {
    /// Whether this is a scheme of the URLs above.
    pub fn knows(scheme: &str) -> bool {
        Scheme::read(scheme).is_some()
    }

    /// Reads a URL. Errors name the wrong part, but never quote what may contain a password.
    ///
    /// # Errors
    /// `is_invalid`, with the part that is wrong; `is_unsupported` for TLS in a build without it.
    pub fn parse(url: &str) -> Result<Self> {
        let (topology, tls) = Self::read(url)?;
        if tls && !cfg!(feature = "tls") {
            let shown = topology.shown();
            let message = format!(
                "store {shown} cannot be used: this program was built without the feature `tls` of the crate `tenure`"
            );
            return Err(Error::unsupported(&shown, message));
        }
        Ok(topology)
    }

    /// The topology, and whether it uses TLS.
    pub(crate) fn read(url: &str) -> Result<(Self, bool)> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| wrong("it has no scheme: redis://HOST, redis+unix:///PATH"))?;
        let Some(Scheme { form, tls }) = Scheme::read(scheme) else {
            return Err(wrong(&format!("its scheme {} is not known", Quoted(scheme))));
        };
        let (rest, query) = split(rest, '?');
        let mut query = Query::read(query.unwrap_or_default())?;
        if form == Form::Unix {
            return Ok((Self::Server(unix(rest, query)?), false));
        }
        let (authority, path) = split(rest, '/');
        let (user, password, places) = login(authority)?;
        let password_file = query.file("password-file")?;
        check_login(&user, &password, &password_file, "password-file")?;
        let files = if tls { Some(query.tls()?) } else { None };
        let terms = query.terms(form)?;
        let access = |path: Option<&str>| {
            let db = path.filter(|path| !path.is_empty()).map_or(Ok(0), database)?;
            let (tls, provider) = (files, None);
            Ok::<_, Error>(Access { db, user, password, password_file, provider, tls, terms })
        };
        let topology = match form {
            Form::Server | Form::Unix => {
                let [place] = places[..] else {
                    return Err(wrong(
                        "it has several hosts: redis-sentinel://, redis-cluster:// or redis-quorum:// says what they are to each other",
                    ));
                };
                Self::Server(Target { address: host_and_port(place, PORT)?, access: access(path)? })
            }
            Form::Sentinel => {
                let (service, path) = split(path.unwrap_or_default(), '/');
                let service = some(decoded(service, "service")?)
                    .ok_or_else(|| wrong("its service is missing: redis-sentinel://HOST,HOST/SERVICE"))?;
                let master = access(path)?;
                let (user, password, password_file) =
                    query.login("sentinel-user", "sentinel-password", "sentinel-password-file")?;
                let tls = master.tls.clone();
                let access = Access { user, password, password_file, tls, ..Access::default() };
                Self::Sentinel(Sentinels { at: targets(&places, SENTINEL_PORT, &access)?, service, master })
            }
            Form::Cluster => {
                let access = access(path)?;
                if access.db != 0 {
                    return Err(wrong("its database is not 0, and a cluster has no other"));
                }
                Self::Cluster(targets(&places, PORT, &access)?)
            }
            Form::Quorum => Self::Quorum(targets(&places, PORT, &access(path)?)?),
        };
        query.end(scheme)?;
        Ok((topology, tls))
    }
}

impl Target {
    /// Reads the URL of one server.
    ///
    /// # Errors
    /// As [`Topology::parse`], and `is_invalid` for a URL of several servers.
    pub fn parse(url: &str) -> Result<Self> {
        match Topology::parse(url)? {
            Topology::Server(target) => Ok(target),
            _ => Err(wrong("it names several servers, and one is wanted")),
        }
    }
}

/// User, password, and the password file.
type LoginParts = (Option<String>, Option<String>, Option<PathBuf>);

type Login<'a> = (Option<String>, Option<String>, Vec<&'a str>);

/// A user needs a password or a password file, and a login must not have both.
fn check_login(
    user: &Option<String>,
    password: &Option<String>,
    file: &Option<PathBuf>,
    key: &str,
) -> Result<()> {
    match (user, password, file) {
        (_, Some(_), Some(_)) => Err(wrong(&format!("it has a password and a `{key}`"))),
        (Some(_), None, None) => {
            Err(wrong("it has a user but no password: USER:PASSWORD@, :PASSWORD@, or `password-file=FILE`"))
        }
        _ => Ok(()),
    }
}

/// User, password, and the hosts after them.
fn login(authority: &str) -> Result<Login<'_>> {
    let (login, places) = match authority.rsplit_once('@') {
        Some((login, places)) => (Some(login), places),
        None => (None, authority),
    };
    let places: Vec<_> = places.split(',').collect();
    let (user, password) = match login.map(|login| split(login, ':')) {
        None => (None, None),
        // The mistake of giving each host its own login.
        Some((_, Some(password))) if password.contains('@') && password.contains(',') => {
            return Err(wrong(
                "it has an @ after its first host: user and password stand once, before all hosts, and in a password @ is %40",
            ));
        }
        Some((user, password)) => {
            let user = some(decoded(user, "user")?);
            if user.is_some() && password == Some("") {
                return Err(wrong("it has a user, and its password is empty"));
            }
            (user, password.map_or(Ok(None), |password| decoded(password, "password").map(some))?)
        }
    };
    Ok((user, password, places))
}

fn targets(places: &[&str], port: u16, access: &Access) -> Result<Vec<Target>> {
    let mut targets: Vec<Target> = Vec::with_capacity(places.len());
    for place in places {
        let address = host_and_port(place, port)?;
        if targets.iter().any(|target| target.address == address) {
            return Err(wrong("it has one host twice"));
        }
        targets.push(Target { address, access: access.clone() });
    }
    Ok(targets)
}

fn host_and_port(place: &str, default: u16) -> Result<Address> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) =
                rest.split_once(']').ok_or_else(|| wrong("its host has a `[` without a `]`"))?;
            let port = match rest.strip_prefix(':') {
                Some(port) => Some(port),
                None if rest.is_empty() => None,
                None => return Err(wrong("after the `]` of its host comes neither a port nor the end")),
            };
            (host, port)
        }
        None => split(place, ':'),
    };
    if host.is_empty() {
        return Err(wrong("its host is missing"));
    }
    // An `@` or `/` in a password that is not percent-encoded ends up here, so this part is not quoted.
    if !host.chars().all(|char| char.is_alphanumeric() || matches!(char, '.' | '-' | '_' | ':' | '%')) {
        return Err(wrong(
            "its host has a character that no host has; in a user or password, write % and two digits",
        ));
    }
    let port = match port {
        None => default,
        Some(port) => port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| wrong("its port is not a number from 1 to 65535"))?,
    };
    Ok(Address::Tcp(host.to_owned(), port))
}

fn unix(path: &str, mut query: Query) -> Result<Target> {
    if !path.starts_with('/') {
        return Err(wrong("its path is not absolute: redis+unix:///PATH, with three slashes"));
    }
    let path = decoded(path, "path")?;
    let db = query.take("db").map_or(Ok(0), |db| database(&db))?;
    let (user, password, password_file) = query.login("user", "password", "password-file")?;
    let terms = query.terms(Form::Unix)?;
    query.end("redis+unix")?;
    let access = Access { db, user, password, password_file, terms, ..Access::default() };
    Ok(Target { address: Address::Unix(path.into()), access })
}

/// The part after `?`.
struct Query(Vec<(&'static str, String)>);

impl Query {
    /// Every parameter of any URL. Unknown ones are not quoted: they may be part of a password.
    const KEYS: [&str; 12] = [
        "db",
        "user",
        "password",
        "password-file",
        "sentinel-user",
        "sentinel-password",
        "sentinel-password-file",
        "ca",
        "cert",
        "key",
        "acks",
        "restart-grace",
    ];

    fn read(text: &str) -> Result<Self> {
        let mut pairs: Vec<(&'static str, String)> = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let key = match key {
                "pass" => Some("password"),
                key => Self::KEYS.into_iter().find(|known| *known == key),
            };
            let Some(key) = key else {
                return Err(wrong(&format!(
                    "its query has something other than {}; in a password, ? is %3F",
                    Self::KEYS.join(", ")
                )));
            };
            if pairs.iter().any(|(known, _)| *known == key) {
                return Err(wrong(&format!("its query has `{key}` twice")));
            }
            pairs.push((key, decoded(value, key)?));
        }
        Ok(Self(pairs))
    }

    fn take(&mut self, key: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| *known == key)?;
        Some(self.0.swap_remove(at).1)
    }

    fn login(&mut self, user: &str, password: &str, file: &str) -> Result<LoginParts> {
        let login = (self.take(user).and_then(some), self.take(password).and_then(some), self.file(file)?);
        match login {
            (Some(_), None, None) => {
                Err(wrong(&format!("its query has `{user}` but neither `{password}` nor `{file}`")))
            }
            (_, Some(_), Some(_)) => Err(wrong(&format!("its query has `{password}` and `{file}`"))),
            login => Ok(login),
        }
    }

    fn file(&mut self, key: &str) -> Result<Option<PathBuf>> {
        match self.take(key) {
            Some(path) if path.is_empty() => {
                Err(wrong(&format!("its query has `{key}` without the path of a file")))
            }
            path => Ok(path.map(Into::into)),
        }
    }

    fn tls(&mut self) -> Result<Tls> {
        let (ca, cert, key) = (self.file("ca")?, self.file("cert")?, self.file("key")?);
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) => return Err(wrong("its query has `cert` but no `key`")),
            (None, Some(_)) => return Err(wrong("its query has `key` but no `cert`")),
        };
        Ok(Tls { ca, identity })
    }

    /// The terms, if servers of this form support them.
    fn terms(&mut self, form: Form) -> Result<Terms> {
        let (acks, grace) = (self.take("acks"), self.take("restart-grace"));
        if form == Form::Quorum && (acks.is_some() || grace.is_some()) {
            let key = if acks.is_some() { "acks" } else { "restart-grace" };
            return Err(wrong(&format!(
                "its query has `{key}`, and a quorum needs no replicas: a member that restarts does not vote"
            )));
        }
        if form == Form::Cluster && grace.is_some() {
            return Err(wrong(
                "its query has `restart-grace`, and on a cluster a slot that moves would count as a restart",
            ));
        }
        let acks = acks.map_or(Ok(0), |acks| match acks.parse() {
            Ok(acks) if acks > 0 => Ok(acks),
            _ => Err(wrong("its `acks` is not a number of replicas from 1 on, as in `acks=2`")),
        })?;
        let restart_grace = match grace {
            None => None,
            Some(text) => Some(duration(&text).ok_or_else(|| {
                wrong(
                    "its `restart-grace` is not a duration from 50ms to 365 days, as in `restart-grace=30s`",
                )
            })?),
        };
        Ok(Terms { acks, restart_grace })
    }

    /// Fails if a parameter was not consumed.
    fn end(self, scheme: &str) -> Result<()> {
        match self.0.first() {
            None => Ok(()),
            Some(("ca" | "cert" | "key", _)) if !scheme.contains("+unix") => {
                Err(wrong("its query names a certificate or key, and only rediss:// and its like use them"))
            }
            Some((key, _)) => Err(wrong(&format!("its query has `{key}`, which {scheme}:// does not take"))),
        }
    }
}

/// Reads `1500ms`, `30s`, `5m` or `2h`, within the limits of a lease.
fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let ms_per_unit: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    let ms = number.parse::<u64>().ok()?.checked_mul(ms_per_unit)?;
    Some(Duration::from_millis(ms)).filter(|duration| (TTL_MIN..=TTL_MAX).contains(duration))
}

fn database(text: &str) -> Result<u32> {
    text.parse().map_err(|_| wrong("its database is not a number"))
}

/// Splits at the first separator; the second half is `None` without a separator.
fn split(text: &str, at: char) -> (&str, Option<&str>) {
    match text.split_once(at) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

fn decoded(text: &str, part: &str) -> Result<String> {
    let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    let mut behind = text.split('%').skip(1).map(str::as_bytes);
    if behind.any(|digits| !is_digit(digits.first()) || !is_digit(digits.get(1))) {
        return Err(wrong(&format!("its {part} has a % without two hexadecimal digits")));
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(String::from).map_err(|_| wrong(&format!("its {part} is not UTF-8")))
}

fn wrong(what: &str) -> Error {
    Error::invalid(format!("the store's URL cannot be used: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Target {
        match several(url) {
            Topology::Server(target) => target,
            other => panic!("{url}: {other:?}"),
        }
    }

    /// The parsed URL, whether or not this build supports it.
    fn several(url: &str) -> Topology {
        Topology::read(url).unwrap_or_else(|error| panic!("{url}: {error}")).0
    }

    fn login(access: &Access) -> (u32, Option<&str>, Option<&str>) {
        (access.db, access.user.as_deref(), access.password.as_deref())
    }

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.into(), port)
    }

    #[test]
    fn schemes_are_read_as_other_clients_spell_them() {
        for (other, ours) in [
            ("redis+cluster://h", "redis-cluster://h"),
            ("valkey+cluster://h", "redis-cluster://h"),
            ("rediss+cluster://h", "rediss-cluster://h"),
            ("redis+sentinel://h/s", "redis-sentinel://h/s"),
            ("rediss+sentinel://h/s", "rediss-sentinel://h/s"),
            ("sentinel://h/s", "redis-sentinel://h/s"),
            ("valkeys+quorum://a,b,c", "rediss-quorum://a,b,c"),
            ("valkey-unix:///s", "redis+unix:///s"),
        ] {
            assert_eq!(several(other), several(ours), "{other}");
        }
    }

    #[test]
    fn a_url_says_where_which_database_and_who() {
        let target = parsed("redis://ann:p%40ss%2F@example.org:7000/3");
        assert_eq!(target.address, tcp("example.org", 7000));
        assert_eq!(login(&target.access), (3, Some("ann"), Some("p@ss/")));
        assert_eq!(&*target.shown(), "redis://example.org:7000/3");
        let target = parsed("valkey://:secret@[::1]");
        assert_eq!(target.address, tcp("::1", PORT));
        assert_eq!(login(&target.access), (0, None, Some("secret")));
        assert_eq!(&*target.shown(), "redis://[::1]:6379/0");
        let target = parsed("redis+unix:///run/my%20redis.sock?db=2&user=ann&password=a%26b");
        assert_eq!(target.address, Address::Unix("/run/my redis.sock".into()));
        assert_eq!(login(&target.access), (2, Some("ann"), Some("a&b")));
        assert_eq!(&*target.shown(), "redis+unix:///run/my redis.sock?db=2");
        assert_eq!(parsed("redis://h"), parsed("valkey://h:6379/0"));
    }

    #[test]
    fn user_password_and_database_are_for_all_hosts() {
        for url in ["redis-quorum://ann:x@a:1,b,[::1]:3/2", "valkey-quorum://ann:x@a:1,b:6379,[::1]:3/2"] {
            let Topology::Quorum(at) = several(url) else { panic!("{url}") };
            let addresses: Vec<_> = at.iter().map(|target| target.address.clone()).collect();
            assert_eq!(addresses, [tcp("a", 1), tcp("b", 6379), tcp("::1", 3)]);
            assert!(at.iter().all(|target| login(&target.access) == (2, Some("ann"), Some("x"))));
            assert_eq!(&*several(url).shown(), "redis-quorum://a:1,b:6379,[::1]:3/2");
        }
        let Topology::Cluster(at) = several("rediss-cluster://:x@a,b:7/") else { panic!("no cluster") };
        assert_eq!(at.len(), 2);
        let moved = at[0].at(tcp("c", 9));
        assert_eq!((login(&moved.access), &*moved.shown()), ((0, None, Some("x")), "rediss://c:9/0"));
        assert_eq!(&*several("valkeys-cluster://a/0").shown(), "rediss-cluster://a:6379");
    }

    #[test]
    fn sentinels_and_their_master_have_logins_of_their_own() {
        let url = "redis-sentinel://ann:x@a,b:7/my%2Fmaster/3?sentinel-user=guard&sentinel-password=p%26q%3D";
        let Topology::Sentinel(sentinels) = several(url) else { panic!("no sentinels") };
        let addresses: Vec<_> = sentinels.at.iter().map(|target| target.address.clone()).collect();
        assert_eq!(addresses, [tcp("a", 26379), tcp("b", 7)]);
        assert!(sentinels.at.iter().all(|target| login(&target.access) == (0, Some("guard"), Some("p&q="))));
        assert_eq!(login(&sentinels.master), (3, Some("ann"), Some("x")));
        assert_eq!(sentinels.service, "my/master");
        assert_eq!(&*several(url).shown(), "redis-sentinel://a:26379,b:7/my%2Fmaster/3");
        assert_eq!(&*several("valkey-sentinel://a/s").shown(), "redis-sentinel://a:26379/s/0");
        // The login is the master's, not the sentinels'.
        let Topology::Sentinel(sentinels) = several("redis-sentinel://ann:x@a/s") else { panic!("none") };
        assert_eq!(login(&sentinels.at[0].access), (0, None, None));
    }

    #[test]
    fn a_password_may_be_in_a_file() {
        for url in
            ["redis://ann@h?password-file=/run/p%20w", "redis+unix:///s?user=ann&password-file=/run/p%20w"]
        {
            let access = parsed(url).access;
            assert_eq!(login(&access), (0, Some("ann"), None), "{url}");
            assert_eq!(access.password_file.as_deref(), Some("/run/p w".as_ref()), "{url}");
        }
        let Topology::Sentinel(sentinels) =
            several("rediss-sentinel://a/s?password-file=m&sentinel-password-file=s")
        else {
            panic!("no sentinels")
        };
        assert_eq!(sentinels.master.password_file.as_deref(), Some("m".as_ref()));
        assert_eq!(sentinels.at[0].access.password_file.as_deref(), Some("s".as_ref()));
        assert_eq!(&*parsed("redis://h?password-file=x").shown(), "redis://h:6379/0");
    }

    #[test]
    fn certificates_are_named_where_the_talk_is_encrypted() {
        assert_eq!(parsed("redis://h").access.tls, None);
        let tls = Tls::default();
        assert_eq!(parsed("rediss://h").access.tls, Some(tls));
        assert_eq!(parsed("rediss://h").shown(), parsed("valkeys://h").shown());
        let tls = Tls { ca: Some("/a b/ca.pem".into()), identity: Some(("c".into(), "k".into())) };
        let query = "?ca=/a%20b/ca.pem&cert=c&key=k";
        assert_eq!(parsed(&format!("rediss://h:1/2{query}")).access.tls, Some(tls.clone()));
        let Topology::Sentinel(sentinels) = several(&format!("valkeys-sentinel://a,b/s{query}")) else {
            panic!("no sentinels")
        };
        // The TLS settings apply to the master and to all sentinels.
        assert_eq!(sentinels.master.tls, Some(tls));
        assert!(sentinels.at.iter().all(|target| target.access.tls == sentinels.master.tls));
    }

    #[test]
    fn terms_are_those_of_all_clients_and_are_shown() {
        let terms =
            |acks, grace_ms: Option<u64>| Terms { acks, restart_grace: grace_ms.map(Duration::from_millis) };
        for (url, expected, shown) in [
            ("redis://h", terms(0, None), "redis://h:6379/0"),
            ("redis://:x@h?acks=2", terms(2, None), "redis://h:6379/0?acks=2"),
            (
                "rediss://h?restart-grace=1m&ca=f&acks=1",
                terms(1, Some(60_000)),
                "rediss://h:6379/0?acks=1&restart-grace=60s",
            ),
            (
                "redis+unix:///s?restart-grace=50ms",
                terms(0, Some(50)),
                "redis+unix:///s?db=0&restart-grace=50ms",
            ),
            ("redis+unix:///s?db=1&acks=3", terms(3, None), "redis+unix:///s?db=1&acks=3"),
        ] {
            let target = parsed(url);
            assert_eq!((target.access.terms, &*target.shown()), (expected, shown), "{url}");
            assert_eq!(parsed(shown).access.terms, expected, "{shown}");
        }
        let Topology::Sentinel(sentinels) = several("redis-sentinel://a/s?restart-grace=1500ms&acks=2")
        else {
            panic!("no sentinels")
        };
        assert_eq!(sentinels.master.terms, terms(2, Some(1_500)));
        let shown = Topology::Sentinel(sentinels).shown();
        assert_eq!(&*shown, "redis-sentinel://a:26379/s/0?acks=2&restart-grace=1500ms");
        let cluster = several("redis-cluster://a,b?acks=1");
        let Topology::Cluster(seeds) = &cluster else { panic!("no cluster") };
        assert!(seeds.iter().all(|seed| seed.access.terms == terms(1, None)));
        assert_eq!(&*cluster.shown(), "redis-cluster://a:6379,b:6379?acks=1");
    }

    #[test]
    fn a_program_built_without_encryption_says_so() {
        for url in ["rediss://h", "valkeys-quorum://a,b,c"] {
            let unsupported = Topology::parse(url).is_err_and(|error| error.is_unsupported());
            assert_eq!(unsupported, !cfg!(feature = "tls"), "{url}");
        }
        assert!(Topology::parse("redis://h").is_ok());
    }

    #[test]
    fn a_wrong_url_says_which_part_is_wrong() {
        for (url, part) in [
            ("localhost", "scheme"),
            ("http://localhost", "scheme"),
            ("redis-ring://a", "scheme"),
            ("rediss+unix:///s", "scheme"),
            ("redis://", "host"),
            ("redis://:6379", "host"),
            ("redis://a b", "host"),
            ("redis://[::1", "host"),
            ("redis://[::1]x", "host"),
            ("redis://a,b", "several hosts"),
            ("redis://h:port", "port"),
            ("redis://h:0", "port"),
            ("redis://h:65536", "port"),
            ("redis://h/first", "database"),
            ("redis://h/-1", "database"),
            ("redis://h/1/2", "database"),
            ("redis://h?db=1", "`db`"),
            ("redis://ann@h", "password"),
            ("redis://ann:@h", "password"),
            ("redis://:%4@h", "password"),
            ("redis://:x@h?password-file=f", "`password-file`"),
            ("redis://h?password-file=", "`password-file`"),
            ("redis+unix:///s?password=x&password-file=f", "`password-file`"),
            ("redis://%ff:x@h", "user"),
            ("redis+unix://run/redis.sock", "path"),
            ("redis+unix:///s?database=1", "query"),
            ("redis+unix:///s?ca=x", "`ca`"),
            ("redis+unix:///s?user=ann", "password"),
            ("redis+unix:///s?db=1&db=2", "`db` twice"),
            ("redis://h?ca=x", "rediss://"),
            ("rediss://h?ca=", "`ca`"),
            ("rediss://h?cert=c", "`key`"),
            ("rediss://h?key=k", "`cert`"),
            ("rediss://h?sentinel-user=k", "`sentinel-user`"),
            ("redis-sentinel://a,b", "service"),
            ("redis-sentinel://a,b/", "service"),
            ("redis-sentinel://a,b/s/x", "database"),
            ("redis-sentinel://a,,b/s", "host"),
            ("redis-sentinel://a,a:26379/s", "twice"),
            ("redis-sentinel://a/s?sentinel-user=x", "`sentinel-password`"),
            ("redis://h?acks=0", "`acks=2`"),
            ("redis://h?acks=all", "`acks=2`"),
            ("redis://h?acks=-1", "`acks=2`"),
            ("redis://h?acks", "`acks=2`"),
            ("redis://h?acks=1&acks=1", "`acks` twice"),
            ("redis://h?restart-grace=1s&restart-grace=1s", "`restart-grace` twice"),
            ("redis://h?restart-grace=0s", "50ms"),
            ("redis://h?restart-grace=49ms", "50ms"),
            ("redis://h?restart-grace=8761h", "365 days"),
            ("redis://h?restart-grace=99999999999999999999h", "365 days"),
            ("redis://h?restart-grace=30", "`restart-grace=30s`"),
            ("redis://h?restart-grace=s", "`restart-grace=30s`"),
            ("redis-cluster://a,b?restart-grace=1s", "slot"),
            ("redis-quorum://a,b,c?acks=1", "`acks`"),
            ("redis-quorum://a,b,c?restart-grace=1s", "`restart-grace`"),
            ("redis-cluster://a,b/1", "database"),
            ("redis-cluster://a,b:", "port"),
            ("redis-quorum://a,b,A b", "host"),
            ("redis-quorum://:x@a,:x@b", "once"),
        ] {
            let error = Topology::parse(url).expect_err(url);
            assert!(error.is_invalid() && error.to_string().contains(part), "{url}: {error}");
        }
        assert!(Target::parse("redis-quorum://a,b,c").expect_err("one").is_invalid());
    }

    #[test]
    fn a_password_is_never_shown() {
        for url in [
            "redis://ann:hush@h/1",
            "redis+unix:///s?user=ann&password=hush",
            "redis-quorum://ann:hush@a,b",
            "rediss-cluster://ann:hush@a,b",
            "redis-sentinel://ann:hush@a,b/s?sentinel-password=hush",
        ] {
            let topology = several(url);
            assert!(!format!("{topology:?} {topology:#?} {}", topology.shown()).contains("hush"), "{url}");
        }
        assert!(!format!("{:?}", parsed("redis://:hush@h").access).contains("hush"));
        for url in [
            "redis://:hu/sh@h",
            "redis://:hu?sh@h",
            "redis://:hu#sh@h:x",
            "redis://ann:hu@sh@h:x/",
            "redis-quorum://:hu@a,:sh@b",
            "redis-sentinel://a/s?sentinel-user=hu&sentinel-passwort=hush",
            "redis-sentinel://a/s?sentinel-password=hush%",
            "redis://h?password=hush",
            "hush",
        ] {
            let error = Topology::parse(url).expect_err(url).to_string();
            assert!(!error.contains("hu") && !error.contains("sh@"), "{url}: {error}");
        }
    }
}
