"""Jars by coordinates, from a cache that survives whatever happens to its users."""

from __future__ import annotations

import contextlib
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed.errors import ArtifactsUnavailableError, LockTimeoutError, UnknownVersionError
from testbed.kafka import artifacts
from testbed.kafka.artifacts import broker_jars, cache_directory, client_jars, resolve
from testbed.processes.locks import exclusive
from tests.testbed.callers import caller, run_caller
from tests.testbed.kafka.maven import COORDINATES, Repository, maven_repository

if TYPE_CHECKING:
    from collections.abc import Iterator

# Port 1 (tcpmux) has no listener on any machine we know: connections are refused at once.
UNREACHABLE = "http://127.0.0.1:1"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(artifacts.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache"


@pytest.fixture
def repository(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    with maven_repository() as repository:
        monkeypatch.setenv(artifacts.REPOSITORY_VARIABLE, repository.url)
        yield repository


def test_a_broker_comes_with_tools_clients_and_one_logging_binding() -> None:
    for version in artifacts.BROKER_VERSIONS:
        names = [jar.name for jar in broker_jars(version)]
        assert {f"kafka_2.13-{version}.jar", f"kafka-tools-{version}.jar", f"kafka-clients-{version}.jar"} <= {*names}
        assert [name for name in names if name.startswith(("slf4j-", "log4j-slf4j"))] == [
            "slf4j-simple-1.7.36.jar",
            "slf4j-api-1.7.36.jar",
        ]
        assert len(set(names)) == len(names)


def test_unknown_versions_are_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownVersionError, match=r"no Kafka broker '2\.8\.0' in the testbed; it has 4\.3\.1, 3\.9\.1"):
        broker_jars("2.8.0")
    with pytest.raises(UnknownVersionError, match=r"no kafka-clients '2\.8\.0'"):
        client_jars("2.8.0")


def test_a_warm_call_takes_milliseconds_and_neither_resolver_nor_network() -> None:
    broker_jars()
    code = """
import json, sys, time
from testbed.kafka.artifacts import broker_jars
begin = time.perf_counter()
jars = broker_jars()
print(json.dumps([len(jars), time.perf_counter() - begin, "jgo" in sys.modules]))
"""
    count, seconds, resolver = run_caller(code, {artifacts.REPOSITORY_VARIABLE: UNREACHABLE})
    assert count > 50
    assert not resolver
    assert seconds < 0.25  # 2 ms here


def test_a_library_is_resolved_with_what_it_needs(cache: Path, repository: Repository) -> None:
    jars = resolve(COORDINATES)
    assert [jar.name for jar in jars] == ["app-1.0.jar", "library-1.0.jar"]
    assert all(zipfile.is_zipfile(jar) and jar.is_relative_to(cache) for jar in jars)
    before = len(repository.requests)
    assert resolve(COORDINATES) == jars
    assert len(repository.requests) == before


def test_a_jar_that_is_gone_is_fetched_again(repository: Repository) -> None:
    jars = resolve(COORDINATES)
    jars[1].unlink()
    assert resolve(COORDINATES) == jars
    assert jars[1].is_file()


@pytest.mark.parametrize("content", ["", "nonsense", "[]", '{"jars": 3}', '{"jars": [3]}', '{"jars": []}'])
def test_a_damaged_index_is_made_again(content: str, cache: Path, repository: Repository) -> None:
    jars = resolve(COORDINATES)
    [index] = (cache / "index").iterdir()
    index.write_text(content)
    assert resolve(COORDINATES) == jars


def test_an_interrupted_download_leaves_nothing_half_written(cache: Path, repository: Repository) -> None:
    path = "/example/app/1.0/app-1.0.jar"
    repository.broken = {path}
    with pytest.raises(ArtifactsUnavailableError, match=rf"cannot get {COORDINATES}: "):
        resolve(COORDINATES)
    repository.broken = set()
    jars = resolve(COORDINATES)
    assert jars[0].read_bytes() == repository.files[path]
    assert not (cache / "downloading").exists()


def test_what_is_no_jar_is_refused(repository: Repository) -> None:
    repository.files["/example/library/1.0/library-1.0.jar"] = b"<html>please sign in</html>"
    with pytest.raises(ArtifactsUnavailableError, match=r"library-1\.0\.jar is not a jar file"):
        resolve(COORDINATES)


def test_of_many_processes_one_downloads(cache: Path, repository: Repository) -> None:
    code = "import json; from testbed.kafka.artifacts import resolve; print(json.dumps([str(j) for j in resolve(%r)]))"
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(caller(code % COORDINATES)) for _ in range(4)]
        answers = {process.communicate(timeout=60) for process in processes}
    assert len(answers) == 1, answers
    assert [path for path in repository.requests if path.endswith(".jar")].count("/example/app/1.0/app-1.0.jar") == 1


def test_without_a_repository_one_error_names_the_remedy(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(artifacts.REPOSITORY_VARIABLE, UNREACHABLE)
    with pytest.raises(ArtifactsUnavailableError) as caught:
        broker_jars()
    text = str(caught.value)
    assert text.startswith("cannot get org.apache.kafka:kafka_2.13:4.3.1 and org.apache.kafka:kafka-tools:4.3.1 and ")
    assert "Connection refused" in text
    assert f"not in the cache {cache}" in text
    assert artifacts.REPOSITORY_VARIABLE in text
    assert artifacts.CACHE_VARIABLE in text
    assert "\n" not in text


def test_a_cache_that_cannot_be_written_is_the_same_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(artifacts.CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    with pytest.raises(ArtifactsUnavailableError, match="NotADirectoryError"):
        broker_jars()


def test_a_lock_is_waited_for_with_a_deadline(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    begin = time.monotonic()
    with (
        exclusive(lock, timeout_s=1.0),
        pytest.raises(LockTimeoutError, match="another process has held the lock"),
        exclusive(lock, timeout_s=0.1),
    ):
        pytest.fail("two holders")
    assert time.monotonic() - begin < 1.0
    with exclusive(lock, timeout_s=0.0):
        pass


def test_the_environment_sets_the_folder_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(artifacts.CACHE_VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_directory() == Path("/home/someone/.cache/headrace-testbed")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_directory() == Path("/caches/headrace-testbed")
    monkeypatch.setenv(artifacts.CACHE_VARIABLE, "~/own")
    assert cache_directory() == Path("/home/someone/own")
