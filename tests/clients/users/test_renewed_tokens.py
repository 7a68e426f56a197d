"""The token of the proxy's own login expires: a real broker ends the session then, and the proxy has a new one by that
time."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

import pytest

from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until
from tests.plugins.sasl_identity.sasl_messages import unsecured
from tests.plugins.sasl_oauth.identity_provider import Reply, identity_provider
from tests.shared_cluster import LISTENER

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins.sasl_oauth.identity_provider import Asked
    from tests.shared_cluster import FirstBroker

LIFETIME_S: Final = 8.0
"""The lifetime of a token. The broker ends the session with it (KIP-368)."""
USED_S: Final = 2
"""How long the proxy uses a token for new logins: much shorter, so that a slow machine has time for each login."""


@pytest.mark.exhaustive
def test_a_connection_outlives_the_tokens_of_the_proxy(kafka: FirstBroker, tmp_path: Path) -> None:
    def issue(_: Asked) -> Reply:
        claims = {"sub": "proxy", "exp": time.time_ns() / 1e9 + LIFETIME_S}
        return Reply(json.dumps({"access_token": unsecured(claims), "expires_in": USED_S}).encode())

    (tmp_path / "secret").write_text("secret-of-the-proxy", encoding="ascii")
    with identity_provider() as provider:
        provider.answer = issue
        config = (
            '[upstream.sasl]\nmechanism = "OAUTHBEARER"\nuser = "proxy"\n'
            f'password = {{ file = "{tmp_path / "secret"}" }}\noptions = {{ token_endpoint = "{provider.url}" }}\n'
        )
        with (
            ProxyProcess(kafka.addresses(LISTENER), config=config) as proxy,
            RawClient(proxy.port, timeout_s=60) as client,
        ):
            assert client.call(messages.METADATA, 1, messages.NO_TOPICS)
            expired_s = time.monotonic() + LIFETIME_S
            fetched = len(provider.asked)
            wait_until(
                lambda: bool(client.call(messages.METADATA, 1, messages.NO_TOPICS)) and time.monotonic() > expired_s,
                "the token of the first login has expired",
                10 * LIFETIME_S,
                poll_s=0.1,
            )
            assert client.call(messages.METADATA, 1, messages.NO_TOPICS), "on the same connection"
            assert len(provider.asked) > fetched
