"""A name that a client may choose, with all that could move a terminal's cursor or forge a line."""

from __future__ import annotations

from typing import Final

ESCAPES: Final = "\x1b[2J\x1b]0;title\x07\r\nuser=admin, request_percentage: fine\x9b31m\u202e\x7f"
