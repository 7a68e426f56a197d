"""Links between pages and to files of the repository, and the lists of pages. External links are not checked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*DOCS.glob("*.md"), *ROOT.glob("*.md")])

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)


def text_of(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", LINK.sub("]", heading).lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_internal_link_leads_somewhere(page: str) -> None:
    source = ROOT / page
    for target in LINK.findall(text_of(source)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = source.parent / path if path else source
        assert found.exists(), target
        assert found.resolve().is_relative_to(ROOT), target
        if anchor:
            assert anchor in anchors(found), target


def test_every_page_is_in_the_navigation_and_in_the_overview() -> None:
    pages = {path.name for path in DOCS.glob("*.md")}
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    assert sorted(re.findall(r": ([\w-]+\.md)$", navigation, re.MULTILINE)) == sorted(pages)
    overview = {target for target in LINK.findall(text_of(DOCS / "README.md")) if "/" not in target}
    assert overview == pages - {"README.md"}
