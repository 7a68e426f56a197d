"""Reading the pages of the documentation."""

from __future__ import annotations

import re


def blocks_of(page: str, language: str) -> list[str]:
    """Return the blocks of code of a page that are in ``language``."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
