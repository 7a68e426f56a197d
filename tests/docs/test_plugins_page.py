"""The page about plugins: it names every hook, its example works, and every hook has a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import fields
from pathlib import Path

import pytest

from headrace.proxy.hooks.loading import installed_plugins
from headrace.quota_callbacks import hookspecs
from headrace.quota_callbacks.hookspecs import PluginContext
from headrace.quota_callbacks.requests import Connection, Request
from tests.packaging.building import build

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
HOOKS = [name for name, each in vars(hookspecs).items() if hasattr(each, "headrace_spec")]


def titled(title: str) -> str:
    """Return the block of the page that is the file ``title``."""
    found = re.search(rf'```\w+ title="{re.escape(title)}"\n(.*?)```', PAGE, re.DOTALL)
    assert found is not None, title
    return found.group(1)


def test_there_are_hooks() -> None:
    assert len(HOOKS) > 10


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_stands_on_the_page(hook: str) -> None:
    assert re.search(rf"^\| `{hook}\(", PAGE, re.MULTILINE)


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_docstring_and_a_test(hook: str) -> None:
    assert len(getattr(hookspecs, hook).__doc__) > 40
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "proxy").rglob("test_*.py"))
    assert re.search(rf"def {hook}\(", tests), f"no test implements {hook}"


def test_the_page_names_no_hook_that_is_not_there() -> None:
    assert set(re.findall(r"^\| `([a-z_]+)\(", PAGE, re.MULTILINE)) == set(HOOKS)


FILES = ("pyproject.toml", "slow_creations.py", "test_slow_creations.py")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of the page's package, installed in ``site``, and with its tests."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("package")
    for name in FILES:
        (source / name).write_text(titled(name), encoding="utf-8")
    with zipfile.ZipFile(build(source, "build_wheel", folder)) as wheel:
        wheel.extractall(folder / "site")
    (folder / "test_slow_creations.py").write_text(titled("test_slow_creations.py"), encoding="utf-8")
    return folder


def run(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(package / "site")}
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=package, env=environment, capture_output=True, text=True, timeout=60
    )


def test_the_package_of_the_page_passes_its_own_tests(package: Path) -> None:
    ran = run(package, "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "test_slow_creations.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout


@pytest.mark.exhaustive
def test_the_proxy_finds_it_and_checks_its_options(package: Path) -> None:
    upstream = '[upstream]\nbootstrap_servers = ["127.0.0.1:9092"]\n[listen]\naddress = "127.0.0.1:9192"\n'
    (package / "good.toml").write_text(upstream + titled("headrace.toml"), encoding="utf-8")
    ran = run(package, "headrace.proxy.cli", "check-config", "good.toml")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (package / "bad.toml").write_text(upstream + titled("headrace.toml").replace("500", "0"), encoding="utf-8")
    ran = run(package, "headrace.proxy.cli", "check-config", "bad.toml")
    assert ran.returncode == 1
    assert "pause_ms = 0: expected a whole number of milliseconds from 1 to 60000" in ran.stdout + ran.stderr


def test_the_configurations_on_the_page_are_toml() -> None:
    blocks = re.findall(r"```toml[^\n]*\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) > 2
    by_path, named = (tomllib.loads(each)["plugins"] for each in blocks if "load" in each)
    assert by_path["load"] == ["slow_creations:SlowCreations"]
    assert named["autoload"] is False
    assert set(named["load"]) - set(installed_plugins()) == {"slow_creations"}


def test_the_first_run_uses_the_options_that_the_page_shows() -> None:
    (run_command,) = re.findall(r"^headrace run .*$", PAGE, re.MULTILINE)
    assert "--config headrace.toml " in run_command
    assert PAGE.index('title="headrace.toml"') < PAGE.index(run_command)


def rows_under(text: str) -> list[str]:
    """Return the first cells of the table behind ``text``."""
    table = PAGE.split(text, 1)[1].split("\n\n", 2)[1]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def test_the_page_lists_every_field() -> None:
    assert sorted(rows_under("`request` is a `Request`.")) == sorted(Request.__slots__)
    assert rows_under("`request.connection` is a `Connection`:") == [each.name for each in fields(Connection)]
    assert rows_under("is a `PluginContext`:") == [each.name for each in fields(PluginContext)]
