//! Whether the certificate of a peer is accepted.
//!
//! As with Java, and with OpenSSL's `X509_V_FLAG_PARTIAL_CHAIN`, each certificate of the trust store is trusted, whatever
//! has issued it: the certificate of the peer may be one of them, or may be issued by one that is an authority. It must
//! be valid at the time. webpki takes an anchor for an authority without limits, so those are checked here.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme};
use webpki::{EndEntityCert, InvalidNameContext, KeyUsage, anchor_from_trusted_cert};

/// A certificate of a trust store as DER; the first and the last second at which it is valid; how many authorities may be
/// between it and the certificate of a peer, `None` if it is no authority; and whether it may be that of a server, and
/// that of a client.
pub type AuthorityRow = (Vec<u8>, i64, i64, Option<usize>, (bool, bool));

/// A certificate of a trust store.
#[derive(Debug)]
struct Authority {
    der: CertificateDer<'static>,
    /// The first and the last second at which it is valid.
    valid: (i64, i64),
    most_below: Option<usize>,
    is_for_servers: bool,
    is_for_clients: bool,
}

impl Authority {
    /// Checks the time, and that it may issue certificates of servers, or of clients, as OpenSSL does for each of a chain.
    fn check(&self, now: UnixTime, is_server: bool) -> Result<(), CertificateError> {
        let now_s = now.as_secs() as i64;
        if now_s < self.valid.0 {
            return Err(CertificateError::NotValidYet);
        }
        if now_s > self.valid.1 {
            return Err(CertificateError::Expired);
        }
        let is_for_peer = if is_server { self.is_for_servers } else { self.is_for_clients };
        if is_for_peer { Ok(()) } else { Err(CertificateError::InvalidPurpose) }
    }
}

/// A trust store, and what is required of the certificates of peers.
#[derive(Debug)]
pub struct Verifier {
    authorities: Vec<Authority>,
    anchors: Vec<TrustAnchor<'static>>,
    /// The index in `authorities` of each of `anchors`.
    places: Vec<usize>,
    algorithms: WebPkiSupportedAlgorithms,
    is_required: bool,
    verifies_names: bool,
}

impl Verifier {
    /// Creates a verifier; `is_required`: whether clients must show a certificate.
    pub fn new(
        authorities: Vec<AuthorityRow>,
        algorithms: WebPkiSupportedAlgorithms,
        is_required: bool,
        verifies_names: bool,
    ) -> Result<Self, String> {
        let mut verifier = Verifier {
            authorities: Vec::new(),
            anchors: Vec::new(),
            places: Vec::new(),
            algorithms,
            is_required,
            verifies_names,
        };
        for (der, from, until, most_below, (is_for_servers, is_for_clients)) in authorities {
            let der = CertificateDer::from(der);
            if most_below.is_some() {
                let anchor = anchor_from_trusted_cert(&der)
                    .map_err(|error| format!("rustls cannot read a certificate of the trust store: {error}"))?;
                verifier.anchors.push(anchor.to_owned());
                verifier.places.push(verifier.authorities.len());
            }
            let valid = (from, until);
            verifier.authorities.push(Authority { der, valid, most_below, is_for_servers, is_for_clients });
        }
        Ok(verifier)
    }

    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: Option<&ServerName<'_>>,
        now: UnixTime,
        is_server: bool,
    ) -> Result<(), Error> {
        let certificate = EndEntityCert::try_from(end_entity).map_err(|error| of_webpki(&error))?;
        if let Some(authority) = self.authorities.iter().find(|each| each.der == *end_entity) {
            authority.check(now, is_server)?;
        } else {
            let usage = if is_server { KeyUsage::server_auth() } else { KeyUsage::client_auth() };
            let refused = std::cell::Cell::new(None);
            let check = |path: &webpki::VerifiedPath<'_>| {
                let at = self.anchors.iter().position(|each| std::ptr::eq(each, path.anchor()));
                let place = at.and_then(|at| self.places.get(at));
                let Some(authority) = place.and_then(|place| self.authorities.get(*place)) else {
                    return Err(webpki::Error::UnknownIssuer);
                };
                if authority.most_below.is_none_or(|most| path.intermediate_certificates().count() > most) {
                    return Err(webpki::Error::PathLenConstraintViolated);
                }
                authority.check(now, is_server).map_err(|problem| {
                    refused.set(Some(problem));
                    webpki::Error::UnknownIssuer
                })
            };
            certificate
                .verify_for_usage(self.algorithms.all, &self.anchors, intermediates, now, usage, None, Some(&check))
                .map_err(|error| refused.take().map_or_else(|| of_webpki(&error), Error::from))?;
        }
        if let Some(name) = name {
            certificate.verify_is_valid_for_subject_name(name).map_err(|error| of_webpki(&error))?;
        }
        Ok(())
    }
}

fn of_webpki(error: &webpki::Error) -> Error {
    use webpki::Error as Of;
    let problem = match error {
        Of::BadDer | Of::BadDerTime | Of::TrailingData(_) => CertificateError::BadEncoding,
        Of::CertNotValidYet { .. } => CertificateError::NotValidYet,
        Of::CertExpired { .. } | Of::InvalidCertValidity => CertificateError::Expired,
        Of::UnknownIssuer => CertificateError::UnknownIssuer,
        Of::InvalidSignatureForPublicKey => CertificateError::BadSignature,
        Of::RequiredEkuNotFoundContext(_) | Of::EmptyEkuExtension => CertificateError::InvalidPurpose,
        Of::CertNotValidForName(InvalidNameContext { expected, presented }) => {
            CertificateError::NotValidForNameContext { expected: expected.clone(), presented: presented.clone() }
        }
        other => CertificateError::Other(OtherError(Arc::new(other.clone()))),
    };
    problem.into()
}

/// The methods of both traits that do not depend on the side.
macro_rules! verify_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, cert, dss, &self.algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, cert, dss, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let name = self.verifies_names.then_some(server_name);
        self.verify(end_entity, intermediates, name, now, true)?;
        Ok(ServerCertVerified::assertion())
    }

    verify_signatures!();
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        self.is_required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(end_entity, intermediates, None, now, false)?;
        Ok(ClientCertVerified::assertion())
    }

    verify_signatures!();
}
