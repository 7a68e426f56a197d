"""The page about changing quotas: its commands print what it shows, and its tables are complete."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.config.loading import loads
from headrace.proxy.quota_tools.options import DEFAULT_SERVER, DEFAULT_TIMEOUT_S
from headrace.proxy.quota_tools.quotas_command import command as quotas
from testbed.proxy_process import ProxyProcess
from tests.proxy.quota_tools.commands import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shared_cluster import FirstBroker

PAGE = (Path(__file__).parents[2] / "docs" / "changing-quotas.md").read_text(encoding="utf-8")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
STATUS = {"diff": 1}
"""The exit status of commands, if it is not 0."""


def sessions() -> Iterator[tuple[str, str]]:
    """Each command of the page, and what it prints."""
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for part in block.split("$ ")[1:]:
            line, _, output = part.partition("\n")
            yield line, output


def rows(heading: str) -> dict[str, str]:
    """The rows of the table under a heading: the second cell, by each word in code style of the first."""
    section = PAGE.split(f"# {heading}\n")[1].split("\n#")[0]
    cells = [line.strip("| ").split(" | ", 1) for line in section.splitlines() if line.startswith("| `")]
    return {name.split()[0]: text for first, text in cells for name in re.findall(r"`([^`]+)`", first)}


@pytest.fixture
def proxy(kafka: FirstBroker, tmp_path: Path) -> Iterator[ProxyProcess]:
    config = f'[client_quotas]\nfile = "{tmp_path / "quotas.sqlite"}"\n'
    with ProxyProcess(kafka.bootstrap_servers, config=config) as running:
        yield running


def test_the_commands_print_what_it_shows(proxy: ProxyProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {"HEADRACE_BOOTSTRAP_SERVER": proxy.bootstrap_servers, "HEADRACE_ADMIN__LISTEN": proxy.admin}
    used = set()
    for line, expected in sessions():
        command, _, file = line.partition(" > ")
        program, *arguments = shlex.split(command)
        assert program == "headrace"
        ran = run(*arguments, environment=environment)
        assert ran.status == STATUS.get(arguments[1], 0), (line, ran.err)
        remark = "headrace: there are older changes: --before " if arguments[1] == "audit" else ""
        assert not ran.err or (remark and ran.err.startswith(remark)), line
        if file:
            Path(file).write_text(ran.out, encoding="utf-8")
            continue
        assert TIME.sub("TIME", ran.out) == TIME.sub("TIME", expected), line
        used.add(arguments[1])
    assert used == {"alter", "describe", "resolve", "diff", "apply", "audit"}
    for name, arguments in {
        "describe": [],
        "export": [],
        "resolve": ["--names", "user=alice"],
        "alter": ["--names", "user=alice", "--delete", "request_percentage"],
        "apply": ["quotas.toml", "--yes"],
        "diff": ["quotas.toml"],
        "audit": ["--newest", 1],
    }.items():
        found = run("quotas", name, "--json", *arguments, environment=environment).json
        assert set(found) <= set(re.findall(r"`(\w+)`", rows("JSON")[name])), name
    step = run("quotas", "import", "--from", proxy.bootstrap_servers, "--json", environment=environment).json
    assert set(step) <= set(re.findall(r"`(\w+)`", rows("JSON")["import"]))


def test_the_tables_have_all_commands() -> None:
    assert set(rows("Commands")) == set(rows("JSON")) == set(quotas.commands)


def test_the_defaults_are_those_of_the_code() -> None:
    words = " ".join(PAGE.split())
    assert f"or else {DEFAULT_SERVER}." in words
    assert f"it is {DEFAULT_TIMEOUT_S:g} s by default" in words


def test_its_configuration_is_taken() -> None:
    text, *_ = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    required = '[upstream]\nbootstrap_servers = ["127.0.0.1:9092"]\n[listen]\naddress = "127.0.0.1:9192"\n'
    config = loads(f'{required}advertised_host = "x"\n{text}')
    assert config.client_quotas.administrators == ("platform-admin",)
