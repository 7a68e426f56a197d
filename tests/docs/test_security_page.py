"""docs/security.md names tests and settings that exist, and no attack test is missing on it."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.config.keys import keys
from headrace.config.schema import Config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def test_the_tests_exist_and_none_is_missing() -> None:
    named = set(re.findall(r"`(tests/[^`]+)`", PAGE))
    assert all((ROOT / each).exists() for each in named), named
    attacks = {str(each.relative_to(ROOT)) for each in (ROOT / "tests" / "security").rglob("test_*.py")}
    assert len(attacks) > 30
    assert attacks <= named


REAL = re.compile(r"ProxyProcess|tests\.security\.ways|tests\.clients\.(?:fronts|quotas)|run_headrace")
"""What a test names that starts a proxy, uses one that is shared, or runs the command."""


def test_the_tests_without_a_proxy_are_marked() -> None:
    named = re.findall(r"`(tests/[^`]+)`( \(no proxy\))?", PAGE)
    texts = {each: (ROOT / each).read_text(encoding="utf-8") for each, _ in named if not each.endswith("/")}
    without = {each for each, _ in named if not REAL.search(texts.get(each, ""))}
    assert 20 < len(without) < len(texts) - 20
    assert without == {each for each, mark in named if mark}
    assert {each for each, mark in named if not mark} == texts.keys() - without


def test_the_settings_exist() -> None:
    known = {leaf.key for leaf in keys(Config)}
    named = set(re.findall(r"`((?:limits|admin|log|plugins)\.[a-z_]+)", PAGE))
    assert len(named) > 15
    assert named <= known
