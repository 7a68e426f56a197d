"""The listeners of a configuration share what belongs to a table that they have in common."""

from __future__ import annotations

from headrace.config.loading import loads
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager
from headrace.proxy.network.poller import Poller
from headrace.proxy.network.tls.handshake_turns import TurnsByAddress
from headrace.proxy.server.listeners import create_listeners

TABLES = """
[upstream]
bootstrap_servers = ["kafka:9093"]
tls.enabled = true

[listen]
address = "127.0.0.1:19192"

[listeners.near]
address = "127.0.0.1:29192"

[listeners.far]
address = "127.0.0.1:39192"

[listeners.far.upstream]
bootstrap_servers = ["far:9093"]
tls.enabled = true
"""


def test_files_of_a_table_are_read_once() -> None:
    """So they are read again once, too, and a certificate that expires is one line of the log."""
    turns = TurnsByAddress(1)
    (first, near, far), upstream = create_listeners(loads(TABLES), HookCalls(new_plugin_manager()), Poller(), turns)
    assert first.upstream is upstream
    assert near.upstream is not first.upstream, "each shows the cluster at its own addresses"
    assert near.upstream.tls is first.upstream.tls
    contexts = [each.upstream.tls for each in (first, far)]
    assert [context.setting for context in contexts if context is not None] == [
        "upstream.tls",
        "listeners.far.upstream.tls",
    ]
