"""The protocol that the clients of attack tests speak: plaintext or TLS."""

from __future__ import annotations

import pytest

from tests.security.secured import Security


@pytest.fixture(scope="module", params=["plaintext", pytest.param("tls", marks=pytest.mark.exhaustive)])
def security(request: pytest.FixtureRequest) -> Security:
    """For tests of attacks whose path TLS changes: they run with plaintext, and in the long run also with TLS."""
    return Security(authority=request.getfixturevalue("authority") if request.param == "tls" else None)
