"""An engine for the tests of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.proxy.data_plane.wire import new_engine

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """An engine with one thread, which counts nothing."""
    engine = new_engine()
    yield engine
    engine.stop()
