"""The page about the admin client: its programs run, and its tables are complete."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.proxy.kafka_client import errors
from headrace.proxy.kafka_client.properties import KNOWN_KEYS, read_settings
from headrace.proxy.kafka_client.settings import Mechanism
from testbed.proxy_process import ProxyProcess
from tests.pages import blocks_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shared_cluster import FirstBroker

PAGE = (Path(__file__).parents[2] / "docs" / "admin_client.md").read_text(encoding="utf-8")
blocks = partial(blocks_of, PAGE)


def names_in(heading: str) -> set[str]:
    """Every word in code style in the first cells of the table under a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


@pytest.fixture(scope="module")
def proxy(kafka: FirstBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    config = f'[client_quotas]\nfile = "{tmp_path_factory.mktemp("quotas") / "quotas.sqlite"}"\n'
    with ProxyProcess(kafka.bootstrap_servers, config=config) as running:
        yield running


@pytest.mark.parametrize("number", range(3))
def test_the_programs_run(number: int, proxy: ProxyProcess, tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text(blocks("properties")[0], encoding="iso-8859-1")
    code = blocks("python")[number].replace("localhost:9192", proxy.bootstrap_servers)
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert number != 1 or ran.stdout == "3\n"


def test_every_program_is_run() -> None:
    assert len(blocks("python")) == 3


def test_the_file_is_read_without_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(blocks("properties")[0], encoding="iso-8859-1")
    reports: list[str] = []
    settings = read_settings(file, bootstrap_servers="localhost:9192", report=reports.append)
    assert settings.credentials is not None
    assert (settings.credentials.mechanism, settings.credentials.user) == (Mechanism.SCRAM_SHA_512, "admin")
    assert settings.tls is not None
    assert not reports


def test_the_tables_are_complete() -> None:
    assert names_in("Settings") == KNOWN_KEYS
    documented = names_in("Errors")
    ours = {name for name, each in vars(errors).items() if inspect.isclass(each) and each.__module__ == errors.__name__}
    retried = {"UnreachableError", "ConnectionLostError", "NotControllerError"}
    assert documented == ours - retried - {"KafkaClientError"}
