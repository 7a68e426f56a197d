"""The event loop's clock, and errors that prevent the start."""

from __future__ import annotations

import time

import pytest
import trio

from headrace.proxy.errors import StartupError
from headrace.proxy.server.running import run_loop


def test_the_clock_is_the_systems() -> None:
    async def main() -> tuple[float, float]:
        began = trio.current_time()
        await trio.sleep(0.01)
        return began, trio.current_time()

    before = time.monotonic()
    began, ended = run_loop(main)
    assert before <= began <= ended - 0.01 <= time.monotonic() - 0.01


def test_a_startup_error_comes_out_of_all_nurseries() -> None:
    async def main() -> None:
        async with trio.open_nursery() as outer:
            outer.start_soon(trio.sleep_forever)
            async with trio.open_nursery() as inner:
                inner.start_soon(trio.sleep_forever)
                raise StartupError("no port is free")

    with pytest.raises(StartupError, match="no port is free"):
        run_loop(main)


def test_another_error_beside_a_startup_error_is_not_hidden() -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, StartupError("no port is free"))
            nursery.start_soon(fail, ZeroDivisionError())

    with pytest.raises(BaseExceptionGroup) as caught:
        run_loop(main)
    assert caught.value.subgroup(ZeroDivisionError) is not None
