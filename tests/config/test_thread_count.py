"""The number of threads of the native data plane."""

from __future__ import annotations

import os

import pytest

from headrace.config.values import AUTO, MOST_THREADS, count_threads


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (3, 3), (2 * MOST_THREADS, MOST_THREADS)])
def test_a_thread_for_each_core_within_the_maximum(cores: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert count_threads(AUTO) == threads
    assert count_threads(2) == 2
