"""KAFKA_SEMANTICS §3 as data: the facts of every API from Kafka's classes, independent of the proxy's own table.

The rows are those of `tests/proxy/wire/kafka_api_table.md`, which knows nothing of
`headrace.proxy.wire.messages.api_rows`, so that the two can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TRANSCRIPT: Final = Path(__file__).with_name("kafka_api_table.md")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRow:
    """One API of Kafka 4.4.0, or one that 4.0 removed."""

    key: int
    name: str
    versions: range
    """The versions in the table, including unstable ones."""
    throttle_from: int | None
    """The first version whose response has throttle_time_ms."""
    waited_from: int | None
    """The first version for which Java's client obeys throttle_time_ms, up to release 4.3.1."""
    waits_from: int | None
    """The first version for which Java's client 4.4.0 obeys throttle_time_ms."""
    controller_only: bool

    @property
    def sent_versions(self) -> range:
        """The versions that a client may send: clients of 3.9 begin at 0, even if 4.x has removed the version."""
        return range(self.versions.stop)

    def has_throttle_time(self, version: int) -> bool:
        """Return whether a response of this version has a throttle time."""
        return _at_least(version, self.throttle_from)

    def client_waits(self, version: int) -> bool:
        """Return whether Java's client 4.4.0 obeys the throttle time."""
        return _at_least(version, self.waits_from)

    def client_waited(self, version: int) -> bool:
        """Return whether Java's clients up to 4.3.1 obey the throttle time."""
        return _at_least(version, self.waited_from)


def _at_least(version: int, first: int | None) -> bool:
    return first is not None and version >= first


def _removed(key: int, name: str, last: int) -> ApiRow:
    return ApiRow(
        key=key,
        name=name,
        versions=range(last + 1),
        throttle_from=None,
        waited_from=None,
        waits_from=None,
        controller_only=True,
    )


# APIs between brokers with ZooKeeper; they are not in the table, since 4.0 removed them. A 3.9 broker still answers
# them, and their `shouldClientThrottle` is that of the base class.
REMOVED: Final = {
    row.key: row
    for row in (
        _removed(4, "LeaderAndIsr", 7),
        _removed(5, "StopReplica", 4),
        _removed(6, "UpdateMetadata", 8),
        _removed(7, "ControlledShutdown", 3),
    )
}


def _row(line: str) -> ApiRow:
    key, name, versions, _flexible, throttle, waited, waits = (cell.strip() for cell in line.strip("| \n").split("|"))
    low, _, high = versions.rstrip("*").partition("-")
    return ApiRow(
        key=int(key),
        name=name.removesuffix(" †"),
        versions=range(int(low), int(high or low) + 1),
        throttle_from=_number(throttle),
        waited_from=_number(waited),
        waits_from=_number(waits),
        controller_only=name.endswith("†"),
    )


def _number(cell: str) -> int | None:
    return None if cell == "-" else int(cell)


def _table() -> dict[int, ApiRow]:
    lines = _TRANSCRIPT.read_text(encoding="utf-8").splitlines()
    rows = [_row(line) for line in lines if line[2:3].isdigit()]
    return {row.key: row for row in rows}


TABLE: Final = _table()
"""The 91 APIs of 4.4.0, by key."""

EVERY_API: Final = TABLE | REMOVED
"""The 91 APIs of 4.4.0 and the four removed ones, by key."""
