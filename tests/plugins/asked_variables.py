"""An environment that notes which variables were asked for."""

from __future__ import annotations

from typing import Any


class AskedVariables(dict[str, str]):
    """Variables, none of which is set; ``asked`` has the names that were looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return default
