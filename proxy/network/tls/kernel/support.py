"""Whether connections to brokers can have TLS of the kernel (kTLS), as far as that is known before the first one.

Used where the server creates its upstreams, and for the line "headrace ready".
"""

from __future__ import annotations

import socket
import ssl
import sys
from functools import cache
from typing import TYPE_CHECKING, Final

from headrace.config.tables.tls import TlsVersion

if TYPE_CHECKING:
    from headrace.config.tables.tls import UpstreamTls

TLS_1_3_IN_KERNEL: Final = ssl.OPENSSL_VERSION_INFO >= (3, 2)
"""Whether OpenSSL gives the kernel the keys of both directions with TLS 1.3; 3.0 and 3.1 do so with TLS 1.2 only."""

ENABLE_KTLS: Final = 1 << 3
"""``SSL_OP_ENABLE_KTLS``, which Python has from 3.12 on."""

_TCP_ULP: Final = 31
"""Number of ``<linux/tcp.h>``, which Python does not have."""


@cache
def _problem_of_system() -> str | None:
    if sys.platform != "linux":
        return "it is supported on Linux only"
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname()) as sock,
        ):
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_ULP, b"tls")
    except OSError:
        return "the kernel does not offer it, or its module tls is not loaded"
    return None


def kernel_tls_problem(lowest: TlsVersion) -> str | None:
    """Return why connections with at least the version ``lowest`` cannot have kernel TLS; ``None`` if they can.

    The kernel is asked once, with a connection of the process to itself. Whether OpenSSL supports kernel TLS shows only
    when a handshake has ended (`headrace.proxy.network.tls.kernel.sockets.NotInKernel`).
    """
    problem = _problem_of_system()
    if problem is None and lowest is TlsVersion.TLS_1_3 and not TLS_1_3_IN_KERNEL:
        return "with TLS 1.3 it needs OpenSSL 3.2"
    return problem


def has_kernel_tls(tls: UpstreamTls) -> bool:
    """Return whether connections to these brokers are to have kernel TLS, and can."""
    return tls.enabled and tls.kernel and kernel_tls_problem(tls.min_version) is None
