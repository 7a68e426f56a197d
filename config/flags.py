"""The command-line flags that set keys, as data for the command line to make its options from.

Called by the command line and by `loading`, which names the flag where its value is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from config.keys import leaves
from config.schema import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag: what `loading.load` wants its value under, and the line for ``--help``."""

    name: str
    key: str
    help: str
    required: bool
    """Whether the key must stand in the file if the flag is not given."""


FLAGS: Final = tuple(
    Flag(name=leaf.setting.flag, key=leaf.key, help=leaf.setting.doc, required=leaf.required)
    for leaf in leaves(Config)
    if leaf.setting.flag is not None
)
"""All flags, in the order of the file."""
