"""A plugin that blocks the event loop for ever at a request of the client "blocking"."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

CLIENT_ID: Final = "blocking"
FUNCTION: Final = "wait_for_ever"
CONFIG: Final = '[plugins]\nload = ["blocking"]\n'
_SOURCE: Final = f"""
import time

from headrace.quota_callbacks.hookspecs import hookimpl

headrace_hooks = 1


@hookimpl
def request_received(request):
    if request.client_id == "{CLIENT_ID}":
        {FUNCTION}()


def {FUNCTION}():
    time.sleep(3600)
"""


def install(folder: Path) -> dict[str, str]:
    """Write the plugin to a folder, and return the environment in which a proxy with `CONFIG` finds it."""
    (folder / "blocking.py").write_text(_SOURCE, encoding="utf-8")
    return {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
