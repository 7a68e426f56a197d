"""Kafka's jars: resolves Maven coordinates to paths of jar files, with a cache on disk.

Owns the cache directory and everything below it. The first call for a set of coordinates resolves and downloads (about
half a minute for a broker); later calls read one small index file and check that the jars exist, without importing the
resolver or touching the network. Called by everything in the testbed that starts a JVM.

Of jgo, only the resolver is used: `jgo.build` would also sort the jars by module type, for which it may download a JDK,
and `.classpath` of its environments omits the modular jars.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import ArtifactsUnavailableError, UnknownVersionError
from testbed.processes.locks import exclusive

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_log = logging.getLogger(__name__)

DEFAULT_BROKER_VERSION = "4.3.1"
BROKER_VERSIONS = ("4.3.1", "3.9.1")
CLIENT_VERSIONS = ("4.4.0", "4.3.1", "3.9.1")

# Kafka's own jars bring either no slf4j binding (4.x) or reload4j's (3.9). One binding that is set by system
# properties, of the slf4j version that all three Kafka versions use, makes logging the same everywhere.
LOGGING = "org.slf4j:slf4j-simple:1.7.36"
REPLACED_JARS = ("slf4j-reload4j-",)
# An optional dependency of kafka-clients, which without it can neither convert messages to JSON nor use MessageUtil.
JSON = "com.fasterxml.jackson.core:jackson-databind:2.21.2"

CACHE_VARIABLE = "HEADRACE_TESTBED_CACHE"
REPOSITORY_VARIABLE = "HEADRACE_TESTBED_REPOSITORY"

# A resolution without cache takes about 30 s here; on a slow connection another process holds the lock for minutes.
LOCK_TIMEOUT_S = 900.0
# jgo downloads one file after the other; four parallel downloads hide the round trips.
DOWNLOAD_STREAMS = 4


def cache_directory() -> Path:
    """Return the cache of jars and class data: $HEADRACE_TESTBED_CACHE, else headrace-testbed in the user's cache."""
    if own := os.environ.get(CACHE_VARIABLE):
        return Path(own).expanduser().absolute()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser().absolute() / "headrace-testbed"
    return Path.home() / ".cache" / "headrace-testbed"


def broker_jars(version: str = DEFAULT_BROKER_VERSION) -> tuple[Path, ...]:
    """Return the jars of a broker of `version` with Kafka's tools and clients, in class path order.

    Raises UnknownVersionError for a version not in BROKER_VERSIONS, and what `resolve` raises.
    """
    if version not in BROKER_VERSIONS:
        raise UnknownVersionError(f"no Kafka broker {version!r} in the testbed; it has {', '.join(BROKER_VERSIONS)}")
    return resolve(
        f"org.apache.kafka:kafka_2.13:{version}",
        f"org.apache.kafka:kafka-tools:{version}",
        LOGGING,
    )


def client_jars(version: str) -> tuple[Path, ...]:
    """Return the jars of kafka-clients `version`, of its dependencies, and of those of its JSON converters.

    Raises UnknownVersionError for a version not in CLIENT_VERSIONS, and what `resolve` raises.
    """
    if version not in CLIENT_VERSIONS:
        raise UnknownVersionError(f"no kafka-clients {version!r} in the testbed; it has {', '.join(CLIENT_VERSIONS)}")
    return resolve(f"org.apache.kafka:kafka-clients:{version}", JSON, LOGGING)


def resolve(*coordinates: str) -> tuple[Path, ...]:
    """Return the jar files of `coordinates` ("group:artifact:version") and of all their run-time dependencies.

    Takes milliseconds when they are cached; otherwise downloads them, one process at a time. Raises
    ArtifactsUnavailableError if they cannot be downloaded, LockTimeoutError if another process is still downloading
    after LOCK_TIMEOUT_S. A download is logged at level INFO by the logger testbed.kafka.artifacts.
    """
    cache = cache_directory()
    index = cache / "index" / (re.sub(r"[^\w.-]+", "_", "+".join(coordinates)) + ".json")
    if jars := _read_index(cache, index):
        return jars
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with exclusive(cache / "artifacts.lock", timeout_s=LOCK_TIMEOUT_S):
            if jars := _read_index(cache, index):  # another process was faster
                return jars
            _log.info("downloading %s into %s, once", " and ".join(coordinates), cache)
            with _undo_of_interrupted_downloads(cache):
                jars = _download(cache, coordinates)
                _write_index(cache, index, jars)
    except OSError as error:
        raise _unavailable(coordinates, cache, error) from error
    return jars


def _read_index(cache: Path, index: Path) -> tuple[Path, ...]:
    """Return the jars in the index file, or () if it is missing, unreadable, or lists a jar that does not exist."""
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["jars"]
        jars = tuple(cache / name for name in names)
    except (OSError, ValueError, LookupError, TypeError):
        return ()
    return jars if all(jar.is_file() for jar in jars) else ()


def _write_index(cache: Path, index: Path, jars: Sequence[Path]) -> None:
    index.parent.mkdir(parents=True, exist_ok=True)
    names = [str(jar.relative_to(cache)) for jar in jars]
    draft = index.with_suffix(f".{os.getpid()}.draft")
    draft.write_text(json.dumps({"jars": names}, indent=1) + "\n", encoding="utf-8")
    draft.replace(index)


@contextlib.contextmanager
def _undo_of_interrupted_downloads(cache: Path) -> Iterator[None]:
    """Remove the files that an earlier, interrupted download may have left incomplete.

    jgo writes each file under its final name. So a marker file is created before a download and removed after it; if
    the marker exists at the start, every file newer than it may be incomplete. The caller holds the cache's lock.
    """
    marker = cache / "downloading"
    if marker.exists():
        since = marker.stat().st_mtime_ns
        for file in (cache / "maven").rglob("*"):
            if file.is_file() and file.stat().st_mtime_ns >= since:
                file.unlink()
        marker.unlink()
    marker.touch()
    yield
    marker.unlink()


def _download(cache: Path, coordinates: Sequence[str]) -> tuple[Path, ...]:
    """Resolve and download into the cache's own Maven repository; the caller holds the cache's lock."""
    try:
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.maven import MavenContext
        from jgo.parse import Coordinate
    except ImportError as error:
        raise ArtifactsUnavailableError(
            f"cannot resolve {' and '.join(coordinates)}: the package jgo is missing; make installs it"
        ) from error
    repository = os.environ.get(REPOSITORY_VARIABLE) or MAVEN_CENTRAL_URL
    context = MavenContext(repo_cache=cache / "maven", remote_repos={"central": repository.rstrip("/")})
    try:
        wanted = [context.create_dependency(Coordinate.parse(name)) for name in coordinates]
        inputs, transitive = context.resolver.resolve(wanted)
        needed = [*inputs, *(dependency for dependency in transitive if dependency.scope in {"compile", "runtime"})]
        artifacts = [need.artifact for need in needed if not need.artifact.filename.startswith(REPLACED_JARS)]
        with ThreadPoolExecutor(DOWNLOAD_STREAMS) as pool:
            jars = tuple(dict.fromkeys(pool.map(lambda artifact: Path(artifact.resolve()), artifacts)))
    except Exception as error:
        raise _unavailable(coordinates, cache, error) from error
    for jar in jars:
        if not zipfile.is_zipfile(jar):
            raise _unavailable(coordinates, cache, ValueError(f"{jar.name} is not a jar file"))
    return jars


def _unavailable(coordinates: Sequence[str], cache: Path, cause: Exception) -> ArtifactsUnavailableError:
    return ArtifactsUnavailableError(
        f"cannot get {' and '.join(coordinates)}: {_first_line(cause)}. They are not in the cache {cache} and could not"
        f" be downloaded: connect this machine to a Maven repository (set {REPOSITORY_VARIABLE} to the URL of a mirror"
        f" if Maven Central is out of reach), or set {CACHE_VARIABLE} to a cache filled elsewhere"
    )


def _first_line(error: Exception) -> str:
    """Return the error's class and first line, without the addresses of Python objects that urllib3 adds."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {re.sub(r'<[^<>]* object at 0x[0-9a-f]+>: ?', '', text)[:300]}"
