//! URLs as platforms print them, on local servers that play the platforms: TLS with a private authority, with a
//! certificate that signs itself or names another host, and a pooler in transaction mode. `0.0.0.0` stands for a
//! host in a network, `book/operate/urls.md` has the table.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "these servers are not part of the library, and take real time"
)]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tenure::{Credentials, Locks, block_on};
use tenure_testkit::servers::{
    Authority, Certificate, Cluster, Config, MariaDb, PgBouncer, Postgres, Server, with_query,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::common::said;
use crate::mysql::login::greet;
use crate::postgres::errors::says;
use crate::postgres::{SERVER, schema};

const PASSWORD: &str = "pa55-of-app";

/// A platform as its documentation prints it. `USER:PW` and `HOST` are replaced.
type Shape = (&'static str, &'static str);

/// Connects with each of these URLs, and takes and releases a lock there.
fn connects(shapes: &[Shape], replace: impl Fn(&str) -> String) {
    for (platform, shape) in shapes {
        let url = replace(shape);
        let done: Result<_, tenure::Error> = block_on(async {
            let locks = Locks::open(&url)?.with(|options| options.op_timeout(Duration::from_secs(30)))?;
            locks.ping().await?;
            locks.mutex("x")?.lock().await?.release().await?;
            Ok(locks.url().to_owned())
        });
        match done {
            Ok(shown) => assert!(!shown.contains(PASSWORD), "{platform}: {shown}"),
            Err(error) => panic!("{platform}: {url}: {}", said(&error)),
        }
    }
}

fn postgres(certificate: &Certificate) -> Postgres {
    let server = Postgres::with_tls(certificate);
    server.run(&format!("ALTER ROLE postgres PASSWORD '{PASSWORD}'"));
    server.run(&format!("CREATE ROLE secret SUPERUSER LOGIN PASSWORD '{PASSWORD}'"));
    server.run("CREATE DATABASE db");
    server
}

/// A shape for the role that needs a password.
fn with_login(shape: &str) -> String {
    shape.replace("USER:PW", &format!("secret:{PASSWORD}"))
}

#[test]
fn postgresql_of_each_platform_is_reached_by_the_url_that_it_prints() {
    let authority = Authority::new();
    let own = postgres(&authority.self_signed("10.0.0.9"));
    let network =
        |shape: &str| with_login(shape).replace("HOST", &format!("0.0.0.0:{}", own.address().port()));
    connects(
        &[
            ("Heroku", "postgres://USER:PW@HOST/db"),
            ("Neon", "postgresql://USER:PW@HOST/db?sslmode=require&channel_binding=require"),
            ("Supabase", "postgresql://USER:PW@HOST/db"),
            ("Azure", "postgres://USER:PW@HOST/db?sslmode=require"),
            ("Aiven", "postgres://USER:PW@HOST/db?sslmode=require"),
            ("DigitalOcean", "postgresql://USER:PW@HOST/db?sslmode=require"),
            ("Render", "postgresql://USER:PW@HOST/db"),
            ("Railway", "postgresql://USER:PW@HOST/db"),
            ("Django on Azure", "postgresql+psycopg2://USER:PW@HOST/db?sslmode=require&connect_timeout=10"),
            ("Vercel", "postgres://USER:PW@HOST/db?sslmode=require&supa=base-pooler.x&pgbouncer=false"),
            (
                "a Spring program",
                "jdbc:postgresql://HOST/db?user=secret&password=pa55-of-app&sslmode=require",
            ),
            ("a node program", "postgres://USER:PW@HOST/db?sslmode=no-verify&application_name=web's"),
        ],
        network,
    );
    let server = postgres(&authority.certify("127.0.0.1"));
    let checked = |shape: &str| {
        let ca = authority.ca();
        with_login(shape)
            .replace("HOST", &server.address().to_string())
            .replace("FILE", &ca.display().to_string())
    };
    connects(
        &[
            ("RDS and Aurora", "postgresql://USER:PW@HOST/db?sslmode=verify-full&sslrootcert=FILE"),
            ("Cloud SQL over TCP", "postgresql://USER:PW@HOST/db?sslmode=verify-ca&sslrootcert=FILE"),
            (
                "PlanetScale",
                "postgresql://USER:PW@HOST/db?sslmode=verify-full&sslrootcert=FILE&options=-c%20a.b%3D1",
            ),
        ],
        checked,
    );
    let socket = format!("{}&port={}", server.directory(), server.address().port());
    connects(
        &[
            ("Cloud SQL", "postgresql://USER:PW@/db?host=SOCKET"),
            ("Cloud SQL with Prisma", "postgresql://USER:PW@localhost/db?host=SOCKET"),
            ("Debian", "postgres:///db?host=SOCKET&user=secret"),
        ],
        |shape| with_login(shape).replace("SOCKET", &socket),
    );
    // Fly's own clusters have no TLS, in a private network.
    let plain = Postgres::with_port();
    plain.run("CREATE DATABASE db");
    let port = plain.address().port();
    connects(
        &[
            ("Fly", "postgres://postgres:x@HOST/db?sslmode=disable"),
            ("compose", "postgres://postgres:x@HOST/db"),
        ],
        |shape| shape.replace("HOST", &format!("0.0.0.0:{port}")),
    );
}

#[test]
fn poolers_of_platforms_are_reached_by_the_url_that_they_print() {
    let authority = Authority::new();
    let server = Postgres::start();
    let user = "app";
    let pooler = PgBouncer::with_tls(&server, &authority.certify("127.0.0.1"), user);
    connects(
        &[
            ("Supabase's pooler", "postgres://app:app@HOST/postgres?pgbouncer=true&connection_limit=1"),
            ("DigitalOcean's pool", "postgresql://app:app@HOST/postgres?sslmode=require&pgbouncer=1"),
            ("Fly's Managed Postgres", "postgresql://app:app@HOST/postgres?pgbouncer=true"),
        ],
        |shape| shape.replace("HOST", &format!("0.0.0.0:{}", pooler.address().port())),
    );
    says(
        &format!("postgres://app:app@0.0.0.0:{}/postgres?sslmode=require", pooler.address().port()),
        "?pgbouncer=1",
    );
}

#[test]
fn mysql_of_each_platform_is_reached_by_the_url_that_it_prints() {
    let authority = Authority::new();
    let server = MariaDb::with_tls(&authority.certify("127.0.0.1"));
    server.run(&format!(
        "CREATE USER secret IDENTIFIED BY '{PASSWORD}' REQUIRE SSL; GRANT ALL ON app.* TO secret"
    ));
    server.run(&format!("CREATE USER near IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON app.* TO near"));
    let port = server.address().port();
    connects(
        &[
            ("Railway", "mysql://USER:PW@HOST/app"),
            ("DigitalOcean", "mysql://USER:PW@HOST/app?ssl-mode=REQUIRED"),
            ("Aiven", "mysql://USER:PW@HOST/app?ssl-mode=REQUIRED"),
            (
                "a Spring program",
                "jdbc:mysql://HOST/app?user=secret&password=pa55-of-app&sslMode=REQUIRED&useUnicode=true",
            ),
            ("SQLAlchemy", "mysql+pymysql://USER:PW@HOST/app?charset=utf8mb4"),
        ],
        |shape| with_login(shape).replace("HOST", &format!("0.0.0.0:{port}")),
    );
    connects(
        &[
            ("RDS and Aurora", "mysql://USER:PW@HOST/app?ssl-mode=VERIFY_IDENTITY&ssl-ca=FILE"),
            ("Azure", "mysql://USER:PW@HOST/app?ssl-mode=VERIFY_CA&ssl-ca=FILE"),
            ("PlanetScale", "mysql://USER:PW@HOST/app?sslaccept=strict&sslrootcert=FILE"),
            ("PlanetScale with mysql2", "mysql://USER:PW@HOST/app?ssl={\"rejectUnauthorized\":true}&ca=FILE"),
        ],
        |shape| {
            let shape = with_login(shape).replace("HOST", &server.address().to_string());
            shape.replace("FILE", &authority.ca().display().to_string())
        },
    );
    let socket = server.socket().display().to_string();
    connects(
        &[
            ("Cloud SQL", "mysql+pymysql://near:PW@/app?unix_socket=SOCKET"),
            ("Cloud SQL with Prisma", "mysql://near:PW@localhost/app?socket=SOCKET"),
        ],
        |shape| shape.replace("PW", PASSWORD).replace("SOCKET", &socket),
    );
}

#[test]
fn redis_of_each_platform_is_reached_by_the_url_that_it_prints() {
    let authority = Authority::new();
    let config = |certificate: &Certificate| {
        let config = Config::new().tls(&authority, certificate).set("tls-auth-clients", "no");
        config.user(&format!("default on >{PASSWORD} ~* &* +@all"))
    };
    let server = Server::start_with(config(&authority.certify("127.0.0.1")));
    connects(
        &[
            ("Upstash, Redis Cloud with TLS", "rediss://default:PW@HOST?ca=FILE"),
            (
                "Aiven, DigitalOcean, Render",
                "rediss://default:PW@HOST?ssl_ca_certs=FILE&ssl_cert_reqs=required",
            ),
            ("ElastiCache", "rediss://default:PW@HOST/0?sslrootcert=FILE"),
            ("Memorystore", "rediss://:PW@HOST?sslmode=verify-ca&ca=FILE"),
            ("Azure Cache", "rediss://:PW@HOST?ca=FILE&protocol=3&health_check_interval=10"),
        ],
        |shape| {
            let shape = shape.replace("PW", PASSWORD).replace("HOST", &server.address().to_string());
            shape.replace("FILE", &authority.ca().display().to_string())
        },
    );
    let own = Server::start_with(config(&authority.self_signed("redis.example")));
    connects(
        &[
            ("Heroku", "rediss://:PW@HOST?ssl_cert_reqs=none"),
            ("a node program", "rediss://:PW@HOST?ssl_cert_reqs=none&family=0"),
        ],
        |shape| shape.replace("PW", PASSWORD).replace("HOST", &own.address().to_string()),
    );
    let plain = Server::start_with(Config::new().user(&format!("default on >{PASSWORD} ~* &* +@all")));
    connects(
        &[
            ("Redis Cloud", "redis://default:PW@HOST"),
            ("Railway", "redis://default:PW@HOST?family=0"),
            (
                "Celery",
                "redis://HOST?username=default&password=PW&db=1&socket_timeout=5&retry_on_timeout=true",
            ),
        ],
        |shape| shape.replace("PW", PASSWORD).replace("HOST", &plain.address().to_string()),
    );
}

#[test]
fn clusters_of_platforms_are_reached_by_their_configuration_endpoint() {
    let authority = Authority::new();
    let named = authority.certify("127.0.0.1");
    let nodes = Config::new()
        .tls(&authority, &named)
        .set("tls-auth-clients", "no")
        .set("tls-cluster", "yes")
        .set("tls-replication", "yes");
    let cluster = Cluster::start_with(&nodes).calm();
    let endpoint = cluster.url().split(',').next().expect("a node").to_owned();
    connects(&[("ElastiCache serverless, MemoryDB", "ENDPOINT?ca=FILE")], |shape| {
        shape.replace("ENDPOINT", &endpoint).replace("FILE", &authority.ca().display().to_string())
    });
}

#[test]
fn tokens_of_a_provider_are_the_password_of_sql_databases() {
    let authority = Authority::new();
    let checks = |url: &str| {
        let patient = |locks: Locks| locks.with(|options| options.op_timeout(Duration::from_secs(20)));
        let locks = Locks::open_with_credentials(url, || Ok(Credentials::of_default_user(PASSWORD)));
        block_on(locks.and_then(patient).expect("a store").ping())
            .unwrap_or_else(|error| panic!("{}", said(&error)));
        let refused = Locks::open_with_credentials(url, || Ok(Credentials::of_default_user("other")));
        let error =
            block_on(refused.and_then(patient).expect("a store").ping()).expect_err("another password");
        assert!(error.is_refused() && !said(&error).contains("other"), "{}", said(&error));
    };
    let server = postgres(&authority.certify("127.0.0.1"));
    let terms = format!("sslmode=verify-full&connect_timeout=20&ca={}", authority.ca().display());
    checks(&format!("postgres://secret@{}/db?{terms}", server.address()));
    let server = MariaDb::with_tls(&authority.certify("127.0.0.1"));
    server.run(&format!("CREATE USER secret IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON app.* TO secret"));
    checks(&format!("mysql://secret@{}/app?{terms}", server.address()));
    let both = format!("postgres://secret:{PASSWORD}@h/db");
    let error =
        Locks::open_with_credentials(&both, || Ok(Credentials::of_default_user("x"))).expect_err("both");
    assert!(error.is_invalid() && !error.to_string().contains(PASSWORD), "{error}");
}

#[test]
fn parameters_of_libpq_change_the_session() {
    let schema = schema();
    let url = SERVER.url(&schema).replace("?schema=", "?search_path=");
    let locks =
        Locks::open(&with_query(&url, "application_name=web&fallback_application_name=x")).expect("a URL");
    let guard = block_on(locks.mutex("x").expect("a name").lock()).expect("a guard");
    let web = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'web tenure-%'";
    assert_eq!(SERVER.run(web), "1");
    assert_eq!(SERVER.run(&format!("SELECT count(*) FROM {schema}.tenure_lock WHERE name = 'x'")), "1");
    block_on(guard.release()).expect("a release");
    let read_only = with_query(&url, "options=-c%20default_transaction_read_only%3Don");
    says(&read_only, "default_transaction_read_only is on");
    // The first four hosts accept connections and do not answer; by default each would take three seconds.
    let silent = [(); 4].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let plain = Postgres::with_port();
    let places = silent.iter().map(|listener| listener.local_addr().expect("an address"));
    let places: Vec<_> = places.chain([plain.address()]).map(|address| address.to_string()).collect();
    let url = format!("postgres://postgres@{}/postgres?connect_timeout=2", places.join(","));
    let begun = Instant::now();
    connects(&[("", "URL")], |_| url.clone());
    let took = begun.elapsed();
    assert!(Duration::from_secs(8) <= took && took < Duration::from_secs(12), "{took:?}");
}

#[test]
fn each_mode_checks_as_much_as_it_says() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (here, elsewhere) = (authority.certify("127.0.0.1"), authority.certify("db.example"));
    let own = authority.self_signed("127.0.0.1");
    let url = |server: &Postgres, terms: &str| {
        with_login(&format!("postgres://USER:PW@{}/db?{terms}", server.address()))
    };
    let by = |mode: &str, authority: &Authority| {
        format!("sslmode={mode}&sslrootcert={}", authority.ca().display())
    };
    let works = |server: &Postgres, terms: &str| connects(&[("", "URL")], |_| url(server, terms));
    let server = postgres(&here);
    works(&server, &by("verify-full", &authority));
    says(&url(&server, &by("require", &stranger)), "ca=FILE");
    says(&url(&server, &by("verify-ca", &stranger)), "ca=FILE");
    let server = postgres(&elsewhere);
    works(&server, &by("verify-ca", &authority));
    works(&server, &by("require", &authority));
    says(&url(&server, &by("verify-full", &authority)), "verify-ca would check the authority only");
    let server = postgres(&own);
    works(&server, "sslmode=require&channel_binding=require");
    works(&server, &format!("sslmode=verify-full&sslrootcert={}", own.cert.display()));
    says(&url(&server, &by("verify-ca", &authority)), "ca=FILE");
    let plain = Postgres::with_port();
    for mode in ["require", "verify-ca", "verify-full"] {
        says(&url(&plain, &format!("sslmode={mode}")), "it does not use TLS");
    }
}

/// A server whose TLS somebody hides: answers each connection, and keeps what follows.
fn hidden(
    answer: impl Fn(&mut TcpStream) -> io::Result<()> + Send + 'static,
) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let told = Arc::<Mutex<Vec<u8>>>::default();
    let after = Arc::clone(&told);
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            if answer(&mut client).is_ok() {
                let mut rest = Vec::new();
                let _ = client.read_to_end(&mut rest);
                after.lock().expect("no panic").extend(rest);
            }
        }
    });
    (address, told)
}

#[test]
fn a_server_whose_tls_somebody_hides_gets_nothing() {
    let refuses = |client: &mut TcpStream| {
        client.read_exact(&mut [0; 8])?;
        client.write_all(b"N")
    };
    for (scheme, (address, told)) in [("postgres", hidden(refuses)), ("mysql", hidden(greet))] {
        for mode in ["require", "verify-ca", "verify-full"] {
            let url = with_login(&format!("{scheme}://USER:PW@{address}/db?sslmode={mode}"));
            says(&url, "it does not use TLS");
        }
        assert_eq!(*told.lock().expect("no panic"), b"", "neither a user nor a password");
    }
    // Here nothing is agreed on in the clear.
    for scheme in ["rediss", "etcds", "zookeepers"] {
        let (address, told) = hidden(|client| client.write_all(b"a plain answer\r\n"));
        says(&with_login(&format!("{scheme}://USER:PW@{address}")), "it does not use TLS");
        let told = told.lock().expect("no panic");
        assert!(!told.windows(PASSWORD.len()).any(|part| part == PASSWORD.as_bytes()), "{scheme}");
    }
}

/// Collects the events `tls_unverified`.
struct Unverified(Arc<Mutex<Vec<String>>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl Subscriber for Unverified {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tenure")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        if fields.0.contains("tls_unverified") {
            self.0.lock().expect("no panic").push(format!("{} {}", event.metadata().level(), fields.0));
        }
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn a_store_that_is_not_checked_warns_once() {
    let authority = Authority::new();
    let certificate = authority.certify("127.0.0.1");
    let server =
        Server::start_with(Config::new().tls(&authority, &certificate).set("tls-auth-clients", "no"));
    let events = Arc::default();
    let _here = tracing::subscriber::set_default(Unverified(Arc::clone(&events)));
    let heard = |query: &str| {
        let locks = Locks::open(&format!("{}?{query}", server.url())).expect("a store");
        block_on(async {
            for _ in 0..3 {
                locks
                    .mutex("x")
                    .expect("a name")
                    .lock()
                    .await
                    .expect("a lock")
                    .release()
                    .await
                    .expect("a release");
                server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
            }
        });
        drop(locks);
        std::mem::take(&mut *events.lock().expect("no panic"))
    };
    assert_eq!(heard(&format!("ca={}", authority.ca().display())), [""; 0]);
    let warned = heard("sslmode=require");
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].starts_with("WARN") && warned[0].contains("127.0.0.1"), "{warned:?}");
}
