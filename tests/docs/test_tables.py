"""Tables of the documentation: each begins with a header and a line of dashes, so that every row is shown as one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*(ROOT / "docs").glob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]
)

FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
TABLE = re.compile(r"(?:^ *\|.*\n)+", re.MULTILINE)
DASHES = re.compile(r" *\|(?: *:?-+:? *\|)+$")


def tables(text: str) -> list[list[str]]:
    """Return the lines of each block of lines that begin with ``|``, outside blocks of code."""
    return [each[0].splitlines() for each in TABLE.finditer(FENCE.sub("", text) + "\n")]


def is_whole(table: list[str]) -> bool:
    return len(table) > 2 and not DASHES.match(table[0]) and DASHES.match(table[1]) is not None


def test_every_table_has_a_header() -> None:
    found = [(page.name, table) for page in PAGES for table in tables(page.read_text(encoding="utf-8"))]
    assert len(found) > 50
    assert [(page, table[0]) for page, table in found if not is_whole(table)] == []


def test_a_row_behind_a_blank_line_is_found() -> None:
    whole, row = tables("text\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n| 3 | 4 |\n```\n| x |\n```\n")
    assert is_whole(whole)
    assert row == ["| 3 | 4 |"]
    assert not is_whole(row)
