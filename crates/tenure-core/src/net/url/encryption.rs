//! How a connection is encrypted, in the spelling of libpq, of MySQL's programs, and of drivers.

use super::StoreUrl;
use crate::error::Result;
use crate::net::{Address, Tls, TlsMode};

/// Other names of the TLS parameters, and ours.
pub(super) const ALIASES: &[(&str, &str)] = &[
    // libpq
    ("sslrootcert", "ca"),
    ("sslcert", "cert"),
    ("sslkey", "key"),
    // MySQL's programs, mysqlclient and PyMySQL
    ("ssl-mode", "sslmode"),
    ("ssl_mode", "sslmode"),
    ("ssl-ca", "ca"),
    ("ssl_ca", "ca"),
    ("ssl-cert", "cert"),
    ("ssl_cert", "cert"),
    ("ssl-key", "key"),
    ("ssl_key", "key"),
    // Connector/J
    ("sslMode", "sslmode"),
    // redis-py
    ("ssl_ca_certs", "ca"),
    ("ssl_certfile", "cert"),
    ("ssl_keyfile", "key"),
    ("sslmode", "sslmode"),
    ("ssl", "ssl"),
    ("useSSL", "ssl"),
    ("tls", "ssl"),
    ("sslaccept", "sslaccept"),
    ("ssl_cert_reqs", "ssl_cert_reqs"),
    ("ssl_check_hostname", "ssl_check_hostname"),
    ("skip_verify", "skip_verify"),
    ("requireSSL", "requireSSL"),
    ("verifyServerCertificate", "verifyServerCertificate"),
];

/// Whether a parameter, by our name, is about TLS.
pub(super) fn is_about_tls(key: &str) -> bool {
    ALIASES.iter().any(|(_, known)| *known == key)
}

/// What a parameter says about TLS; `None` within for none.
type TlsChoice = Option<TlsMode>;
/// Reads the value of such a parameter; `None` for one that it cannot have.
type ReadMode = fn(&str) -> Option<TlsChoice>;
const PREFER: TlsChoice = Some(TlsMode::Prefer);
const REQUIRE: TlsChoice = Some(TlsMode::Require);
const VERIFY_CA: TlsChoice = Some(TlsMode::VerifyCa);
const VERIFY_FULL: TlsChoice = Some(TlsMode::VerifyFull);

const MODES: &str = "disable, prefer, require, verify-ca or verify-full";

/// Parameters that set the mode, what they must be, and their meaning.
const SETTERS: &[(&str, &str, ReadMode)] = &[
    ("sslmode", MODES, |value| {
        Some(match value.to_ascii_lowercase().replace('_', "-").as_str() {
            "disable" | "disabled" => None,
            "allow" | "prefer" | "preferred" => PREFER,
            "require" | "required" | "no-verify" => REQUIRE,
            "verify-ca" => VERIFY_CA,
            "verify-full" | "verify-identity" => VERIFY_FULL,
            _ => return None,
        })
    }),
    ("ssl", "true, false or a mode", |value| {
        let value: String = value.chars().filter(|char| !char.is_whitespace()).collect();
        Some(match value.to_ascii_lowercase().as_str() {
            "false" | "0" | "disable" => None,
            "preferred" | "prefer" => PREFER,
            "skip-verify" | "require" | "{\"rejectunauthorized\":false}" => REQUIRE,
            "verify-ca" => VERIFY_CA,
            "true" | "1" | "verify-full" | "{\"rejectunauthorized\":true}" => VERIFY_FULL,
            _ => return None,
        })
    }),
    ("sslaccept", "strict or accept_invalid_certs", |value| match value {
        "strict" => Some(VERIFY_FULL),
        "accept_invalid_certs" => Some(REQUIRE),
        _ => None,
    }),
    ("ssl_cert_reqs", "none or required", |value| match value.to_ascii_lowercase().as_str() {
        "none" | "cert_none" => Some(REQUIRE),
        "required" | "cert_required" => Some(VERIFY_FULL),
        _ => None,
    }),
    ("skip_verify", "true or false", |value| Some(if truth(value)? { REQUIRE } else { VERIFY_FULL })),
    ("requireSSL", "true or false", |value| Some(if truth(value)? { REQUIRE } else { PREFER })),
    ("verifyServerCertificate", "true or false", |value| {
        Some(if truth(value)? { VERIFY_CA } else { PREFER })
    }),
];

/// `true` or `false`, as drivers write it.
#[must_use]
pub fn truth(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

impl StoreUrl<'_> {
    /// Takes the TLS parameters of a scheme that means TLS.
    ///
    /// # Errors
    /// `is_invalid` for a mode without TLS, and as a URL with wrong TLS parameters.
    pub fn tls_of_scheme(&mut self) -> Result<Tls> {
        match self.tls(VERIFY_FULL, &|_| None)? {
            Some(tls) if tls.mode >= TlsMode::Require => Ok(tls),
            _ => {
                let what = format!(
                    "{}:// is always encrypted, expected sslmode=require, verify-ca or verify-full",
                    self.parts.scheme
                );
                Err(self.syntax.wrong(&what))
            }
        }
    }

    /// Takes the TLS parameters of a scheme that leaves TLS open: by default, connections over a network prefer
    /// it. `gap` knows what the URL leaves out.
    ///
    /// # Errors
    /// `is_invalid` for TLS to a socket, and as a URL with wrong TLS parameters.
    pub fn tls_to(
        &mut self,
        addresses: &[Address],
        gap: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<Tls>> {
        let is_network = addresses.iter().any(Address::is_remote);
        let none = |_: &str| None;
        let has_tcp = addresses.iter().any(|address| matches!(address, Address::Tcp(..)));
        let tls = self.tls(if is_network { PREFER } else { None }, if has_tcp { gap } else { &none })?;
        let asks = tls.as_ref().is_some_and(|tls| tls.mode > TlsMode::Prefer);
        if asks && addresses.iter().any(|address| matches!(address, Address::Unix(_))) {
            return Err(self.syntax.wrong("a socket has no TLS, expected sslmode=disable"));
        }
        // Without the feature there is no TLS to prefer.
        Ok(tls.filter(|tls| cfg!(feature = "tls") || tls.mode > TlsMode::Prefer))
    }

    /// Takes the mode and the certificate files.
    ///
    /// # Errors
    /// `is_invalid` for an unknown mode or two that contradict each other, for a path that is empty, for a
    /// certificate without its key or a key alone, and for an authority that no mode checks.
    fn tls(&mut self, by_default: TlsChoice, gap: &dyn Fn(&str) -> Option<String>) -> Result<Option<Tls>> {
        let is_system =
            |url: &Self| url.query.iter().any(|known| known.key == "ca" && known.value == "system");
        let by_default = if is_system(self) { VERIFY_FULL } else { by_default };
        let mut mode = self.mode(by_default, gap)?;
        if is_system(self) {
            if mode != VERIFY_FULL {
                return Err(self
                    .syntax
                    .wrong("the system's authorities sign for anybody, expected sslmode=verify-full"));
            }
            self.take("ca");
        } else if mode >= REQUIRE {
            self.fill("ca", gap("ca"));
        }
        let no_hostname = self.take_as("ssl_check_hostname", "true or false", truth)? == Some(false);
        if mode == VERIFY_FULL && no_hostname {
            mode = VERIFY_CA;
        }
        let Some(mode) = mode else { return Ok(None) };
        if mode == TlsMode::Prefer && self.has("ca") {
            return Ok(Some(Tls { mode, ..Tls::default() }));
        }
        if !self.has("cert") && !self.has("key") {
            self.fill("cert", gap("cert"));
            self.fill("key", gap("key"));
        }
        let (ca, cert, key) = (self.file("ca")?, self.file("cert")?, self.file("key")?);
        if cert.is_some() != key.is_some() {
            return Err(self.syntax.wrong("parameters `cert` and `key` need each other"));
        }
        // As in libpq, an authority makes `require` check it.
        let mode = if mode == TlsMode::Require && ca.is_some() { TlsMode::VerifyCa } else { mode };
        Ok(Some(Tls { mode, ca, identity: cert.zip(key), ..Tls::default() }))
    }

    /// The strictest of the modes that the parameters set.
    fn mode(&mut self, by_default: TlsChoice, gap: &dyn Fn(&str) -> Option<String>) -> Result<TlsChoice> {
        if !SETTERS.iter().any(|(key, ..)| self.has(key)) {
            self.fill("sslmode", gap("sslmode"));
        }
        let mut set: Vec<TlsChoice> = Vec::new();
        for (key, expected, read) in SETTERS {
            set.extend(self.take_as(key, expected, read)?);
        }
        let strictest = set.iter().max().copied();
        if set.contains(&None) && strictest > Some(PREFER) {
            return Err(self.syntax.wrong("one parameter disables TLS, and another requires it"));
        }
        Ok(if set.contains(&None) { None } else { strictest.unwrap_or(by_default) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::TEST;
    use super::*;

    fn read(query: &str, host: &str) -> Result<Option<Tls>> {
        let text = format!("test://{host}?{query}");
        let mut url = TEST.parse(&text)?;
        let tls = url.tls_to(&[Address::Tcp(host.to_owned(), 1)], &|_| None)?;
        url.end().map(|()| tls)
    }

    #[test]
    fn modes_are_read_in_the_spelling_of_each_driver() {
        for (query, expected) in [
            ("", PREFER),
            ("sslmode=disable", None),
            ("sslmode=allow", PREFER),
            ("sslmode=require", REQUIRE),
            ("sslmode=no-verify", REQUIRE),
            ("ssl-mode=REQUIRED", REQUIRE),
            ("ssl-mode=VERIFY_CA", VERIFY_CA),
            ("ssl_mode=VERIFY_IDENTITY", VERIFY_FULL),
            ("sslMode=PREFERRED", PREFER),
            ("ssl=true", VERIFY_FULL),
            ("ssl=require", REQUIRE),
            ("ssl=%7B%22rejectUnauthorized%22:true%7D", VERIFY_FULL),
            ("ssl={\"rejectUnauthorized\": false}", REQUIRE),
            ("tls=skip-verify", REQUIRE),
            ("useSSL=false", None),
            ("useSSL=false&verifyServerCertificate=false", None),
            ("requireSSL=true&verifyServerCertificate=false", REQUIRE),
            ("sslaccept=strict", VERIFY_FULL),
            ("sslmode=require&sslaccept=accept_invalid_certs", REQUIRE),
            ("ssl_cert_reqs=none", REQUIRE),
            ("ssl_cert_reqs=required&ssl_check_hostname=false", VERIFY_CA),
            ("skip_verify=true", REQUIRE),
            ("sslrootcert=system", VERIFY_FULL),
            ("sslmode=require&sslrootcert=/ca", VERIFY_CA),
            ("sslmode=verify-full&ssl_ca_certs=/ca", VERIFY_FULL),
        ] {
            let tls = read(query, "h").unwrap_or_else(|error| panic!("{query}: {error}"));
            let expected = expected.filter(|mode| cfg!(feature = "tls") || *mode > TlsMode::Prefer);
            assert_eq!(tls.map(|tls| tls.mode), expected, "{query}");
        }
    }

    #[test]
    fn only_connections_over_a_network_prefer_tls() {
        for (host, is_remote) in
            [("h", true), ("10.0.0.1", true), ("0.0.0.0", true), ("localhost", false), ("127.0.0.2", false)]
        {
            assert_eq!(
                read("", host).expect("a URL").is_some(),
                is_remote && cfg!(feature = "tls"),
                "{host}"
            );
        }
        assert!(!Address::Tcp("::1".to_owned(), 1).is_remote());
        assert!(!Address::Unix("/run/s".into()).is_remote());
    }

    #[test]
    fn contradictions_and_useless_files_are_refused() {
        for (query, said) in [
            ("sslmode=on", "`sslmode` must be disable, prefer, require"),
            ("ssl-mode=on", "`ssl-mode` must be"),
            ("sslmode=disable&ssl=true", "another requires it"),
            ("sslmode=require&sslrootcert=system", "sign for anybody"),
            ("sslrootcert=/ca", "`sslrootcert` needs TLS"),
            ("sslmode=disable&cert=/c&key=/k", "needs TLS"),
            ("sslmode=require&sslcert=/c", "need each other"),
            ("sslmode=verify-ca&ca=", "`ca` must be the path of a file"),
        ] {
            let error = read(query, "h").map(drop).expect_err(query).to_string();
            assert!(error.contains(said), "{query}: {error}");
        }
    }
}
