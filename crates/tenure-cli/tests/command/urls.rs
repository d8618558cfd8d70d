//! Store URLs in the command: what the doctor says of them, and where passwords come from.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use tenure_testkit::servers::{
    Authority, Config, Ensemble, Etcd, MariaDb, Postgres, Server, ZooKeeper, eventually, with_query,
};

use crate::doctor::told;
use crate::env::{Outcome, SOON, TestEnv};

/// The doctor's notes of a check, without sources.
fn notes(env: &TestEnv, url: &str, check: &str) -> Vec<String> {
    let told = told(env, url, &[]);
    let notes = told["notes"].as_array().expect("notes").iter().filter(|note| note["check"] == check);
    notes.map(|note| note["what"].as_str().expect("a text").to_owned()).collect()
}

#[test]
fn the_doctor_notes_each_store_that_tls_does_not_check() {
    let (env, authority) = (TestEnv::new(), Authority::new());
    let (here, us) = (authority.certify("127.0.0.1"), authority.certify("us.example"));
    let postgres = Postgres::with_tls(&here);
    let mysql = MariaDb::with_tls(&here);
    let redis = Server::start_with(Config::new().tls(&authority, &here));
    let etcd = Etcd::with_tls(&here, Some(&authority.ca()));
    let zookeeper = ZooKeeper::with_tls(&here, &authority.ca());
    let identity = format!("?cert={}&key={}", us.cert.display(), us.key.display());
    for url in [
        format!("postgres://postgres@{}/postgres", postgres.address()),
        mysql.url_as("root", "app"),
        redis.url() + &identity,
        format!("etcds://{}{identity}", etcd.encrypted()),
        format!("zookeepers://{}{identity}", zookeeper.encrypted()),
    ] {
        for (terms, said) in [
            (format!("sslmode=verify-full&ca={}", authority.ca().display()), None),
            (format!("sslmode=verify-ca&ca={}", authority.ca().display()), None),
            ("sslmode=require".to_owned(), Some("nothing checks which server answers")),
        ] {
            let url = with_query(&url, &terms);
            // The first TLS handshake of a Java process outlasts a dial.
            let listed = || env.run(env.tenure(["list", "--store", &url])).code() == Some(0);
            eventually("it answers", SOON, listed);
            let notes = notes(&env, &url, "encryption");
            assert_eq!(notes.len(), said.map_or(0, |_| 1), "{url}: {notes:?}");
            assert!(said.is_none_or(|said| notes[0].contains(said)), "{url}: {notes:?}");
        }
    }
    // By default, a connection over a network is encrypted if the server offers it.
    let remote = format!("postgres://postgres@0.0.0.0:{}/postgres", postgres.address().port());
    assert!(notes(&env, &remote, "encryption")[0].contains("only if the server offers it"));
    let with_driver = remote.replace("postgres:", "postgresql+asyncpg:");
    assert!(notes(&env, &with_driver, "scheme")[0].contains("postgres:// is the same"));
    assert_eq!(notes(&env, &remote, "scheme"), [""; 0]);
    let plain = Server::start();
    let remote = plain.url().replace("127.0.0.1", "0.0.0.0");
    assert!(notes(&env, &remote, "encryption")[0].contains("without encryption"));
    assert_eq!(notes(&env, &plain.url(), "encryption"), [""; 0]);
}

/// Each source has the right password, and a wrong user or password is refused.
#[test]
fn no_output_has_a_password_from_a_query_a_variable_or_a_file() {
    const WORD: &str = "hush-hush";
    let (env, authority) = (TestEnv::new(), Authority::new());
    let here = authority.certify("127.0.0.1");
    let postgres = Postgres::with_tls(&here);
    postgres.run(&format!("CREATE ROLE secret SUPERUSER LOGIN PASSWORD '{WORD}'"));
    let mysql = MariaDb::with_tls(&here);
    mysql.run(&format!("CREATE USER secret IDENTIFIED BY '{WORD}'; GRANT ALL ON app.* TO secret"));
    for (name, text) in [
        (".pgpass", format!("*:*:*:secret:{WORD}\n")),
        (".my.cnf", format!("[client]\npassword = \"{WORD}\"\n")),
        ("word", format!("{WORD}\n")),
    ] {
        fs::create_dir_all(env.path("home")).expect("a directory");
        let file = env.path("home").join(name);
        fs::write(&file, text).expect("a file");
        fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("our file");
    }
    let (home, none) = (env.path("home"), env.path("none"));
    let asked = |url: &str, variable: &str, home: &std::path::Path, words: &[&str]| -> Outcome {
        let mut command = env.tenure(words);
        command.env("TENURE_STORE", url).env("HOME", home);
        if !variable.is_empty() {
            command.env(variable, WORD);
        }
        let said = env.run(command);
        assert!(!format!("{}{}", said.stdout, said.stderr).contains(WORD), "{said:?}");
        said
    };
    let postgres =
        |query: &str| format!("postgres://{}/postgres?sslmode=require&{query}", postgres.address());
    let mysql = |query: &str| format!("mysql://{}/app?sslmode=require&{query}", mysql.address());
    let file = format!("password-file={}", home.join("word").display());
    for (url, variable, home) in [
        (postgres(&format!("user=secret&password={WORD}")), "", &none),
        (postgres(&format!("user=secret&{file}")), "", &none),
        (postgres("user=secret"), "PGPASSWORD", &none),
        (postgres("user=secret"), "", &home),
        (mysql(&format!("user=secret&password={WORD}")), "", &none),
        (mysql(&format!("user=secret&{file}")), "", &none),
        (mysql("user=secret"), "MYSQL_PWD", &none),
        (mysql("user=secret"), "", &home),
    ] {
        let asked = |url: &str, words: &[&str]| asked(url, variable, home, words);
        let said = asked(&url, &["run", "-v", "x", "--", "true"]).exits_with(0);
        assert!(said.stderr.contains("nothing checks which server"), "{said:?}");
        asked(&url, &["config"]).exits_with(0);
        asked(&url, &["doctor", "--json"]);
        let stranger = url.replace("user=secret", "user=stranger");
        asked(&stranger, &["run", "-v", "x", "--", "true"]).exits_with(69);
        asked(&format!("{url}&usr=x"), &["status", "x"]).exits_with(64).says("did you mean `user`?");
    }
}
