//! MySQL itself, which `scripts/matrix` starts instead of MariaDB.

use std::time::Duration;

use tenure_testkit::servers::{MariaDb, with_query};

use crate::common::locks;
use crate::postgres::errors::says;

fn works(url: &str) {
    let locks = locks(url, Duration::from_secs(15));
    tenure::block_on(async {
        let guard = locks.mutex("x").expect("a name").lock().await;
        guard.unwrap_or_else(|error| panic!("{url}: {error}")).release().await.expect("a release");
    });
}

#[test]
#[ignore = "needs MySQL: scripts/matrix mysql-9"]
fn a_first_login_needs_no_other_client_before() {
    let server = MariaDb::with_own_certificate();
    let file = |name: &str| server.data().join(name).display().to_string();
    let (key, ca) = (file("public_key.pem"), file("ca.pem"));
    for plugin in ["caching_sha2_password", "sha256_password"] {
        if server.run(&format!("SELECT 1 FROM information_schema.plugins WHERE plugin_name = '{plugin}'"))
            != "1"
        {
            continue;
        }
        for (at, terms) in [
            "allowPublicKeyRetrieval=true",
            &format!("server-public-key={key}"),
            "sslmode=require",
            "",
            &format!("sslmode=verify-ca&ca={ca}"),
        ]
        .into_iter()
        .enumerate()
        {
            let user = format!("{}{at}", &plugin[..6]);
            server.run(&format!(
                "CREATE USER {user} IDENTIFIED WITH {plugin} BY 'word'; GRANT ALL ON app.* TO {user}"
            ));
            let url = server.url_as(&format!("{user}:word"), "app");
            if terms.is_empty() {
                // Over a network, TLS needs no parameter.
                works(&url.replace("127.0.0.1", "0.0.0.0"));
                continue;
            }
            says(&url, "allowPublicKeyRetrieval=true");
            works(&with_query(&url, terms));
            says(&with_query(&url.replace("word", "sword"), terms), "check the user and password");
        }
    }
    let strict = with_query(&server.url_as("root", "app"), &format!("sslmode=verify-full&ca={ca}"));
    says(&strict, "name");
}
