"""The sample file, ``headrace.sample.toml``: every key with its default, packaged beside this module.

Called by the command line, to write a first configuration. Its tests hold it to `schema`.
"""

from __future__ import annotations

from importlib.resources import files


def sample_text() -> str:
    """The sample as text: required keys are set, all others stand commented out with their defaults."""
    return (files("config") / "headrace.sample.toml").read_text(encoding="utf-8")
