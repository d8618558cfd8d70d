//! TLS with rustls and ring, with error messages that explain certificate problems.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{AlertDescription, CertificateError, ClientConfig, Error, RootCertStore};

use super::verifier::{ServerVerifier, is_self_signed};
use super::{Encrypted, Stream, Tls, TlsMode};
use crate::events::{event, text};
use crate::store::{Failure, SETUP};

/// Performs the TLS handshake with the server at `host`, and checks it as far as the mode says. `plain` is what a
/// URL must contain to disable TLS, for error hints.
///
/// # Errors
/// `Refused` for a certificate that a retry cannot fix, otherwise `NotSent`, also for files, which may be half
/// written.
pub async fn encrypt(
    stream: Pin<Box<dyn Stream>>,
    host: &str,
    tls: &Tls,
    plain: &str,
) -> Result<Encrypted, Failure> {
    let unusable = |what| Failure::NotSent(Failure::cause(format!("cannot use the files for TLS: {what}")));
    let verifier = Arc::new(verifier(tls).map_err(unusable)?);
    let config = config(tls, Arc::clone(&verifier)).map_err(unusable)?;
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| Failure::Refused(Failure::cause(format!("invalid host name for TLS: {host}"))))?;
    match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
        Ok(stream) => {
            let (_, session) = stream.get_ref();
            let leaf = session.peer_certificates().and_then(<[_]>::first).filter(|_| verifier.has_proof());
            let certificate = leaf.map(|leaf| leaf.to_vec());
            if tls.mode == TlsMode::Require && !tls.warning.0.swap(true, Ordering::Relaxed) {
                event!(
                    WARN,
                    target: SETUP,
                    "tls_unverified",
                    "the connection is encrypted, but nothing checks which server answers",
                    server = text(host),
                );
            }
            Ok(Encrypted { stream: Box::pin(stream), certificate })
        }
        Err(error) => Err(match within(&error) {
            Some(error) => of(error, plain),
            None if error.kind() == io::ErrorKind::UnexpectedEof => Failure::NotSent(Failure::cause(
                format!("it closed the connection during the TLS handshake; without TLS, use {plain}"),
            )),
            None => Failure::NotSent(Arc::new(error)),
        }),
    }
}

/// The failure behind an I/O error of an established connection, if TLS caused it. A server that requires a
/// client certificate reports this only after the client has completed its side of the handshake.
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
            "no trusted authority has signed its certificate; name one with ca=FILE in the URL"
        }
        Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. }) => {
            "its certificate is for another name; verify-ca would check the authority only"
        }
        error if is_self_signed(error) => {
            "it has signed its certificate itself; name that certificate with ca=FILE in the URL"
        }
        Error::InvalidCertificate(_) => "its certificate is not valid",
        // TLS up to 1.2 has no alert of its own for a missing client certificate.
        Error::AlertReceived(CertificateRequired | HandshakeFailure) => {
            "it may require a client certificate; add cert=FILE and key=FILE to the URL"
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
        ) => "it requires a client certificate, or rejects ours; add cert=FILE and key=FILE to the URL",
        Error::AlertReceived(ProtocolVersion) | Error::PeerIncompatible(_) => {
            "it supports neither TLS 1.2 nor TLS 1.3"
        }
        Error::InvalidMessage(_) => &format!("it does not use TLS; without TLS, use {plain}"),
        // Possibly temporary.
        _ => return Failure::NotSent(Failure::cause(format!("TLS: {error}"))),
    };
    Failure::Refused(Failure::cause(format!("TLS: {error} ({hint})")))
}

/// The checks of this mode, with the authorities that it needs.
fn verifier(tls: &Tls) -> Result<ServerVerifier, String> {
    let (mut roots, mut named) = (RootCertStore::empty(), Vec::new());
    match &tls.ca {
        _ if !tls.mode.checks() => {}
        Some(path) => {
            named = certificates(path, "ca")?;
            for certificate in &named {
                roots.add(certificate.clone()).map_err(|error| format!("ca={}: {error}", path.display()))?;
            }
        }
        None => {
            // Honors SSL_CERT_FILE and SSL_CERT_DIR. Unreadable certificates do not matter while others can
            // be read.
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let why = found.errors.first().map_or(String::new(), |error| format!(" ({error})"));
                return Err(format!(
                    "no trusted certificate authorities found{why}; name one with ca=FILE in the URL"
                ));
            }
        }
    }
    let algorithms = ring::default_provider().signature_verification_algorithms;
    Ok(ServerVerifier::new(tls.mode, roots, named, algorithms))
}

fn config(tls: &Tls, verifier: Arc<ServerVerifier>) -> Result<ClientConfig, String> {
    // Name the provider explicitly: a process with two crypto providers has no default.
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider knows the versions that are the default")
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match &tls.identity {
        None => config.with_no_client_auth(),
        Some((cert, key)) => {
            let secret = PrivateKeyDer::from_pem_file(key)
                .map_err(|error| format!("key={}: {error}", key.display()))?;
            config
                .with_client_auth_cert(certificates(cert, "cert")?, secret)
                .map_err(|error| format!("cert={} with key={}: {error}", cert.display(), key.display()))?
        }
    };
    config.alpn_protocols = tls.protocol.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Ok(config)
}

fn certificates(path: &Path, parameter: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| format!("{parameter}={}: {error}", path.display()))?;
    match certificates.is_empty() {
        true => Err(format!("{parameter}={}: it contains no certificate", path.display())),
        false => Ok(certificates),
    }
}
