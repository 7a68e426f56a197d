"""Copying the brokers' quotas into the store, once (``client_quotas.brokers = "import"``).

Called by `quotas_in_force`. An import is many alterations, each of which may fail, and the proxy may end in between. So
the store has a mark that an import has begun, which is replaced at its end by one that it is over: until then, every
proxy that starts repeats the import. Quotas that the store has already are left as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
import trio

from headrace.proxy.long_work import in_slices
from headrace.proxy.quotas.store import Alteration, Author, ImportState, StoreError
from headrace.proxy.repeated_lines import RepeatedLines

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from headrace.proxy.quotas.follower import StoreFollower
    from headrace.quota_callbacks.entities import QuotaEntity

    Quotas: TypeAlias = Mapping[QuotaEntity, Mapping[str, float]]
    Stored: TypeAlias = Callable[[QuotaEntity], Mapping[str, float]]
    Check: TypeAlias = Callable[[QuotaEntity, str, float], None]

log = structlog.get_logger("headrace.quotas")

RETRY_S: Final = 5.0
"""Seconds between two attempts."""
ENTITIES_AT_ONCE: Final = 500
"""Entities of one alteration, which takes some tens of milliseconds."""
AUTHOR: Final = Author(principal="headrace", address="client_quotas.brokers")


async def import_quotas(quotas: Quotas, follower: StoreFollower, stored: Stored, check: Check) -> None:
    """Copy ``quotas`` into the store of ``follower`` unless something was ever stored there. Retries after errors.

    ``stored`` returns what the store has for an entity. ``check`` raises `ValueError` for a quota that is left out,
    since AlterClientQuotas refuses it, such as of a host name or of NaN. If cancelled, the next start completes it.
    """
    repeated = RepeatedLines()
    while True:
        try:
            await _import_once(quotas, follower, stored, check, repeated)
        except StoreError as error:
            if (left_out := repeated.due("not imported yet", str(error))) is not None:
                reason = str(error)
                log.warning("the brokers' quotas are not imported yet", reason=reason, left_out=left_out or None)
            await trio.sleep(RETRY_S)
        else:
            return


async def _import_once(
    quotas: Quotas, follower: StoreFollower, stored: Stored, check: Check, repeated: RepeatedLines
) -> None:
    await follower.catch_up()
    state = await follower.import_state()
    remaining = _importable(quotas, stored, check, repeated)
    batch = await in_slices(_next_batch(remaining))
    if state is ImportState.POSSIBLE and batch:
        await follower.set_import_state(ImportState.BEGUN)
        state = ImportState.BEGUN
    entities = changes = 0
    while batch and state is ImportState.BEGUN:
        await follower.catch_up()
        missing = list(_still_missing(batch, stored))  # a client may have set some of them meanwhile
        changes += len(await follower.alter(missing, AUTHOR)) if missing else 0
        entities += len(missing)
        await follower.catch_up()
        state = await follower.import_state()  # another proxy may have completed it
        batch = await in_slices(_next_batch(remaining))
    if state is ImportState.BEGUN:
        await follower.set_import_state(ImportState.OVER)
        log.info("the brokers' quotas are imported", entities=entities, changes=changes)


def _still_missing(batch: Iterable[Alteration], stored: Stored) -> Iterator[Alteration]:
    for each in batch:
        known = stored(each.entity)
        if values := {key: value for key, value in each.values.items() if key not in known}:
            yield Alteration(entity=each.entity, values=values)


def _next_batch(remaining: Iterator[Alteration | None]) -> Generator[None, None, list[Alteration]]:
    """Return the next alterations, with a step for each entity. Empty at the end."""
    batch: list[Alteration] = []
    for alteration in remaining:
        if alteration is not None:
            batch.append(alteration)
        if len(batch) == ENTITIES_AT_ONCE:
            break
        yield
    return batch


def _importable(quotas: Quotas, stored: Stored, check: Check, repeated: RepeatedLines) -> Iterator[Alteration | None]:
    """Yield what is to be stored for each entity; ``None`` for one of which nothing is."""
    for entity, values in quotas.items():
        found: dict[str, float | None] = {}
        known = stored(entity)
        for key, value in values.items():
            if key in known:
                continue
            try:
                check(entity, key, value)
            except ValueError as error:
                if (left_out := repeated.due("refused", str(entity), key)) is not None:
                    log.warning(
                        "a quota of the brokers is not imported",
                        entity=str(entity),
                        key=key,
                        reason=str(error),
                        left_out=left_out or None,
                    )
            else:
                found[key] = value
        yield Alteration(entity=entity, values=found) if found else None
