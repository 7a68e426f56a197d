"""Archives of loaded classes: a convenience that never stands in the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from testbed.errors import TestbedError
from testbed.kafka import class_data
from testbed.kafka.class_data import class_data_archive
from testbed.kafka.launch import java_command
from testbed.kafka.tools import Tool
from testbed.processes.programs import run_program

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without archives."""
    monkeypatch.setattr(class_data, "cache_directory", lambda: tmp_path)
    return tmp_path / "class-data"


def test_there_is_one_for_the_java_of_this_machine() -> None:
    archive = class_data_archive("4.3.1")
    assert archive is not None
    assert archive.stat().st_size > 1_000_000


def test_a_damaged_archive_is_passed_over_without_a_word(tmp_path: Path) -> None:
    archive = tmp_path / "damaged.jsa"
    archive.write_bytes(b"nonsense" * 10_000)
    command = java_command("4.3.1", Tool.TOPICS.value, ["--version"], heap_mb=64, class_data=archive)
    result = run_program(command, timeout_s=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("4.3.1")


def test_a_java_that_makes_none_is_asked_once(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(class_data, "_train", lambda _, version: asked.append(version))
    assert class_data_archive("4.3.1") is None
    assert class_data_archive("4.3.1") is None
    assert asked == ["4.3.1"]


def test_an_accident_is_tried_again(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def accident(archive: Path, _: str) -> None:
        archive.write_bytes(b"half")
        raise TestbedError("too slow")

    def success(archive: Path, _: str) -> None:
        archive.write_bytes(b"whole")

    monkeypatch.setattr(class_data, "_train", accident)
    assert class_data_archive("4.3.1") is None
    assert [file.suffix for file in elsewhere.iterdir()] == [".lock"]
    monkeypatch.setattr(class_data, "_train", success)
    archive = class_data_archive("4.3.1")
    assert archive is not None
    assert archive.read_bytes() == b"whole"
