"""The interface of stores of quotas, and the values that pass through it.

A store keeps the quotas that were set with AlterClientQuotas or ``headrace quotas``, and an audit record of every
change. Several proxies may share one store, each with an object of its own. What one of them
changes, the others learn from `QuotaStore.changes_since`. The quotas of the configuration file are not in a store.

A store knows nothing of limits, validity and permissions: it keeps what it is given.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.quota_callbacks.entities import QuotaEntity


MAX_AUDIT_CHARACTERS: Final = 2**18
"""Bound for the names in the changes that `QuotaStore.audit` returns, which are in memory at once, and whose page the
event loop encodes in one step: the 6,000 changes with usual names that it allows take about 35 ms. A client that wants
more asks for the changes before the last one that it got."""


class StoreError(Exception):
    """The store cannot be read or written. The message names the file or topic, the cause, and the setting to change.

    After an error of `QuotaStore.alter`, nothing of the alterations was stored, unless `StoreTimeoutError` was raised.
    """


class StoreTimeoutError(StoreError):
    """The store did not answer in time, or failed while it made a change durable.

    The change may or may not have been made (KIP-546, ``TimeoutException``).
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    """New values of some quota keys of one entity; ``None`` removes the key. Stored completely or not at all."""

    entity: QuotaEntity
    values: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who made a change, and from where."""

    principal: str
    """The user of the connection, such as ``alice`` or ``ANONYMOUS``."""
    address: str
    """The address of the client, or the name of the program, such as ``headrace quotas import``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The audit record of a change of one key of one entity. ``None`` as a value is a quota that is not set."""

    sequence: int
    """Position in the store; increases with every change, with gaps. When the log of a topic store is replaced, the
    positions in `QuotaStore.audit` are those in the new log, while the positions in the other methods continue above
    all earlier ones."""
    time_ms: int
    """Wall-clock time, in milliseconds since 1970."""
    author: Author
    entity: QuotaEntity
    key: str
    old: float | None
    new: float | None

    def characters(self) -> int:
        """Return the length of all names, which determines how much memory a change with long names needs."""
        names = sum(len(name) for _, name in self.entity.parts() if isinstance(name, str))
        return names + len(self.key) + len(self.author.principal) + len(self.author.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All quotas of a store at one position."""

    sequence: int
    quotas: Mapping[QuotaEntity, Mapping[str, float]]


class ImportState(enum.Enum):
    """How far the import of the brokers' quotas into the store is. The import is made once."""

    POSSIBLE = "possible"
    """Nothing was ever stored, so the import may begin."""
    BEGUN = "begun"
    """A part of the quotas may have been stored."""
    OVER = "over"
    """The import is complete, or cannot begin since other quotas were stored first."""


class QuotaStore(Protocol):
    """A store of quotas. Every method may raise `StoreError`, and reaches a checkpoint.

    A cancelled call may or may not have had its effect.
    """

    async def open(self) -> Snapshot:
        """Open or create the store, and return all its quotas. Called before clients are served.

        May be called again after it has failed, and is not called again after it has succeeded.
        """

    async def alter(self, alterations: Sequence[Alteration], author: Author) -> Sequence[Change]:
        """Store the alterations, and return what changed once it is durable.

        To set the present value again, or to remove a key that is not set, is not a change. Several alterations of one
        entity are applied in their order. Raises `ValueError` for NaN, and for keys and values that the store cannot
        represent; nothing is stored then.
        """

    async def changes_since(self, sequence: int) -> Sequence[Change] | None:
        """Return the changes after ``sequence``, in their order; ``None`` if the store does not have all of them.

        It does not have them if they are no longer kept, if the store never had this position (as after a backup was
        restored), or if its content was replaced since. The caller then replaces all quotas by those of `snapshot`.
        Called several times a second, so it has to be cheap if nothing has changed.
        """

    async def snapshot(self) -> Snapshot:
        """Return all quotas."""

    async def audit(self, *, limit: int, before: int | None = None) -> Sequence[Change]:
        """Return the latest ``limit`` changes that are kept, before the position ``before``, the latest first.

        Returns fewer, but at least one, if their names have more than `MAX_AUDIT_CHARACTERS`.
        """

    async def import_state(self) -> ImportState:
        """Return how far the import of the brokers' quotas is, which any proxy may have begun or completed."""

    async def set_import_state(self, state: ImportState) -> None:
        """Store how far the import is; durable when this returns."""

    async def close(self) -> None:
        """Close the store. Later calls of the other methods raise `StoreError`."""
