"""The pattern of brokers' host names, ``listen.broker_host``: which patterns are valid, and why others are not.

Used by `listeners`, and by `headrace.proxy.network.broker_names`, which makes the names from it. Pure.
"""

from __future__ import annotations

import re
from typing import Final

NODE_ID: Final = "$(node_id)"
"""The placeholder for the id of a broker in a host name."""
HIGHEST_NODE_ID: Final = 2**31 - 1
"""Node ids are INT32 in Kafka's protocol, and not negative."""
MAX_HOST_CHARACTERS: Final = 253
MAX_LABEL_CHARACTERS: Final = 63
"""RFC 1035 section 2.3.4; a host without the dot of the root."""

_LABEL: Final = re.compile("[a-z0-9]([a-z0-9-]*[a-z0-9])?")
"""RFC 1123 section 2.1. Underscores are excluded, since Java does not send names with them as SNI."""


def split_pattern(pattern: str) -> tuple[str, str]:
    """Return what precedes the id of the broker and what follows it, in lower case and without the dot of the root.

    Raises `ValueError` with the reason unless each node id gives a valid host name.
    """
    if not pattern.isascii():
        raise ValueError("it must be ASCII; names in other scripts have an ASCII form that begins with xn--")
    if pattern.count(NODE_ID) != 1:
        raise ValueError(f"{NODE_ID} must be in it exactly once")
    before, _, after = pattern.lower().removesuffix(".").partition(NODE_ID)
    _check_host(f"{before}0{after}")
    _check_host(f"{before}{HIGHEST_NODE_ID}{after}")
    return before, after


def _check_host(host: str) -> None:
    if len(host) > MAX_HOST_CHARACTERS:
        raise ValueError(f"it gives names of up to {len(host)} characters; the most is {MAX_HOST_CHARACTERS}")
    for label in host.split("."):
        if len(label) > MAX_LABEL_CHARACTERS:
            raise ValueError(
                f"it gives a label of {len(label)} characters, {label!r}; the most is {MAX_LABEL_CHARACTERS}"
            )
        if not _LABEL.fullmatch(label):
            raise ValueError(f"it gives {host!r}, which is not a host name: {label!r} is not a label")
    if host.rpartition(".")[2].isdigit():
        raise ValueError(f"it gives {host!r}, which ends with a number, as only IP addresses do")
