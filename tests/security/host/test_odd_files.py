"""Configuration files and secrets that are no ordinary files: a FIFO, a device, an endless or a vanished file. None of
them blocks the proxy, at its start or at a reload, and the configuration in force stays."""

from __future__ import annotations

import os
import threading
from signal import SIGHUP
from typing import TYPE_CHECKING, Any

import pytest
import trio
from structlog.testing import capture_logs

from headrace.config.loading import MAX_FILE_BYTES, load, loads
from headrace.config.problems import ConfigError
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager
from headrace.proxy.server.reloading import READ_TIMEOUT_S, load_again
from headrace.quota_callbacks.builtin.cost_files import load_costs
from headrace.quota_callbacks.options import read_secret
from testbed.proxy_process import ProxyProcess
from tests.config.documents import MINIMAL
from tests.faults import messages
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trio.testing import MockClock

    from tests.shared_cluster import FirstBroker


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


ODD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a FIFO": (os.mkfifo, "not an ordinary file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "not an ordinary file"),
    "a terminal": (lambda path: path.symlink_to("/dev/ptmx"), "not an ordinary file"),
    "a folder": (lambda path: path.mkdir(), "is a directory"),
    "a huge file": (sparse, f"longer than {MAX_FILE_BYTES} bytes, the maximum for a configuration"),
    "nothing": (lambda _path: None, "no such file or directory"),
    "a link to itself": (lambda path: path.symlink_to(path), "too many levels of symbolic links"),
}


@pytest.mark.timeout(60, func_only=True)
def test_a_reload_from_anything_but_an_ordinary_file(kafka: FirstBroker) -> None:
    """Before, a FIFO ended all reloads for good, and the proxy no longer stopped at SIGTERM."""
    with ProxyProcess(kafka.bootstrap_servers) as proxy:
        for name, (make, reason) in ODD.items():
            proxy.config_file.unlink(missing_ok=True)
            make(proxy.config_file)
            before = proxy.log.count("the configuration is invalid")
            proxy.signal(SIGHUP)
            wait_until(lambda before=before: proxy.log.count("the configuration is invalid") > before, name)
            assert reason in proxy.log.splitlines()[-1], name
            with RawClient(proxy.port) as client:
                client.call(messages.METADATA, 1, messages.NO_TOPICS)
            if name == "a folder":
                proxy.config_file.rmdir()
        proxy.config_file.unlink()
        proxy.reload('[limits]\nidle_timeout = "9m"\n')
        proxy.wait_for_log("limits.idle_timeout")
        assert proxy.stop() == 0


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ODD)
def test_no_reader_waits_for_an_odd_file(tmp_path: Path, name: str) -> None:
    make, _ = ODD[name]
    path = tmp_path / "odd"
    make(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(path)
    with pytest.raises(ValueError, match="cannot be read"):
        read_secret(str(path))
    with pytest.raises(ValueError, match="costs_file"):
        load_costs(str(path))


def test_a_link_to_an_ordinary_file_is_followed(tmp_path: Path) -> None:
    """As Kubernetes mounts configuration and secrets."""
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "password").write_text("hunter2\n")
    (tmp_path / "password").symlink_to("..data/password")
    assert read_secret(str(tmp_path / "password")) == "hunter2"


async def test_a_reload_gives_up_reading_after_a_while(autojump_clock: MockClock) -> None:
    """A network file system may hang for ever; signals are handled one after the other."""
    released = threading.Event()

    def hang() -> Any:
        released.wait(20)

    try:
        with capture_logs() as lines:
            config = loads(MINIMAL)
            hooks = HookCalls(new_plugin_manager())
            assert await load_again(hang, config, hooks) is None
        assert trio.current_time() == pytest.approx(READ_TIMEOUT_S, abs=1)
    finally:
        released.set()
    assert lines[0]["event"].startswith("the configuration could not be read in time")
