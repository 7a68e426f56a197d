"""Fetch sessions (KIP-227): keeping clients from opening them where each request has to name all of its topics.

In a session, a Fetch names only the topics that it adds, and any client that knows the number of a session can use it.
A proxy that authorizes therefore forwards each Fetch as one without a session, as if the broker had no room for more
sessions (``max.incremental.fetch.session.cache.slots``). Source: ``FetchRequest.json`` v7-v18, ``FetchMetadata``.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

SESSIONS_FROM: Final = 7
"""The first version of Fetch with sessions."""

NO_SESSION: Final = 0
"""``FetchMetadata.INVALID_SESSION_ID``."""
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
"""The epoch of a request that neither opens nor continues a session."""

_SESSION: Final = Struct(">ii")
_AFTER_LIMITS: Final = 9
"""Distance of the session's id from ``min_bytes``: min_bytes, max_bytes and isolation_level."""


def continues_session(frame: bytes | bytearray | memoryview, limits_at: int) -> bool:
    """Return whether a Fetch, which has ``min_bytes`` at ``limits_at``, continues a session."""
    _session_id, epoch = _SESSION.unpack_from(frame, limits_at + _AFTER_LIMITS)
    return epoch not in (INITIAL_EPOCH, FINAL_EPOCH)


def without_session(frame: bytearray | memoryview, limits_at: int) -> None:
    """Change a Fetch, which has ``min_bytes`` at ``limits_at``, to one without a session."""
    _SESSION.pack_into(frame, limits_at + _AFTER_LIMITS, NO_SESSION, FINAL_EPOCH)
