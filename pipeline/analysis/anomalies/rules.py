"""The limits for anomalies, and the quantities that are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

ENTITY: Final = ("cluster", "user", "client_id")
"""The columns that identify an entity; ``client_id`` is null for all clients of the user together."""
HOUR_S: Final = 3600
DAY_S: Final = 86_400

QUANTITIES: Final[Mapping[str, float]] = {
    "requests": 1.0,
    "failed_share": 0.01,
    "bytes": 1024.0,
    "bytes_per_request": 1.0,
    "thread_ms": 1.0,
    "new_ids": 1.0,
    "connections": 1.0,
}
"""The quantities that are compared, each with an amount that is negligible: it is added before the logarithm is taken.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The limits for anomalies, which are the command's options."""

    window_s: int = 300
    """Storms last minutes; in the sums of an hour, one of five minutes would be a twelfth of its size."""
    past_days: int = 14
    """Two weeks have each day of the week twice."""
    least_past: int = 36
    """Minimum number of windows; fewer do not determine what is usual."""
    score: float = 5.0
    """At 4, one window in 30,000 of a normal distribution exceeds it: a false alarm for 80 clients each day."""
    factor: float = 3.0
    """Deviations below this factor are not reported, however steady the past is."""
    known_hours: int = 5
    """A level reached in this many earlier hours is not reported."""
    least_ids: int = 20
    """Minimum of new producer ids in a window; the following fields are minimums as well."""
    least_failed: int = 50
    """Requests that failed or were refused."""
    least_connections: int = 60
    least_bytes: int = 10 * 1024 * 1024
    least_thread_ms: float = 3000.0
    """One percent of a thread over five minutes."""
