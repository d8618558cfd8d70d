//! Checks of a server's certificate, one for each [`TlsMode`].

use std::sync::atomic::{AtomicBool, Ordering};

use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::{
    WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::TlsMode;

/// Checks the server of one handshake.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    mode: TlsMode,
    roots: RootCertStore,
    /// The certificates that the URL names, which may be the server's own.
    named: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
    /// Whether the server has signed the handshake with the key of its certificate.
    // Relaxed: read only by the task that ran the handshake.
    has_proof: AtomicBool,
}

impl ServerVerifier {
    pub(super) fn new(
        mode: TlsMode,
        roots: RootCertStore,
        named: Vec<CertificateDer<'static>>,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Self {
        Self { mode, roots, named, algorithms, has_proof: AtomicBool::new(false) }
    }

    /// Whether the server has proven that it has the key of its certificate.
    pub(super) fn has_proof(&self) -> bool {
        self.has_proof.load(Ordering::Relaxed)
    }

    fn check_authority(
        &self,
        parsed: &ParsedCertificate<'_>,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let algorithms = self.algorithms.all;
        match verify_server_cert_signed_by_trust_anchor(parsed, &self.roots, intermediates, now, algorithms) {
            // The tools that servers come with make such certificates.
            Err(error) if is_self_signed(&error) && self.named.contains(certificate) => Ok(()),
            checked => checked,
        }
    }

    /// A certificate that cannot be parsed, like one of X.509 version 1, counts where nothing is checked.
    fn signed(
        &self,
        checked: Result<HandshakeSignatureValid, Error>,
    ) -> Result<HandshakeSignatureValid, Error> {
        match checked {
            Ok(valid) => {
                self.has_proof.store(true, Ordering::Relaxed);
                Ok(valid)
            }
            Err(Error::InvalidCertificate(CertificateError::BadEncoding | CertificateError::Other(_)))
                if !self.mode.checks() =>
            {
                Ok(HandshakeSignatureValid::assertion())
            }
            error => error,
        }
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.mode.checks() {
            let parsed = ParsedCertificate::try_from(certificate)?;
            self.check_authority(&parsed, certificate, intermediates, now)?;
            if self.mode == TlsMode::VerifyFull {
                verify_server_name(&parsed, host)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(verify_tls12_signature(message, certificate, signature, &self.algorithms))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(verify_tls13_signature(message, certificate, signature, &self.algorithms))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Whether the error is that an authority's certificate, which signs itself, is used by a server.
pub(super) fn is_self_signed(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
    format!("{other:?}").contains("CaUsedAsEndEntity")
}
