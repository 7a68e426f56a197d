"""What CONTRIBUTING says about additions: the files and the names that it mentions exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## How to add ...", 1)[1].split("\n## ", 1)[0]
ITEMS = re.split(r"\n(?=\d\. |\*\*)", SECTION)
PATHS = sorted(set(re.findall(r"`(\w+/[\w./]*|\w+\.(?:toml|txt|yml))`", SECTION)))
NAMES = [(name, item) for item in ITEMS for name in re.findall(r"`(_?[A-Z][A-Za-z]*(?:_[A-Z]+)*)`", item)]


def defines(source: str, name: str) -> bool:
    """Whether a module's source defines ``name`` as a class or as a constant."""
    return re.search(rf"^(?:class {name}\b|{name}\b.* = )", source, re.MULTILINE) is not None


def test_the_page_names_files_and_constants() -> None:
    assert len(PATHS) > 15
    assert len(NAMES) > 6


@pytest.mark.parametrize("path", PATHS)
def test_a_file_that_is_named_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize(("name", "item"), NAMES, ids=[name for name, _ in NAMES])
def test_a_name_is_defined_in_a_file_of_the_same_step_or_by_the_plugin_api(name: str, item: str) -> None:
    named = [ROOT / path for path in re.findall(r"`(\w+/[\w./]*\.py)`", item)]
    assert any(
        defines(path.read_text(encoding="utf-8"), name) for path in [*named, *(ROOT / "quota_callbacks").rglob("*.py")]
    ), name
