"""Parts of a server that an installation may not have."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.config import loads
from headrace.proxy.counters import Counters
from headrace.proxy.data_plane.native import EXTENSION
from headrace.proxy.errors import StartupError
from headrace.proxy.server import configured
from headrace.proxy.server.parts import create_admission, create_data_plane

REQUIRED = 'upstream.bootstrap_servers = ["127.0.0.1:1"]\nlisten.address = "127.0.0.1:9192"\n'


def test_a_native_data_plane_that_is_not_installed_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, EXTENSION, None)
    shared: Any = SimpleNamespace(hooks=None, enforcement=None, counters=None)
    assert create_data_plane(loads(REQUIRED, "headrace.toml"), shared, lambda: 0) is None
    message = f'data_plane is "native", but this installation has no native data plane ({EXTENSION}),'
    with pytest.raises(StartupError, match=re.escape(message)):
        create_data_plane(loads(f'data_plane = "native"\n{REQUIRED}', "headrace.toml"), shared, lambda: 0)


@pytest.mark.parametrize(
    ("setting", "expected", "is_logged"),
    [("", 4096, True), ('limits.max_memory = "0B"\n', 0, False), ('limits.max_memory = "1MiB"\n', 2**20, False)],
)
def test_the_most_memory_is_that_of_the_configuration_or_a_share_of_the_containers(
    setting: str, expected: int, is_logged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configured, "default_max_memory_bytes", lambda: 4096)
    with capture_logs() as lines:
        admission = create_admission(loads(REQUIRED + setting, "headrace.toml"), Counters())
    assert admission.overload.max_memory_bytes == expected
    assert [line.get("bytes") for line in lines] == ([expected] if is_logged else [])
