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
//! `rediss` or `valkeys` connections use TLS, and the query may have `sslmode`, `ca`, `cert` and `key`, paths of
//! PEM files. User, password, service, paths and query values may be percent-encoded. `password-file` and
//! `sentinel-password-file` name a file that holds the password; `user@` then has none.
//!
//! For a lock kept by one server and its replicas, the query may set guarantees: `acks=N` for servers with
//! replicas, `restart-grace=30s` for a single server or Sentinel. `namespace=app:` begins all keys.

use std::time::Duration;

use tenure_core::error::Result;
use tenure_core::net::Address;
use tenure_core::net::url::{ForeignNames, StoreUrl, Syntax, require_tls};
use tenure_core::protocol::lease::{TTL_MAX, TTL_MIN};

use crate::topology::{Access, Guarantees, Sentinels, Target, Topology};

const SYNTAX: Syntax = Syntax {
    server: "Redis",
    form: "redis://HOST",
    tls: "rediss://",
    needs_user: false,
    needs_password: true,
    parameters: &[
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
        "namespace",
    ],
    foreign: ForeignNames {
        drivers: &[],
        aliases: &[("username", "user"), ("pass", "password"), ("database", "db")],
        ignored: &[
            (
                "redis-py",
                &[
                    "protocol",
                    "socket_timeout",
                    "socket_connect_timeout",
                    "socket_keepalive",
                    "socket_read_size",
                    "retry_on_timeout",
                    "retry_on_error",
                    "max_connections",
                    "health_check_interval",
                    "client_name",
                    "lib_name",
                    "lib_version",
                    "decode_responses",
                    "encoding",
                    "encoding_errors",
                    "timeout",
                    "single_connection_client",
                ],
            ),
            (
                "go-redis",
                &[
                    "dial_timeout",
                    "read_timeout",
                    "write_timeout",
                    "conn_max_idle_time",
                    "conn_max_lifetime",
                    "idle_timeout",
                    "idle_check_frequency",
                    "max_conn_age",
                    "max_idle_conns",
                    "max_active_conns",
                    "min_idle_conns",
                    "max_retries",
                    "min_retry_backoff",
                    "max_retry_backoff",
                    "max_redirects",
                    "pool_fifo",
                    "pool_size",
                    "pool_timeout",
                    "context_timeout_enabled",
                    "route_by_latency",
                    "route_randomly",
                    "read_only",
                ],
            ),
            (
                "ioredis",
                &[
                    "family",
                    "keepAlive",
                    "connectTimeout",
                    "commandTimeout",
                    "maxRetriesPerRequest",
                    "lazyConnect",
                    "enableReadyCheck",
                    "allowUsernameInURI",
                ],
            ),
            ("Lettuce", &["clientName", "libraryName", "libraryVersion"]),
        ],
    },
};

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
        if tls {
            require_tls(&topology.shown())?;
        }
        Ok(topology)
    }

    /// The topology, and whether it uses TLS.
    pub(crate) fn read(url: &str) -> Result<(Self, bool)> {
        let mut url = SYNTAX.parse(url)?;
        let Scheme { form, tls } = Scheme::read(url.scheme()).ok_or_else(|| url.unknown_scheme())?;
        if form == Form::Unix {
            return Ok((Self::Server(unix(url)?), false));
        }
        let login = url.login()?;
        let encryption = if tls { Some(url.tls_of_scheme()?) } else { None };
        let (guarantees, namespace) = (guarantees(&mut url, form)?, url.key_namespace()?);
        let (service, path) = match form {
            Form::Sentinel => url.path().split_once('/').unwrap_or((url.path(), "")),
            _ => ("", url.path()),
        };
        let named = url.take("db");
        if named.as_ref().is_some_and(|named| !path.is_empty() && named != path) {
            return Err(SYNTAX.wrong("two databases, one in the path and one in `db`"));
        }
        let path = named.as_deref().unwrap_or(path);
        let db = if path.is_empty() { 0 } else { database(path)? };
        let access = Access { db, login, provider: None, tls: encryption, guarantees, namespace };
        let topology = match form {
            Form::Server | Form::Unix => {
                let [address] = &url.hosts(PORT)?[..] else {
                    return Err(SYNTAX.wrong(
                        "several hosts, expected redis-sentinel://, redis-cluster:// or redis-quorum://",
                    ));
                };
                Self::Server(Target { address: address.clone(), access })
            }
            Form::Sentinel => {
                let service = SYNTAX.decoded(service, "service")?;
                if service.is_empty() {
                    return Err(
                        SYNTAX.wrong("the service is missing, expected redis-sentinel://HOST/SERVICE")
                    );
                }
                let login =
                    url.query_login("sentinel-user", "sentinel-password", "sentinel-password-file")?;
                let sentinel = Access { login, tls: access.tls.clone(), ..Access::default() };
                let at = targets(&url, SENTINEL_PORT, &sentinel)?;
                Self::Sentinel(Sentinels { at, service, master: access })
            }
            Form::Cluster if access.db != 0 => {
                return Err(SYNTAX.wrong("a cluster has only database 0"));
            }
            Form::Cluster => Self::Cluster(targets(&url, PORT, &access)?),
            Form::Quorum => Self::Quorum(targets(&url, PORT, &access)?),
        };
        url.end()?;
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
            _ => Err(SYNTAX.wrong("several servers, expected one")),
        }
    }
}

fn targets(url: &StoreUrl<'_>, port: u16, access: &Access) -> Result<Vec<Target>> {
    let addresses = url.hosts(port)?.into_iter();
    Ok(addresses.map(|address| Target { address, access: access.clone() }).collect())
}

fn unix(mut url: StoreUrl<'_>) -> Result<Target> {
    let path = url.local_path().ok_or_else(|| {
        SYNTAX.wrong("the path is not absolute, expected redis+unix:///PATH with three slashes")
    })?;
    let path = format!("/{}", SYNTAX.decoded(path, "path")?);
    let db = url.take("db").map_or(Ok(0), |db| database(&db))?;
    let login = url.query_login("user", "password", "password-file")?;
    let (guarantees, namespace) = (guarantees(&mut url, Form::Unix)?, url.key_namespace()?);
    url.end()?;
    let access = Access { db, login, guarantees, namespace, ..Access::default() };
    Ok(Target { address: Address::Unix(path.into()), access })
}

/// The guarantees, if servers of this form support them.
fn guarantees(url: &mut StoreUrl<'_>, form: Form) -> Result<Guarantees> {
    let acks = url.take_as("acks", "a number of replicas, at least 1", |acks| {
        acks.parse().ok().filter(|acks| *acks > 0)
    })?;
    let restart_grace = url.take_as("restart-grace", "from 50ms to 365 days, in ms, s, m or h", duration)?;
    let reason = match form {
        Form::Quorum if acks.is_some() => "`acks`: a quorum needs no replicas",
        Form::Quorum if restart_grace.is_some() => "`restart-grace`: a member that restarts does not vote",
        Form::Cluster if restart_grace.is_some() => {
            "`restart-grace`: a slot that moves would count as a restart"
        }
        _ => return Ok(Guarantees { acks: acks.unwrap_or(0), restart_grace }),
    };
    Err(SYNTAX.wrong(&format!("{}:// does not take {reason}", url.scheme())))
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
    text.parse().map_err(|_| SYNTAX.wrong("the database must be a number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::net::Tls;
    use tenure_core::net::url::{Login, Password};

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
        let Login { user, password } = &access.login;
        let text = password.as_ref().and_then(|password| match password {
            Password::Text(text) => Some(&**text),
            Password::File(_) => None,
        });
        (access.db, user.as_deref(), text)
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
    fn each_parameter_of_other_programs_is_honoured_or_ignored() {
        for (query, same) in [
            ("db=2", "redis://h/2"),
            ("database=2", "redis://h/2"),
            ("username=ann&password=x", "redis://ann:x@h"),
            ("user=ann&pass=x", "redis://ann:x@h"),
        ] {
            assert_eq!(parsed(&format!("redis://h?{query}")), parsed(same), "{query}");
        }
        let named = ["socket_timeout", "protocol", "health_check_interval", "decode_responses"];
        let named = named.into_iter().chain(["max_connections", "retry_on_timeout"]);
        let listed = SYNTAX.foreign.ignored.iter().flat_map(|(_, names)| names.iter().copied());
        for ignored in named.chain(listed) {
            assert_eq!(parsed(&format!("redis://h?{ignored}=1")), parsed("redis://h"), "{ignored}");
        }
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
        let file = |path: &str| Some(Password::File(path.into()));
        for url in
            ["redis://ann@h?password-file=/run/p%20w", "redis+unix:///s?user=ann&password-file=/run/p%20w"]
        {
            let access = parsed(url).access;
            assert_eq!(login(&access), (0, Some("ann"), None), "{url}");
            assert_eq!(access.login.password, file("/run/p w"), "{url}");
        }
        let Topology::Sentinel(sentinels) =
            several("rediss-sentinel://a/s?password-file=m&sentinel-password-file=s")
        else {
            panic!("no sentinels")
        };
        assert_eq!(sentinels.master.login.password, file("m"));
        assert_eq!(sentinels.at[0].access.login.password, file("s"));
        assert_eq!(&*parsed("redis://h?password-file=x").shown(), "redis://h:6379/0");
    }

    #[test]
    fn certificates_are_named_where_the_talk_is_encrypted() {
        assert_eq!(parsed("redis://h").access.tls, None);
        let tls = Tls::default();
        assert_eq!(parsed("rediss://h").access.tls, Some(tls));
        assert_eq!(parsed("rediss://h").shown(), parsed("valkeys://h").shown());
        let tls = Tls {
            ca: Some("/a b/ca.pem".into()),
            identity: Some(("c".into(), "k".into())),
            ..Tls::default()
        };
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
        let guarantees = |acks, grace_ms: Option<u64>| Guarantees {
            acks,
            restart_grace: grace_ms.map(Duration::from_millis),
        };
        for (url, expected, shown) in [
            ("redis://h", guarantees(0, None), "redis://h:6379/0"),
            ("redis://:x@h?acks=2", guarantees(2, None), "redis://h:6379/0?acks=2"),
            (
                "rediss://h?restart-grace=1m&ca=f&acks=1",
                guarantees(1, Some(60_000)),
                "rediss://h:6379/0?acks=1&restart-grace=60s",
            ),
            (
                "redis+unix:///s?restart-grace=50ms",
                guarantees(0, Some(50)),
                "redis+unix:///s?db=0&restart-grace=50ms",
            ),
            ("redis+unix:///s?db=1&acks=3", guarantees(3, None), "redis+unix:///s?db=1&acks=3"),
        ] {
            let target = parsed(url);
            assert_eq!((target.access.guarantees, &*target.shown()), (expected, shown), "{url}");
            assert_eq!(parsed(shown).access.guarantees, expected, "{shown}");
        }
        let Topology::Sentinel(sentinels) = several("redis-sentinel://a/s?restart-grace=1500ms&acks=2")
        else {
            panic!("no sentinels")
        };
        assert_eq!(sentinels.master.guarantees, guarantees(2, Some(1_500)));
        let shown = Topology::Sentinel(sentinels).shown();
        assert_eq!(&*shown, "redis-sentinel://a:26379/s/0?acks=2&restart-grace=1500ms");
        let cluster = several("redis-cluster://a,b?acks=1");
        let Topology::Cluster(seeds) = &cluster else { panic!("no cluster") };
        assert!(seeds.iter().all(|seed| seed.access.guarantees == guarantees(1, None)));
        assert_eq!(&*cluster.shown(), "redis-cluster://a:6379,b:6379?acks=1");
    }

    #[test]
    fn a_namespace_is_that_of_all_servers_and_is_shown() {
        for shown in [
            "redis://h:1/0?namespace=app:",
            "redis://h:1/2?acks=1&namespace=team/app.",
            "redis+unix:///s?db=0&namespace=app:",
            "redis-sentinel://a:1/s/0?namespace=app:",
            "redis-cluster://a:1,b:1?acks=1&namespace=app:",
            "redis-quorum://a:1,b:1,c:1/0?namespace=app:",
        ] {
            let topology = several(shown);
            assert_eq!(&*topology.shown(), shown);
            let namespace = topology.access().namespace;
            assert!(shown.ends_with(&format!("namespace={}", namespace.as_str())), "{shown}");
            if let Topology::Cluster(at) | Topology::Quorum(at) = &topology {
                assert!(at.iter().all(|target| target.access.namespace == namespace), "{shown}");
            }
        }
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
            ("redis://a,b", "several hosts"),
            ("redis://h/first", "database"),
            ("redis://h/-1", "database"),
            ("redis://h/1/2", "database"),
            ("redis://h/2?db=1", "`db`"),
            ("redis://ann@h", "password"),
            ("redis+unix:///s?password=x&password-file=f", "`password-file`"),
            ("redis+unix://run/redis.sock", "path"),
            ("redis+unix:///s?datbase=1", "did you mean `database`?"),
            ("redis://h?ssl_cert_reqs=none", "rediss://"),
            ("rediss://h?sslmode=prefer", "always encrypted"),
            ("redis://h?prefix=a:", "unknown parameter `prefix`"),
            ("redis+unix:///s?ca=x", "`ca`"),
            ("redis+unix:///s?user=ann", "password"),
            ("redis://h?ca=x", "rediss://"),
            ("rediss://h?sentinel-user=k", "`sentinel-user`"),
            ("redis-sentinel://a,b", "service"),
            ("redis-sentinel://a,b/", "service"),
            ("redis-sentinel://a,b/s/x", "database"),
            ("redis-sentinel://a/s?sentinel-user=x", "`sentinel-password`"),
            ("redis://h?acks=0", "at least 1"),
            ("redis://h?acks=all", "at least 1"),
            ("redis://h?namespace=", "1 to 63 ASCII letters"),
            ("redis+unix:///s?namespace={a}:", "1 to 63 ASCII letters"),
            ("redis-quorum://a,b,c?namespace=app", "end with one of"),
            ("redis://h?acks=-1", "at least 1"),
            ("redis://h?acks", "at least 1"),
            ("redis:h", "expected redis://HOST"),
            ("rediss:h", "expected rediss://HOST"),
            ("redis://h?restart-grace=0s", "50ms"),
            ("redis://h?restart-grace=49ms", "50ms"),
            ("redis://h?restart-grace=8761h", "365 days"),
            ("redis://h?restart-grace=99999999999999999999h", "365 days"),
            ("redis://h?restart-grace=30", "ms, s, m or h"),
            ("redis://h?restart-grace=s", "ms, s, m or h"),
            ("redis-cluster://a,b?restart-grace=1s", "slot"),
            ("redis-quorum://a,b,c?acks=1", "`acks`"),
            ("redis-quorum://a,b,c?restart-grace=1s", "`restart-grace`"),
            ("redis-cluster://a,b/1", "database"),
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
            "redis://h?password=hush",
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
            "redis://ann:hush@h?tokens=1",
            "hush",
        ] {
            let error = Topology::parse(url).expect_err(url).to_string();
            assert!(!error.contains("hu") && !error.contains("sh@"), "{url}: {error}");
        }
    }
}
