"""A proxy for each listener of the secure cluster, with the same security on both of its sides."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from click.testing import CliRunner

from headrace.plugins.sasl_users.command import users
from testbed.proxy_process import ProxyProcess
from tests.secure_cluster import Port
from tests.shared_cluster import SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from testbed.kafka.certificates import Certificate
    from tests.secure_cluster import SecureKafka

PROXYS_USER: Final = "carol"
"""The user as which the proxy authenticates to brokers."""
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def listen_tls(certificate: Certificate, *, clients: Path | None = None) -> str:
    """Return the configuration of TLS with clients; ``clients`` are the authorities of their certificates."""
    shown = "" if clients is None else f'client_certificates = "required"\nclient_ca_file = "{clients}"\n'
    return f'[listen.tls]\ncertificate_file = "{certificate.keystore_file}"\n{shown}'


def upstream_tls(kafka: SecureKafka, *, certificate: bool = False) -> str:
    """Return the configuration of TLS with brokers, with a certificate of the proxy if brokers require one."""
    own = f'certificate_file = "{kafka.client.keystore_file}"\n' if certificate else ""
    return f'[upstream.tls]\nenabled = true\nca_file = "{kafka.authority.ca_file}"\n{own}'


def observing(kafka: SecureKafka) -> Mapping[Port, tuple[Port, str]]:
    """Return the brokers' port and the configuration of a proxy for each port, of one that does not terminate SASL."""
    ca = kafka.authority.ca_file
    elsewhere = kafka.authority.broker_certificate("elsewhere-proxy", hosts=["proxy.elsewhere.example"])
    expired = kafka.expired
    own = listen_tls(kafka.broker)
    mutual = listen_tls(kafka.broker, clients=ca)
    return {
        Port.PLAINTEXT: (Port.PLAINTEXT, ""),
        Port.TLS: (Port.TLS, own + upstream_tls(kafka)),
        Port.MUTUAL_TLS: (Port.MUTUAL_TLS, mutual + upstream_tls(kafka, certificate=True)),
        Port.OTHER_HOST: (Port.PLAINTEXT, listen_tls(elsewhere)),
        Port.EXPIRED: (Port.PLAINTEXT, listen_tls(expired)),
        Port.SASL: (Port.SASL, ""),
        Port.SASL_TLS: (Port.SASL_TLS, own + upstream_tls(kafka)),
        Port.SASL_MUTUAL_TLS: (Port.SASL_MUTUAL_TLS, mutual + upstream_tls(kafka, certificate=True)),
    }


def terminating(kafka: SecureKafka, folder: Path) -> Mapping[Port, tuple[Port, str]]:
    """Return the same for proxies that authenticate clients themselves, and themselves to the brokers.

    Each uses another mechanism at the brokers.
    """
    clients = terminated(folder, MECHANISMS)
    own = listen_tls(kafka.broker)
    mutual = listen_tls(kafka.broker, clients=kafka.authority.ca_file)
    return {
        Port.SASL: (Port.SASL, clients + upstream_sasl(folder, "PLAIN")),
        Port.SASL_TLS: (
            Port.SASL_TLS,
            own + upstream_tls(kafka) + clients + upstream_sasl(folder, "SCRAM-SHA-512"),
        ),
        Port.SASL_MUTUAL_TLS: (
            Port.SASL_MUTUAL_TLS,
            mutual + upstream_tls(kafka, certificate=True) + clients + upstream_sasl(folder, "SCRAM-SHA-256"),
        ),
    }


def upstream_sasl(folder: Path, mechanism: str, password: str = SECRETS[PROXYS_USER]) -> str:
    """Return the configuration of a proxy that authenticates itself to the brokers as `PROXYS_USER`."""
    file = folder / "password-of-the-proxy"
    file.write_text(password, encoding="ascii")
    return f'[upstream.sasl]\nmechanism = "{mechanism}"\nuser = "{PROXYS_USER}"\npassword = {{ file = "{file}" }}\n'


def terminated(folder: Path, mechanisms: Sequence[str], *more: str) -> str:
    """Return the configuration of a proxy that authenticates clients; ``more`` are those of `users_file`."""
    return (
        f'[listen.sasl]\nmode = "terminate"\nmechanisms = {[*mechanisms]}\n'
        f'[plugins.options.sasl_users]\nfile = "{users_file(folder, *more)}"\n'
    )


def terminated_plain(folder: Path, *more: str) -> str:
    """Return the same with PLAIN alone."""
    return terminated(folder, ["PLAIN"], *more)


def users_file(folder: Path, *more: str) -> Path:
    """Return a file with `SECRETS` as users of the proxy, for all of `MECHANISMS`; ``more`` are further arguments."""
    file = folder / "users.db"
    for name, secret in SECRETS.items():
        arguments = ["add", name, "--file", str(file), "--password-file", "-", *more]
        done = CliRunner().invoke(users, arguments, input=secret, catch_exceptions=False)
        assert done.exit_code == 0, done.output
    return file


@contextmanager
def running(
    kafka: SecureKafka, proxies: Mapping[Port, tuple[Port, str]], more: str = "", data_plane: str = "auto"
) -> Iterator[Mapping[Port, ProxyProcess]]:
    """Run the proxies on a data plane; ``more`` is added to the configuration of each."""
    plane = f'data_plane = "{data_plane}"\n'
    with ExitStack() as stack:
        yield {
            port: stack.enter_context(
                ProxyProcess(kafka.address(upstream), config=plane + config + more, python=sys.executable)
            )
            for port, (upstream, config) in proxies.items()
        }
