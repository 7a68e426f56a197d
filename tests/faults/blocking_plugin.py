"""A plugin that blocks the event loop for ever at a request of the client "blocking"."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

CLIENT_ID: Final = "blocking"
FUNCTION: Final = "wait_for_ever"
CONFIG: Final = '[plugins]\nload = ["blocking"]\n'
_MARK: Final = "blocks"
_SOURCE: Final = f"""
import time
from pathlib import Path

from headrace.quota_callbacks.hookspecs import hookimpl

headrace_hooks = 1


@hookimpl
def request_received(request):
    if request.client_id == "{CLIENT_ID}":
        {FUNCTION}()


def {FUNCTION}():
    Path(__file__).with_name("{_MARK}").touch()
    time.sleep(3600)
"""


def install(folder: Path) -> dict[str, str]:
    """Write the plugin to a folder, and return the environment in which a proxy with `CONFIG` finds it."""
    (folder / "blocking.py").write_text(_SOURCE, encoding="utf-8")
    return {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}


def wait_until_it_blocks(folder: Path) -> None:
    """Wait until the plugin in a folder blocks the event loop of a proxy."""
    wait_until((folder / _MARK).exists, "the plugin blocks the event loop")
