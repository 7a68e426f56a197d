"""The certificate of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.proxy.data_plane.native import is_installed
from tests.proxy.network.tls.pairs import rustls_sides

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.kafka.certificates import Authority, Certificate


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Certificate:
    return authority.broker_certificate()


@pytest.fixture(params=["", "server", "client"], ids=["openssl", "rustls-server", "rustls-client"])
def libraries(request: pytest.FixtureRequest) -> Iterator[set[str]]:
    """Let rustls compute the TLS of no side, or of one side, and OpenSSL that of the other; return those sides."""
    if request.param and not is_installed():
        pytest.skip("the extension module is not built")
    rustls_sides.update({request.param} - {""})
    yield rustls_sides
    rustls_sides.clear()
