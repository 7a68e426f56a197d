"""Settings that take effect at a reload."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import structlog

from headrace.config import loads
from headrace.proxy.server.server import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUIRED = 'upstream.bootstrap_servers = ["127.0.0.1:9"]\nlisten.address = "127.0.0.1:9192"\n'


@pytest.fixture(autouse=True)
def log_settings() -> Iterator[None]:
    """Undo what a reload changes for the whole process."""
    yield
    structlog.reset_defaults()


async def test_the_bounds_of_handshakes() -> None:
    server = Server(loads(REQUIRED))
    server.reloader.apply(loads(f'{REQUIRED}[limits]\nmax_tls_handshakes = 5\ntls_handshake_timeout = "2s"\n'))
    handshakes = server.shared.handshakes
    assert (handshakes.most, handshakes.timeout_s) == (5, 2.0)
    server.shared.pipes.close()
    server.shared.hooks.close()
