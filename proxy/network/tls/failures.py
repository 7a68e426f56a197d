"""Explanations of failures of TLS: the cause, and the setting that is probably wrong. Also the check for an expired
certificate in a resumed session, which no library makes.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from typing import Final

from cryptography import x509

from headrace.proxy.network.tls.records import ANSWERS, EMPTY
from headrace.proxy.wire.other_protocols import HTTP, PROXY, other_protocol

_SENT_BY_PEER: Final = {
    "UNKNOWN_CA": "does not trust the authority of the proxy's certificate",
    "CERTIFICATE_UNKNOWN": "does not accept the proxy's certificate",
    "BAD_CERTIFICATE": "does not accept the proxy's certificate",
    "CERTIFICATE_EXPIRED": "says that the proxy's certificate has expired",
    "CERTIFICATE_REVOKED": "says that the proxy's certificate was revoked",
    "UNSUPPORTED_CERTIFICATE": "does not support the type of the proxy's certificate",
    "CERTIFICATE_REQUIRED": "requires a certificate of the proxy",
    "HANDSHAKE_FAILURE": "refused the handshake: no common cipher suite, or it requires a certificate of the proxy",
    "PROTOCOL_VERSION": "does not support the proxy's versions of TLS",
    "UNRECOGNIZED_NAME": "does not know the host name that the proxy has asked for",
    "DECRYPT_ERROR": "could not verify the handshake",
    "INTERNAL_ERROR": "had an internal error",
    "ACCESS_DENIED": "denied access to the proxy's certificate",
    "USER_CANCELED": "cancelled the handshake",
}
"""Alerts by the end of the name that OpenSSL gives them (RFC 8446 section 6)."""

_ALERTS: Final = ("SSLV3_ALERT_", "TLSV1_", "TLSV13_ALERT_")
"""The beginnings of OpenSSL's names for alerts of the peer."""

_FOUND_HERE: Final = {
    "WRONG_VERSION_NUMBER": "the {peer} does not speak TLS, or no version that {tls}.min_version permits",
    "UNSUPPORTED_PROTOCOL": "the {peer} supports no version of TLS that {tls}.min_version permits",
    "NO_SHARED_CIPHER": "the {peer} supports none of the cipher suites of {tls}.ciphers",
    "NO_SUITABLE_SIGNATURE_ALGORITHM": "the {peer} supports no signature algorithm for the proxy's certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the {peer} showed no certificate, which {tls}.client_certificates requires",
    "HTTP_REQUEST": "the {peer} speaks HTTP without TLS",
    "HTTPS_PROXY_REQUEST": "the {peer} speaks HTTP without TLS",
    "UNEXPECTED_EOF_WHILE_READING": "the {peer} closed the connection in the TLS handshake",
    "EXCESSIVE_MESSAGE_SIZE": "a message in the {peer}'s handshake is too long: OpenSSL permits 100 KiB, rustls 64 KiB",
    "EXCESSIVE_HANDSHAKE_SIZE": "the {peer}'s handshake has more than 100 KiB",
    "CALLBACK_FAILED": "the {peer} asked for a host name that this listener does not have",
    "NO_RENEGOTIATION": "the {peer} wants to negotiate again, which is not permitted",
    "DECRYPTION_FAILED_OR_BAD_RECORD_MAC": "a record of the {peer} was changed on its way",
    "BAD_RECORD_MAC": "a record of the {peer} was changed on its way",
}

UNREAD_ANSWERS: Final = "the peer requests new keys, and does not read the answers"

_LIMITS: Final = {"empty": EMPTY, "answers": ANSWERS, "unread": UNREAD_ANSWERS}
"""The limits that `headrace._engine.TlsSession.failure` names."""


def failure_of(error: ssl.SSLError, setting: str, *, server_side: bool) -> str:
    """Return what the failure means, for the log.

    ``setting`` is the table of the configuration. ``server_side``: the peer is a client, otherwise a broker.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return refused_certificate(error.verify_message, setting, server_side=server_side)
    return failure_text(error.reason or "", str(error), setting, server_side=server_side)


def failure_of_rustls(kind: str, reason: str, setting: str, *, server_side: bool) -> str:
    """Return what `headrace._engine.TlsSession.failure` means; see `failure_of`."""
    if kind == "limit":
        return _LIMITS[reason]
    if kind == "certificate":
        return refused_certificate(reason, setting, server_side=server_side)
    return failure_text(reason, "", setting, server_side=server_side)


def failure_text(reason: str, otherwise: str, setting: str, *, server_side: bool) -> str:
    """Return what ``reason`` means, in OpenSSL's words; ``otherwise`` is the text without a reason."""
    peer = "client" if server_side else "broker"
    if reason.startswith(_ALERTS):
        for name, meaning in _SENT_BY_PEER.items():
            if reason.endswith(name):
                return f"TLS: the {peer} {meaning}"
        alert = reason.removeprefix("TLSV1_").rpartition("ALERT_")[2]
        return f"TLS: the {peer} sent the alert {alert.lower().replace('_', ' ')}"
    text = _FOUND_HERE.get(reason)
    if text is not None:
        return "TLS: " + text.format(peer=peer, tls=setting)
    return f"TLS: {(reason or otherwise).lower().replace('_', ' ')}"


def refused_certificate(message: str, setting: str, *, server_side: bool) -> str:
    """Return why the certificate of the peer is not accepted; ``message`` is the library's."""
    peer = "client" if server_side else "broker"
    reason = _verification(message, setting, server_side=server_side)
    return f"TLS: the {peer}'s certificate is not accepted: {reason}"


def _verification(message: str, setting: str, *, server_side: bool) -> str:
    message = (message or "it cannot be verified").rstrip(".")
    if "self-signed" in message or "unable to" in message:
        return f"{message}; add its authority to {setting}.{'client_ca_file' if server_side else 'ca_file'}"
    if not server_side and "mismatch" in message:
        return f"{message}; connect to a name in the certificate, or set {setting}.verify_names = false"
    return message


def outlived_certificate(certificate: bytes | None, *, server_side: bool) -> str:
    """Return why a session with this certificate of the peer must not be resumed; the empty string if it may be.

    A resumed handshake verifies no certificate, and begins a new session with the same one: without this check, a
    certificate would be accepted for ever. ``server_side``: the peer is a client, otherwise a broker.
    """
    if certificate is None:
        return ""
    try:
        end = x509.load_der_x509_certificate(certificate).not_valid_after_utc
    except ValueError as error:
        return f"TLS: the certificate of the resumed session cannot be read: {error}"
    if datetime.now(UTC) <= end:
        return ""
    peer = "client" if server_side else "broker"
    return f"TLS: the {peer} resumed a session whose certificate has expired on {end:%Y-%m-%d at %H:%M} UTC"


def plaintext_failure(first: bytes, setting: str) -> str:
    """Return why a listener with TLS closes a connection that begins with ``first``, and what to change."""
    protocol = other_protocol(memoryview(first), 0, len(first))
    if protocol == HTTP:
        return f"speaks HTTP, but this listener ({setting}) accepts Kafka's protocol with TLS only"
    if protocol == PROXY:
        listen = setting.removesuffix(".tls")
        return f"sent a header of the PROXY protocol; add its address to {listen}.proxy_protocol_from"
    return (
        f"speaks plaintext, but this listener requires TLS ({setting}.certificate_file); set the client's"
        " security.protocol to SSL or SASL_SSL"
    )
