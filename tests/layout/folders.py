"""The folders of the repository that hold modules."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SHIPPED: Final = ("proxy", "quota_callbacks", "config", "plugins", "pipeline")
OTHERS: Final = ("tests", "benchmarks", "examples")
