"""Runs ``headrace pipeline run`` as a process of its own, which has its own memory and its own Java."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class PlanError(Exception):
    """The plan cannot be run as it is: running it again would fail again. ``str()`` is the job's own message."""


class TryAgain(PlanError):  # noqa: N818 -- the name says what to do
    """Another job changed the same tables at the same time, and this run wrote nothing: it can be repeated as it is."""


def run_plan(plan: str, command: Sequence[str] = ("headrace",)) -> dict[str, Any]:
    """Run a plan to its end and return its result, with one entry in ``jobs`` for each job. Raises `PlanError`.

    The job's progress goes to standard error, where schedulers collect it.
    """
    done = subprocess.run([*command, "pipeline", "run", plan, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        result: dict[str, Any] = json.loads(done.stdout)
        return result
    try:
        message = json.loads(done.stdout)["error"]
    except (ValueError, KeyError):  # killed, or not called correctly: standard error has the reason
        message = f"headrace pipeline run {plan} ended with status {done.returncode}"
    raise (TryAgain if done.returncode == os.EX_TEMPFAIL else PlanError)(message)
