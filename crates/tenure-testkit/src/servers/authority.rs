//! TLS certificates for servers and clients, issued for one test.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// A certificate authority trusted by one test only. Its PEM files are removed on drop.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    dir: TempDir,
}

/// A certificate and its key, as PEM files.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl Authority {
    /// A new authority.
    ///
    /// # Panics
    /// If its files cannot be written.
    #[expect(clippy::new_without_default, reason = "no two are equal")]
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("tenure-ca-").tempdir().expect("a temporary directory");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Distinct names: with equal ones, a client that trusts another authority would fail on the signature
        // instead.
        params.distinguished_name.push(DnType::CommonName, dir.path().display().to_string());
        let certificate = params.self_signed(&key).expect("a certificate");
        fs::write(dir.path().join("ca.pem"), certificate.pem()).expect("a writable temporary directory");
        Self { issuer: Issuer::new(params, key), dir }
    }

    /// The authority's own certificate, for trust stores.
    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Issues a certificate for `name`, a host name or IP address.
    ///
    /// # Panics
    /// If `name` is not a valid name, or if the files cannot be written.
    pub fn certify(&self, name: &str) -> Certificate {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        self.write(name, &certificate.pem(), &key)
    }

    /// A certificate for `name` that signs itself, like those that servers come with.
    ///
    /// # Panics
    /// As [`certify`](Self::certify).
    pub fn self_signed(&self, name: &str) -> Certificate {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate");
        self.write(&format!("{name}.self"), &certificate.pem(), &key)
    }

    fn write(&self, name: &str, certificate: &str, key: &KeyPair) -> Certificate {
        let write = |what: &str, text: &str| {
            let path = self.dir.path().join(format!("{name}.{what}.pem"));
            fs::write(&path, text).expect("a writable temporary directory");
            path
        };
        Certificate { cert: write("cert", certificate), key: write("key", &key.serialize_pem()) }
    }

    /// The directory with the files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}
