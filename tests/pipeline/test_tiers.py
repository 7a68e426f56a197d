"""Every test that is named for the long run exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.pipeline.conftest import LONG_RUN


def test_the_long_run_names_tests_that_there_are() -> None:
    modules = {path.stem: path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py")}
    for module, names in LONG_RUN.items():
        for name in names.split():
            assert re.search(rf"^def test_{name}\(", modules[module], re.MULTILINE), f"{module}: test_{name}"
