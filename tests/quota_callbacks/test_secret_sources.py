"""Secrets from commands: what is read of them is bounded, and none of them is left running."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from headrace.quota_callbacks import secret_sources
from headrace.quota_callbacks.options import LONGEST_SECRET_BYTES
from headrace.quota_callbacks.secret_sources import SecretError, SecretSource

if TYPE_CHECKING:
    from pathlib import Path


def shell(script: str) -> SecretSource:
    return SecretSource(command=("/bin/sh", "-c", script))


def test_a_command_that_prints_too_much_is_ended_at_once(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    source = shell(f"echo $$ > {file}; head -c {LONGEST_SECRET_BYTES + 1} /dev/zero; exec sleep 3600")
    with pytest.raises(SecretError, match=f"the command printed more than {LONGEST_SECRET_BYTES} bytes"):
        source.read()
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)


def test_the_longest_secret_is_read() -> None:
    secret = shell(f"head -c {LONGEST_SECRET_BYTES} /dev/zero").read()
    assert len(secret) == LONGEST_SECRET_BYTES


def test_a_command_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that prints nothing more."""
    monkeypatch.setattr(secret_sources, "COMMAND_TIMEOUT_S", 0.5)
    for script in ("exec sleep 3600", "echo hidden; exec >&-; exec sleep 3600"):
        with pytest.raises(SecretError, match=r"the command did not end within 0\.5 s") as caught:
            shell(script).read()
        assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo hidden; exit 3", "failed with status 3"),
        ("true", "the secret is empty"),
        (r"printf '\377'", "did not print UTF-8"),
    ],
)
def test_what_a_command_does_wrong_is_named(script: str, reason: str) -> None:
    with pytest.raises(SecretError, match=reason) as caught:
        shell(script).read()
    assert "hidden" not in str(caught.value)
