"""Forks of a template: what an executed program would be, except that its modules are imported already."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from testbed.errors import SupervisorError
from testbed.processes.programs import content
from testbed.processes.supervised import start_program
from tests.testbed.callers import is_running, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from testbed.processes.supervised import SupervisedProgram

SERVED = """
import json, os, signal, sys
from testbed.processes.template import serve
imported = os.getpid()
def run(argv):
    own = {"argv": argv, "imported": imported, "ours": dict(os.environ)}
    own |= {"session": os.getsid(0), "group": os.getpgid(0)}
    print(json.dumps(own | {"files": sorted(map(int, os.listdir("/proc/self/fd")))[:-1]}))
    print("error", file=sys.stderr)
    if argv[0] == "waits":
        signal.pause()
    sys.exit(7)
serve(int(sys.argv[1]), run)
"""
TEMPLATE = (sys.executable, "-c", SERVED)


@dataclass(frozen=True)
class Fork:
    program: SupervisedProgram
    out: int
    err: int

    def printed(self) -> dict[str, Any]:
        wait_until(lambda: content(self.err) == "error\n", "it printed")
        found: dict[str, Any] = json.loads(content(self.out))
        return found


@contextlib.contextmanager
def fork(*argv: str, template: Sequence[str] = TEMPLATE) -> Iterator[Fork]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        environment = {**os.environ, "OWN": argv[0]}
        streams = {"stdin": out.fileno(), "stdout": out.fileno(), "stderr": err.fileno()}
        program = start_program(argv, environment=environment, template=template, **streams)
        try:
            yield Fork(program, out.fileno(), err.fileno())
        finally:
            program.kill()


def test_it_has_arguments_variables_streams_a_session_and_a_status_of_its_own() -> None:
    with fork("first", "x") as first, fork("second") as second:
        for started, argv in ((first, ["first", "x"]), (second, ["second"])):
            own = started.printed()
            assert (own["argv"], own["ours"]["OWN"]) == (argv, argv[0])
            assert own["session"] == own["group"] == started.program.pid
            assert own["files"] == [0, 1, 2]
            assert started.program.wait(10) == 7
            assert started.program.kill() == 7
        assert first.printed()["imported"] == second.printed()["imported"]


def test_it_is_killed_and_leaves_the_others_alone() -> None:
    with fork("waits") as first, fork("waits") as second:
        first.printed()
        second.printed()
        first.program.send_signal(signal.SIGTERM)
        assert first.program.wait(10) == -signal.SIGTERM
        assert second.program.poll() is None
        assert second.program.kill() == -signal.SIGKILL
        assert not is_running(second.program.pid)


def test_a_template_that_cannot_start_is_an_error_that_says_how_to_see_why() -> None:
    ends = (sys.executable, "-c", "raise SystemExit")
    with (
        pytest.raises(SupervisorError, match=r"the template has ended; to see why, run .* 0"),
        fork("x", template=ends),
    ):
        """It does not come so far."""
