"""Reading settings from a file as ``--command-config`` of Kafka's tools names it: Java properties.

    security.protocol=SASL_SSL
    sasl.mechanism=SCRAM-SHA-512
    sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
      username="admin" password="secret";
    ssl.truststore.type=PEM
    ssl.truststore.location=/etc/kafka/ca.pem

Certificates and keys are read from PEM files. A key that the client does not know is reported and ignored, as in Java;
a value that it cannot honour is an error.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.proxy.kafka_client.errors import SettingsError
from headrace.proxy.kafka_client.properties_format import parse_jaas, parse_properties
from headrace.proxy.kafka_client.settings import (
    DEFAULT_CLIENT_ID,
    ClientSettings,
    Credentials,
    Mechanism,
    parse_addresses,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger("headrace.kafka_client")

_TIMES: Final = {
    "request.timeout.ms": "request_timeout_ms",
    "default.api.timeout.ms": "default_api_timeout_ms",
    "socket.connection.setup.timeout.ms": "connection_setup_timeout_ms",
    "connections.max.idle.ms": "connections_max_idle_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "retry.backoff.ms": "retry_backoff_ms",
    "retry.backoff.max.ms": "retry_backoff_max_ms",
}
_OTHERS: Final = (
    *("bootstrap.servers", "client.id", "security.protocol", "sasl.mechanism", "sasl.jaas.config"),
    *("ssl.ca.location", "ssl.truststore.location", "ssl.truststore.type", "ssl.truststore.certificates"),
    *("ssl.keystore.location", "ssl.keystore.type", "ssl.key.password"),
    *("ssl.endpoint.identification.algorithm",),
)
KNOWN_KEYS: Final = frozenset((*_TIMES, *_OTHERS))
"""All keys that have an effect."""

_PROTOCOLS: Final = {
    "PLAINTEXT": (False, False),
    "SSL": (True, False),
    "SASL_PLAINTEXT": (False, True),
    "SASL_SSL": (True, True),
}
_MODULES: Final = {
    Mechanism.PLAIN: "PlainLoginModule",
    Mechanism.SCRAM_SHA_256: "ScramLoginModule",
    Mechanism.SCRAM_SHA_512: "ScramLoginModule",
}
_PEM: Final = b"-----BEGIN "
_JKS_BEGINNINGS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")


def read_settings(
    path: str | Path,
    *,
    bootstrap_servers: str | None = None,
    default_servers: str | None = None,
    report: Callable[[str], None] = log.warning,
) -> ClientSettings:
    """Return the settings of a properties file. ``bootstrap_servers`` is used instead of the file's, if it is given.

    ``default_servers`` is used if neither has servers.
    ``report`` is called with a sentence about each key that is ignored. Raises `SettingsError` with the file, the key
    and the rule; passwords are in no error.
    """
    try:
        text = Path(path).read_text(encoding="iso-8859-1")  # as Java reads it; other characters are \\uXXXX
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error}") from error
    try:
        properties = parse_properties(text)
        servers = bootstrap_servers or properties.get("bootstrap.servers") or default_servers
        return settings_of(properties, bootstrap_servers=servers, report=report)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def settings_of(
    properties: Mapping[str, str], *, bootstrap_servers: str | None = None, report: Callable[[str], None] = log.warning
) -> ClientSettings:
    """Return the settings of properties with Java's names; see `read_settings`."""
    for key in sorted(properties.keys() - KNOWN_KEYS):
        report(f"{key} is ignored: the client does not have this setting")
    servers = bootstrap_servers or properties.get("bootstrap.servers")
    if not servers:
        raise SettingsError("bootstrap.servers is not set")
    protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in _PROTOCOLS:
        raise SettingsError(f"security.protocol = {protocol}: expected one of {', '.join(_PROTOCOLS)}")
    secured, authenticated = _PROTOCOLS[protocol]
    times: dict[str, Any] = {
        name: _milliseconds(key, properties[key]) for key, name in _TIMES.items() if key in properties
    }
    return ClientSettings(
        bootstrap_servers=parse_addresses(servers),
        tls=_tls_context(properties) if secured else None,
        credentials=_credentials(properties) if authenticated else None,
        client_id=properties.get("client.id") or DEFAULT_CLIENT_ID,
        **times,
    )


def _milliseconds(key: str, text: str) -> int:
    try:
        return int(text.strip())
    except ValueError:
        raise SettingsError(f"{key} = {text!r}: expected a whole number of milliseconds") from None


def _credentials(properties: Mapping[str, str]) -> Credentials:
    name = properties.get("sasl.mechanism", "").strip()
    mechanisms = ", ".join(Mechanism)
    if not name:
        raise SettingsError(f"sasl.mechanism is not set; expected one of {mechanisms} (Kafka's default is GSSAPI)")
    if name not in [*Mechanism]:
        raise SettingsError(f"sasl.mechanism = {name}: the client has {mechanisms}")
    mechanism = Mechanism(name)
    if "sasl.jaas.config" not in properties:
        raise SettingsError("sasl.jaas.config is not set; it has the user's name and password")
    module, options = parse_jaas(properties["sasl.jaas.config"])
    if module.rpartition(".")[2] != _MODULES[mechanism]:
        raise SettingsError(f"sasl.jaas.config: the login module for {mechanism} is {_MODULES[mechanism]}")
    for option in ("username", "password"):
        if option not in options:
            raise SettingsError(f"sasl.jaas.config has no {option}")
    for option in sorted(options.keys() - {"username", "password"}):
        raise SettingsError(f"sasl.jaas.config: the client does not have the option {option}")
    return Credentials(mechanism=mechanism, user=options["username"], password=options["password"])


def _tls_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    authorities = _pem_file(properties, "ssl.truststore") or properties.get("ssl.ca.location")
    try:
        context = ssl.create_default_context(cafile=authorities, cadata=properties.get("ssl.truststore.certificates"))
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"the trusted certificates cannot be read from {authorities or 'the text'}: {error}"
        ) from error
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in ("https", ""):
        raise SettingsError(f"ssl.endpoint.identification.algorithm = {algorithm}: expected https, or nothing")
    context.check_hostname = algorithm == "https"
    own = _pem_file(properties, "ssl.keystore")
    if own is not None:
        try:
            # Without a function for the password, OpenSSL would ask for it on the terminal.
            context.load_cert_chain(own, password=lambda: properties.get("ssl.key.password", ""))
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"ssl.keystore.location = {own}: expected a certificate chain and its private key as PEM, and the"
                f" password of an encrypted key in ssl.key.password: {error}"
            ) from error
    return context


def _pem_file(properties: Mapping[str, str], store: str) -> str | None:
    """Return the location of a certificate store, if it has one. Raises `SettingsError` if it is not a PEM file."""
    location = properties.get(f"{store}.location")
    if not location:
        return None
    kind = properties.get(f"{store}.type", "").strip().upper()
    advice = "the client reads PEM only; convert it with keytool and openssl, and set the type to PEM"
    if kind not in ("", "PEM"):
        raise SettingsError(f"{store}.type = {kind}: {advice}")
    try:
        beginning = Path(location).read_bytes()
    except OSError as error:
        raise SettingsError(f"{store}.location: cannot read {location}: {error}") from error
    if _PEM not in beginning:
        found = "a JKS file" if beginning.startswith(_JKS_BEGINNINGS) else "not a PEM file"
        raise SettingsError(f"{store}.location = {location} is {found}: {advice}")
    return location
