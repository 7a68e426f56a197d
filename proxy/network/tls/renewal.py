"""Using new certificates when their files have changed, and warnings of those that expire.

Called regularly by the server, for all listeners and upstreams, and by the admin server.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.proxy.network.tls.contexts import TlsContext

CERTIFICATES_S: Final = 5.0
"""Seconds between two checks of the certificate files."""


def expiries_s(context: TlsContext) -> dict[str, float]:
    """Return when the certificates of `TlsContext.expiries` expire, in seconds since 1970."""
    return {kind: each.expires.timestamp() for kind, each in context.expiries.items()}


async def renew(contexts: Iterable[TlsContext]) -> None:
    """Check the files of each context once. *Cancellation:* a file system that hangs delays nothing."""
    for context in contexts:
        await trio.to_thread.run_sync(context.reload_if_changed, abandon_on_cancel=True)
        context.check_expiry(datetime.now(UTC))
