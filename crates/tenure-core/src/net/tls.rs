//! TLS with rustls and ring, and the errors that say what is wrong with a certificate.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{AlertDescription, CertificateError, ClientConfig, Error, RootCertStore};

use super::{Stream, Tls};
use crate::store::Failure;

/// Performs the TLS handshake. The server's certificate must be valid for `host`. `plain` names the
/// unencrypted spelling of the URL, for the hint of an error.
///
/// # Errors
/// `Refused` for a certificate or file that will not become valid by itself, else `NotSent`.
pub async fn encrypt(
    stream: Pin<Box<dyn Stream>>,
    host: &str,
    tls: &Tls,
    plain: &str,
) -> Result<Pin<Box<dyn Stream>>, Failure> {
    let config = config(tls).map_err(|what| Failure::Refused(Failure::cause(what)))?;
    let name = ServerName::try_from(host.to_owned()).map_err(|_| {
        Failure::Refused(Failure::cause(format!("no certificate can be for the name {host}")))
    })?;
    match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
        Ok(stream) => Ok(Box::pin(stream)),
        Err(error) => Err(match within(&error) {
            Some(error) => of(error, plain),
            None if error.kind() == io::ErrorKind::UnexpectedEof => Failure::NotSent(Failure::cause(
                format!("it hung up in the middle of the TLS handshake; one without TLS is {plain}"),
            )),
            None => Failure::NotSent(Arc::new(error)),
        }),
    }
}

/// The failure behind an I/O error of an established connection, if TLS caused it: a server that
/// requires a client certificate reports so only after the client's side of the handshake.
#[must_use]
pub fn failure_of(error: &io::Error, plain: &str) -> Option<Failure> {
    within(error).map(|error| of(error, plain))
}

fn within(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

fn of(error: &Error, plain: &str) -> Failure {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked,
        CertificateUnknown, DecryptError, HandshakeFailure, ProtocolVersion, UnknownCA,
        UnsupportedCertificate,
    };
    let hint = match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "no authority trusted here vouches for its certificate: ca=FILE in the URL names another"
        }
        Error::InvalidCertificate(_) => "its certificate is not accepted",
        // Until version 1.2 there was no word for it.
        Error::AlertReceived(CertificateRequired | HandshakeFailure) => {
            "it may want a client certificate: cert=FILE and key=FILE in the URL name one"
        }
        Error::AlertReceived(
            BadCertificate
            | UnsupportedCertificate
            | CertificateRevoked
            | CertificateExpired
            | CertificateUnknown
            | UnknownCA
            | AccessDenied
            | DecryptError,
        ) => "it does not accept our certificate, or wants one: cert=FILE and key=FILE in the URL name it",
        Error::AlertReceived(ProtocolVersion) | Error::PeerIncompatible(_) => {
            "it speaks no version of TLS that is spoken here"
        }
        Error::InvalidMessage(_) => &format!("it does not speak TLS; one without is {plain}"),
        // It may pass.
        _ => return Failure::NotSent(Failure::cause(format!("TLS: {error}"))),
    };
    Failure::Refused(Failure::cause(format!("TLS: {error} ({hint})")))
}

fn config(tls: &Tls) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match &tls.ca {
        Some(path) => {
            for certificate in certificates(path, "ca")? {
                roots.add(certificate).map_err(|error| format!("ca={}: {error}", path.display()))?;
            }
        }
        None => {
            // Also from SSL_CERT_FILE and SSL_CERT_DIR. Some that cannot be read do not matter if
            // others can.
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let why = found.errors.first().map_or(String::new(), |error| format!(" ({error})"));
                return Err(format!("no authority is trusted here{why}: ca=FILE in the URL names one"));
            }
        }
    }
    // The provider is named, since a process that has two has none by default.
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider knows the versions that are the default")
        .with_root_certificates(roots);
    let Some((cert, key)) = &tls.identity else {
        return Ok(config.with_no_client_auth());
    };
    let secret =
        PrivateKeyDer::from_pem_file(key).map_err(|error| format!("key={}: {error}", key.display()))?;
    config
        .with_client_auth_cert(certificates(cert, "cert")?, secret)
        .map_err(|error| format!("cert={} with key={}: {error}", cert.display(), key.display()))
}

fn certificates(path: &Path, parameter: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| format!("{parameter}={}: {error}", path.display()))?;
    match certificates.is_empty() {
        true => Err(format!("{parameter}={}: there is no certificate in it", path.display())),
        false => Ok(certificates),
    }
}
