"""A reload with workers: what the supervisor does before it tells them."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from structlog.testing import capture_logs

from headrace.config.schema import Config
from headrace.proxy.workers import supervisor
from headrace.proxy.workers.supervisor import Supervisor

if TYPE_CHECKING:
    import pytest
    from trio.testing import MockClock


async def test_a_plugin_that_hangs_is_not_awaited(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> None:
    """Signals are handled after a reload, also those that stop the proxy."""
    goes_on = threading.Event()
    monkeypatch.setattr(supervisor, "dry_hooks", lambda _: goes_on.wait())
    config = Config.model_validate(
        {"listen": {"address": "127.0.0.1:9192"}, "upstream": {"bootstrap_servers": ["127.0.0.1:9092"]}}
    )
    unused = cast("Any", SimpleNamespace(workers=1))
    supervising = Supervisor(config, load=lambda: config, fork_server=unused, memory=unused)
    with capture_logs() as logs:
        await supervising.reload()
    assert not goes_on.is_set()
    goes_on.set()
    assert [(each["event"], each["problem"]) for each in logs] == [
        ("the configuration cannot be checked; the old one stays in force", "plugins were not configured within 30 s")
    ]
