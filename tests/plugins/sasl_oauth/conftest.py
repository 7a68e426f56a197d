"""A server of keys and tokens with TLS. Nothing of the environment decides where requests go."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.plugins.sasl_oauth.identity_provider import Authority, IdentityProvider, identity_provider, new_authority

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def provider(authority: Authority) -> Iterator[IdentityProvider]:
    """A server with TLS, whose certificate `authority` has signed."""
    with identity_provider(authority.server_tls()) as running:
        yield running
