"""A hook of MkDocs: links from a page to files outside ``docs/`` lead to the code host.

On the code host these links are relative, such as ``../CONTRIBUTING.md``. A link to a file that does not exist is a
warning, which fails a strict build.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]

log = logging.getLogger("mkdocs.hooks.links")


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Return ``markdown`` with absolute links in the place of those to files outside ``docs/``."""

    def absolute(link: re.Match[str]) -> str:
        path = link[1]
        if not (ROOT / path).exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, path)
        return f"]({config.repo_url}/blob/main/{path}{link[2] or ''})"

    return re.sub(r"\]\(\.\./([^)#]+)(#[^)]*)?\)", absolute, markdown)
