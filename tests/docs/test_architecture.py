"""The page about architecture names modules that exist, and every action for a reply."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from headrace.proxy.connection.state.reply_actions import ReplyAction

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
BASES = (ROOT, ROOT / "proxy", ROOT / "quota_callbacks")


def exists(name: str) -> bool:
    """Whether ``name`` is a module, a package, or a name defined in a module."""
    path = name.removeprefix("headrace.").replace(".", "/")
    module, _, attribute = path.rpartition("/")
    return any(
        (base / path).is_dir()
        or (base / f"{path}.py").is_file()
        or (
            (base / f"{module}.py").is_file()
            and re.search(
                rf"^(?:async )?(?:def|class) {attribute}\b", (base / f"{module}.py").read_text(), re.MULTILINE
            )
        )
        for base in BASES
    )


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([a-z_]+(?:\.\w+)+)`", PAGE))))
def test_a_module_that_is_named_exists(name: str) -> None:
    if name.endswith((".py", ".md")):
        path = name if "/" in name else f"proxy/connection/{name}"
        assert (ROOT / path).is_file()
    elif name not in ("listen.node_ids", "upstream.reply_timeout", "headrace.commands"):
        assert exists(name), name


def test_the_layers_of_the_proxy_are_those_of_the_import_contract() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = pyproject["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == ["headrace.proxy"])
    section = PAGE.split("### Inside `proxy/`", 1)[1].split("\n#", 1)[0]
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", section, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(layers) + 1))
    assert [set(re.findall(r"`(\w+)`", packages)) for _, packages in rows] == [
        set(layer.split(" | ")) for layer in layers
    ]


def test_the_layers_of_the_quota_callbacks_are_those_of_the_import_contract() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = pyproject["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == ["headrace.quota_callbacks"])
    section = PAGE.split("### Inside `quota_callbacks/`", 1)[1]
    listed = section.split("From the highest layer to the lowest:", 1)[1].split(". ", 1)[0].split(";")
    assert [set(re.findall(r"`(\w+)`", each)) for each in listed] == [set(layer.split(" | ")) for layer in layers]


def test_every_action_for_a_reply_is_listed() -> None:
    listed = re.findall(r"^\| `([A-Z]\w+)` \|", PAGE, re.MULTILINE)
    assert listed == [action.__name__ for action in get_args(ReplyAction)]
