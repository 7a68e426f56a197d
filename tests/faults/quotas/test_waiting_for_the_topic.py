"""A proxy that waits for the topic of quotas at start says so, and can be stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Final

import pytest

from testbed.processes.ports import reserve_ports
from tests.clients.fronts import eventually

if TYPE_CHECKING:
    from pathlib import Path

CONFIG: Final = """\
[listen]
address = "127.0.0.1:{first}"
advertised_host = "127.0.0.1"
node_ids = "0"
[admin]
listen = "127.0.0.1:{admin}"
[upstream]
bootstrap_servers = ["127.0.0.1:{broker}"]
[client_quotas]
store = "topic"
topic = "quotas-of-nobody"
"""
STOP_S: Final = 30.0
"""The attempt to read the topic and the plugins end within about ten seconds each."""


def page(url: str) -> tuple[int, str]:
    """Status and body; status 0 if nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 -- the URL begins with http:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


@pytest.mark.exhaustive
def test_the_log_names_what_the_start_waits_for_and_sigterm_ends_it(tmp_path: Path) -> None:
    file, log = tmp_path / "headrace.toml", tmp_path / "log"
    with reserve_ports(4) as block, log.open("wb") as errors:
        first, _, admin, broker = block.ports
        file.write_text(CONFIG.format(first=first, admin=admin, broker=broker))
        command = [sys.executable, "-m", "headrace.proxy.cli", "run", "--config", str(file)]
        with subprocess.Popen(command, stderr=errors) as process:
            try:
                at = f"http://127.0.0.1:{admin}"
                eventually(lambda: page(f"{at}/livez")[0] == 200, "the admin server is open")
                status, reasons = page(f"{at}/readyz")
                assert status == 503
                assert "no client is served until the topic of quotas quotas-of-nobody has been read" in reasons
                eventually(lambda: "waiting for the topic of quotas" in log.read_text(), "it is logged")
                for setting in ("unreachable", "topic", "topic_properties"):
                    assert f"client_quotas.{setting} " in log.read_text().replace("'", " ").replace('"', " ")
                process.send_signal(signal.SIGTERM)
                assert process.wait(STOP_S) == 0
            finally:
                process.kill()
    assert "Traceback" not in log.read_text()
