"""What the tests of the SQLite store's errors share."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from headrace.proxy.quotas.store import StoreError
from tests.proxy.quotas.store_contract import ALICE, AUTHOR, Place, alteration, opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def refused(path: Path, cause: str, kind: type[StoreError] = StoreError) -> Iterator[None]:
    """Expect an error that names the setting, the file and the cause, which is a regular expression."""
    with pytest.raises(
        StoreError, match=rf"^client_quotas\.file: cannot use {re.escape(str(path))}: {cause}"
    ) as raised:
        yield
    assert type(raised.value) is kind


async def set_alice(place: Place, value: float = 1.0) -> None:
    async with opened(place) as store:
        await store.alter([alteration(ALICE, request_percentage=value)], AUTHOR)


async def assert_alice(place: Place, value: float = 1.0) -> None:
    """Check that the quotas are those of `set_alice`, and can be changed."""
    async with opened(place) as store:
        assert (await store.snapshot()).quotas == {ALICE: {"request_percentage": value}}
        assert len(await store.alter([alteration(ALICE, request_percentage=9.0)], AUTHOR)) == 1
