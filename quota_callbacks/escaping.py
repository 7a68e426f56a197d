"""Text that clients or servers chose, as JSON or on a terminal, without control characters.

Client ids, users and topics are chosen by clients. Printed unchanged, an escape sequence in one could move the cursor,
and a line end could forge a line of output. Called by the admin server, and by whatever prints such text.
"""

from __future__ import annotations

import json


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return ``value`` as JSON of printable ASCII characters."""
    separators = (",", ":") if indent is None else None
    return json.dumps(value, indent=indent, separators=separators).replace("\x7f", "\\u007f")


def printable(text: str) -> str:
    """Return ``text`` with all unprintable characters escaped, so that it cannot move the cursor or forge a line."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "backslashreplace").decode("ascii")
        for each in text
    )
