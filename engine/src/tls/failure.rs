//! Failures of TLS, named as by OpenSSL, so that `headrace.proxy.network.tls.failures` can explain them.

use std::fmt::Write as _;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible, PeerMisbehaved};

use crate::tls::limits::Excess;

/// A failure of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A reason, as OpenSSL names it if it has a name for it.
    Reason(String),
    /// The reason why the certificate of the peer is not accepted.
    Certificate(String),
    /// The peer has exceeded a limit.
    Excess(Excess),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidCertificate(problem) => Failure::Certificate(of_certificate(&problem)),
            Error::AlertReceived(alert) => Failure::Reason(of_alert(alert)),
            Error::PeerMisbehaved(PeerMisbehaved::TooManyKeyUpdateRequests) => Failure::Excess(Excess::Empty),
            other => Failure::Reason(of_error(&other)),
        }
    }
}

/// Returns OpenSSL's name of an alert of the peer.
fn of_alert(alert: AlertDescription) -> String {
    let mut name = String::from("TLSV1_ALERT_");
    let mut is_after_small = false;
    for letter in format!("{alert:?}").chars() {
        if letter.is_uppercase() && is_after_small {
            name.push('_');
        }
        is_after_small = letter.is_lowercase();
        name.extend(letter.to_uppercase());
    }
    name.replace("UNRECOGNISED", "UNRECOGNIZED")
}

fn of_error(error: &Error) -> String {
    let reason = match error {
        Error::NoCertificatesPresented => "PEER_DID_NOT_RETURN_A_CERTIFICATE",
        Error::DecryptError => "DECRYPTION_FAILED_OR_BAD_RECORD_MAC",
        Error::InvalidMessage(InvalidMessage::UnknownProtocolVersion | InvalidMessage::InvalidContentType) => {
            "WRONG_VERSION_NUMBER"
        }
        Error::InvalidMessage(InvalidMessage::HandshakePayloadTooLarge) => "EXCESSIVE_MESSAGE_SIZE",
        Error::PeerMisbehaved(PeerMisbehaved::ServerNameMustContainOneHostName) => "CALLBACK_FAILED",
        Error::PeerMisbehaved(PeerMisbehaved::TooManyEmptyFragments) => "RECORD_TOO_SMALL",
        Error::PeerMisbehaved(PeerMisbehaved::TooManyWarningAlertsReceived) => "TOO_MANY_WARN_ALERTS",
        Error::PeerMisbehaved(PeerMisbehaved::TooManyRenegotiationRequests) => "NO_RENEGOTIATION",
        Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon) => "NO_SHARED_CIPHER",
        Error::PeerIncompatible(
            PeerIncompatible::NoSignatureSchemesInCommon
            | PeerIncompatible::NoCertificateRequestSignatureSchemesInCommon,
        ) => "NO_SUITABLE_SIGNATURE_ALGORITHM",
        Error::PeerIncompatible(
            PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            | PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled,
        ) => "UNSUPPORTED_PROTOCOL",
        other => return other.to_string(),
    };
    reason.to_owned()
}

fn of_certificate(problem: &CertificateError) -> String {
    let reason = match problem {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "certificate has expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "certificate is not yet valid",
        CertificateError::UnknownIssuer => "unable to get local issuer certificate",
        CertificateError::BadSignature => "certificate signature failure",
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "unsuitable certificate purpose"
        }
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "its signature algorithm is not supported"
        }
        CertificateError::NotValidForNameContext { expected, .. } => {
            let kind = if matches!(expected, ServerName::IpAddress(_)) { "IP address" } else { "Hostname" };
            let mut text = format!("{kind} mismatch, certificate is not valid for '");
            let _ = write!(text, "{}'", expected.to_str());
            return text;
        }
        other => return other.to_string(),
    };
    reason.to_owned()
}
