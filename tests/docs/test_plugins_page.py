"""The page about plugins: it names every hook, its example works, and every hook has a test."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.quota_callbacks import hookspecs
from headrace.quota_callbacks.hookspecs import PluginContext
from headrace.quota_callbacks.requests import Address, Connection, Request

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
HOOKS = [name for name, each in vars(hookspecs).items() if hasattr(each, "headrace_spec")]


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
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


def test_the_example_is_a_plugin() -> None:
    namespace: dict[str, object] = {}
    exec(block("python"), namespace)  # noqa: S102 -- our own page
    plugin = namespace["OneAtATime"]()  # type: ignore[operator]
    register(new_plugin_manager(), "example", plugin)
    connection = Connection(connection_id=1, peer=Address(host="h", port=1))
    assert plugin.request_received(Request(connection, 19, 7, 1, "c", 10, 0.0), 0).throttle_ms == 1000


def test_the_example_with_options_reads_them() -> None:
    namespace: dict[str, Any] = {}
    text = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    exec(compile(text, "plugins.md", "exec", dont_inherit=True), namespace)  # noqa: S102 -- our own page
    plugin = namespace["Pause"]()
    register(new_plugin_manager(), "example", plugin)
    plugin.configure(PluginContext(options={"pause_ms": 5}, quotas=None))  # type: ignore[arg-type]
    assert plugin.options.pause_ms == 5
    with pytest.raises(ValueError, match=r"pause_ms = 0: expected a whole number of milliseconds from 1 to 60000"):
        plugin.configure(PluginContext(options={"pause_ms": 0}, quotas=None))  # type: ignore[arg-type]


def test_the_configuration_on_the_page_is_toml() -> None:
    assert tomllib.loads(block("toml"))["plugins"]["load"] == ["my_quotas:OneAtATime"]
