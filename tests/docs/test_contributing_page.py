"""The page about tests names every folder of tests, and the number of examples of each profile of Hypothesis."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "contributing.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in TESTS.glob("*/__init__.py")))
def test_each_folder_is_in_a_tier(folder: str) -> None:
    assert f"`tests/{folder}`" in PAGE.split("\n## Rules for tests\n")[0]


def test_the_numbers_of_examples() -> None:
    long, quick = (settings.get_profile(name).max_examples for name in ("long", "quick"))
    assert f"`long` ({long} examples, others each time)" in PAGE.replace("\n  ", " ")
    assert f"the same {quick} examples each time" in PAGE.replace("\n  ", " ")
