"""The keys that say what usage is measured over, and where it is kept over a restart. Part of `schema`."""
# Annotations are read at run time (`keys`), so they are not postponed here.

from dataclasses import dataclass
from typing import Annotated, Final

from config.keys import Reload, Setting
from config.kinds import Duration, Text, Whole

INT_MAX: Final = 2**31 - 1  # Kafka's INT, which its own quota.window.* are

_NUM_DOC: Final = "Samples that a rate is kept in."
_SIZE_DOC: Final = "Seconds that one sample spans."


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaWindow:
    """The samples that a rate is measured over; the names are the broker's own."""

    num: Annotated[int, Setting("num", Whole(1, INT_MAX), _NUM_DOC, Reload.RESTART)] = 11
    size_s: Annotated[int, Setting("size.seconds", Whole(1, INT_MAX), _SIZE_DOC, Reload.RESTART)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdQuota:
    """The windows of ``producer_ids_rate`` (KIP-936)."""

    num: Annotated[int, Setting("window.num", Whole(1, INT_MAX), _NUM_DOC, Reload.RESTART)] = 11
    size_s: Annotated[
        int,
        Setting(
            "window.size.seconds",
            Whole(1, INT_MAX),
            "Seconds that a producer id is remembered, and in which producer_ids_rate new ones may come.",
            Reload.RESTART,
        ),
    ] = 3600
    cleanup_interval_ms: Annotated[
        int,
        Setting(
            "cache.cleanup.scheduler.interval.ms",
            Whole(1, INT_MAX),
            "Milliseconds between looks for expired filters, at most; clean-up is lazy and wakes nobody.",
            Reload.RESTART,
        ),
    ] = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaState:
    """Where usage is kept over a restart, so that it forgives nobody."""

    file: Annotated[
        str | None,
        Setting(
            "file",
            Text("the path of a file"),
            "The file that rates, tokens and producer ids are saved to, and taken up from at start; without it a "
            "restart forgets all usage. One file for each proxy.",
            Reload.RESTART,
        ),
    ] = None
    interval_s: Annotated[
        float,
        Setting(
            "interval",
            Duration("1s", "1h"),
            "How often what has changed is saved; a stop saves, too.",
            Reload.RESTART,
        ),
    ] = 5.0
