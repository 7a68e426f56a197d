"""What attack tests run with: the protocol that clients speak, and the data plane that relays them."""

from __future__ import annotations

import pytest

from tests.security.planes import PLANES
from tests.security.secured import Security


@pytest.fixture(scope="module", params=["plaintext", pytest.param("tls", marks=pytest.mark.exhaustive)])
def security(request: pytest.FixtureRequest) -> Security:
    """For tests of attacks whose path TLS changes: they run with plaintext, and in the long run also with TLS."""
    return Security(authority=request.getfixturevalue("authority") if request.param == "tls" else None)


@pytest.fixture(scope="module", params=PLANES)
def plane(request: pytest.FixtureRequest) -> str:
    """The data plane of tests that run with each; see `tests.security.planes`."""
    return str(request.param)
