"""The README's commands, unchanged except for ports and paths, in front of a real broker."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.config.loading import loads
from headrace.proxy.admin.access import read_tokens
from testbed.kafka.tools import Tool, run_tool
from testbed.preloaded_command import run_headrace
from testbed.proxy_process import ProxyProcess
from tests.pages import blocks_of

if TYPE_CHECKING:
    from tests.shared_cluster import FirstBroker

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
blocks = partial(blocks_of, README)
BIN = Path(sys.executable).parent


def commands() -> list[list[str]]:
    return [line.split() for block in blocks("sh") for line in block.splitlines() if line.startswith("headrace ")]


def command(word: str) -> list[str]:
    """The arguments of the first command with ``word`` behind ``headrace``."""
    return next(each[1:] for each in commands() if each[1] == word)


def test_there_is_a_test_for_each_block() -> None:
    assert sorted({each[1] for each in commands()}) == ["check-config", "enforcement", "run", "why"]
    assert (len(blocks("python")), len(blocks("toml"))) == (1, 1)


def test_a_first_use_in_front_of_a_cluster(kafka: FirstBroker) -> None:
    """``run`` without a file, the Python client, and the switch."""
    asked = command("run")
    assert asked[1:6:2] == ["--bootstrap-servers", "--listen", "--advertised-host"]
    with ProxyProcess(kafka.bootstrap_servers, arguments=asked[5:7], has_token=True) as proxy:

        def there(arguments: list[str]) -> list[str]:
            files = {"127.0.0.1:9190": proxy.admin, "admin-token": str(proxy.token_file)}
            return [files.get(each, each) for each in arguments]

        run_tool(Tool.TOPICS, ["--bootstrap-server", kafka.bootstrap_servers, "--create", "--topic", "greetings"])
        code = blocks("python")[0].replace("localhost:9192", proxy.bootstrap_servers)
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0, result.stderr
        why = run_headrace(*there(command("why")))
        assert (why.returncode, why.stdout) == (0, "no request was throttled or refused\n"), why.stderr
        switch = run_headrace(*there(command("enforcement")))
        assert (switch.returncode, switch.stdout) == (0, "enforcement is off\n"), switch.stderr
        assert proxy.metric("headrace_enforcement_enabled") == 0
    offsets = run_tool(Tool.GET_OFFSETS, ["--bootstrap-server", kafka.bootstrap_servers, "--topic", "greetings"])
    assert offsets.stdout.strip() == "greetings:0:1"


def test_the_token_is_one_that_the_proxy_accepts(tmp_path: Path) -> None:
    (line,) = [each for each in blocks("sh")[1].splitlines() if "openssl" in each]
    subprocess.run(["bash", "-euc", line], cwd=tmp_path, timeout=60, check=True)
    file = tmp_path / str(loads(blocks("toml")[0]).admin.token_file)
    assert len(read_tokens(str(file))) == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_check_config_accepts_the_file(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text(blocks("toml")[0], encoding="utf-8")
    result = subprocess.run(
        [BIN / "headrace", *command("check-config")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "localhost:9192" in result.stdout


def test_the_file_holds_the_greedy_client() -> None:
    limits = loads(blocks("toml")[0]).entity_quotas()
    assert {str(entity): {key: quota.value for key, quota in quotas.items()} for entity, quotas in limits.items()} == {
        "client-id=greedy": {"producer_byte_rate": 2 * 2**20},
        "client-id=<default>": {"consumer_byte_rate": 20 * 2**20},
    }


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\((docs/[\w-]+\.md)[)#]", README))))
def test_pages_that_are_linked_are_there(path: str) -> None:
    assert (ROOT / path).is_file()
