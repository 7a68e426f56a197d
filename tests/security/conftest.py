"""What the clients of attack tests speak."""

from __future__ import annotations

import pytest

from testbed.kafka.certificates import Authority
from tests.security.secured import Security


@pytest.fixture(scope="module", params=["plaintext", pytest.param("tls", marks=pytest.mark.exhaustive)])
def security(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Security:
    """For tests of attacks whose path TLS changes: they run with plaintext, and in the long run also with TLS."""
    is_tls = request.param == "tls"
    return Security(authority=Authority(tmp_path_factory.mktemp("authority")) if is_tls else None)
