"""The quotas that what-if applies, with their changes and windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.quota_callbacks.buckets.sampled_rate import Window
    from headrace.quota_callbacks.entities import QuotaKey
    from headrace.quota_callbacks.records.replay import Change

OrderedChange = tuple[int, "Change"]
"""A change, and the number of its line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """The quotas to apply, their changes, and their windows."""

    windows: Mapping[QuotaKey, Window]
    changes: Sequence[OrderedChange]
    """The changes in the order of time; those with order 0 apply from the beginning."""
    began_ms: int | None = None
    """The time of the first event; expiry of idle buckets is checked from then on."""

    @property
    def fixed(self) -> bool:
        """Whether the quotas never change."""
        return all(order == 0 for order, _ in self.changes)


def fixed_quotas(changes: Sequence[Change], windows: Mapping[QuotaKey, Window]) -> Quotas:
    """Return quotas that apply from the beginning and never change."""
    return Quotas(windows=windows, changes=[(0, change) for change in changes])
