"""Programs and directories end with the process that asked for them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from testbed.errors import SupervisorError, TestbedTimeoutError
from testbed.processes.supervised import SupervisedDirectory, SupervisedProgram, make_directory, start_program
from tests.testbed.callers import caller, is_running, printed_by, run_caller, wait_until, wait_until_nothing_is_left

SLEEP = shutil.which("sleep") or "sleep"
MV = shutil.which("mv") or "mv"
SH = shutil.which("sh") or "sh"

# Starts a program in a supervised directory, prints both, and continues as the test requires.
CALLER = """
import json, os, signal, sys, time
from testbed.processes.supervised import make_directory, start_program
directory = make_directory("headrace-test-")
(directory.path / "data").write_text("data")
program = start_program([{sleep!r}, "300"], environment={{}}, stdin=0, stdout=1, stderr=2, directory=directory)
print(json.dumps([program.pid, str(directory.path), os.getpid()]), flush=True)
{then}
"""
WAIT = "signal.pause()"


def start(*argv: str, directory: SupervisedDirectory | None = None) -> SupervisedProgram:
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        return start_program(argv, environment={}, stdin=nothing, stdout=nothing, stderr=nothing, directory=directory)
    finally:
        os.close(nothing)


@pytest.mark.parametrize(
    "then",
    ["pass", "sys.exit(3)", "raise RuntimeError", "os._exit(1)", "os.abort()", "os.execl('/bin/true', 'true')"],
)
def test_a_program_ends_when_its_caller_ends_by_itself(then: str) -> None:
    with caller(CALLER.format(sleep=SLEEP, then=then)) as process:
        pid, directory, _ = printed_by(process)
        process.wait(20)
        wait_until_nothing_is_left([pid], Path(directory))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_program_ends_when_a_signal_ends_its_caller(number: signal.Signals) -> None:
    with caller(CALLER.format(sleep=SLEEP, then=WAIT)) as process:
        pid, directory, _ = printed_by(process)
        assert is_running(pid)
        assert (Path(directory) / "data").exists()
        process.send_signal(number)
        process.wait(20)
        wait_until_nothing_is_left([pid], Path(directory))


def test_a_signal_to_the_whole_process_group_leaves_nothing_behind() -> None:
    then = "os.setpgid(0, 0); print(1, flush=True); " + WAIT
    with caller(CALLER.format(sleep=SLEEP, then=then)) as process:
        pid, directory, _ = printed_by(process)
        printed_by(process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
        wait_until_nothing_is_left([pid], Path(directory))


def test_a_fork_of_the_caller_does_not_keep_its_programs_alive() -> None:
    then = "if child := os.fork(): print(child, flush=True)\n" + WAIT
    with caller(CALLER.format(sleep=SLEEP, then=then)) as process:
        pid, directory, caller_pid = printed_by(process)
        fork = printed_by(process)
        try:
            os.kill(caller_pid, signal.SIGKILL)
            process.wait(20)
            wait_until_nothing_is_left([pid], Path(directory))
            assert is_running(fork)
        finally:
            os.kill(fork, signal.SIGKILL)


def test_a_fork_gets_a_supervisor_of_its_own() -> None:
    then = """
if os.fork():
    os.wait()
    assert program.poll() is None
else:
    other = start_program([SLEEP, "300"], environment={}, stdin=0, stdout=1, stderr=2)
    print(json.dumps(other.pid), flush=True)
    assert other.kill() == -signal.SIGKILL
""".replace("SLEEP", repr(SLEEP))
    with caller(CALLER.format(sleep=SLEEP, then=then)) as process:
        pid, directory, _ = printed_by(process)
        other = printed_by(process)
        assert process.wait(20) == 0
        wait_until_nothing_is_left([pid, other], Path(directory))


def test_programs_end_with_the_supervisor_too() -> None:
    then = """
import psutil
[supervisor] = psutil.Process().children()
supervisor.kill()
try:
    program.wait(20)
except Exception as error:
    print(json.dumps(str(error)), flush=True)
fresh = start_program([SLEEP, "300"], environment={}, stdin=0, stdout=1, stderr=2)
print(json.dumps(fresh.poll()), flush=True)
""".replace("SLEEP", repr(SLEEP))
    with caller(CALLER.format(sleep=SLEEP, then=then)) as process:
        pid, directory, _ = printed_by(process)
        try:
            assert "supervisor of the testbed's programs" in printed_by(process)
            assert printed_by(process) is None  # the next program has a new supervisor
            wait_until(lambda: not is_running(pid), "the end of the program")
            assert process.wait(20) == 0
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def test_an_interrupted_request_does_not_spoil_the_next() -> None:
    code = f"""
import json, signal, threading
from testbed.processes.supervised import start_program
class Interrupted(Exception): pass
def interrupt(*_):
    global armed
    if armed:
        armed = False
        raise Interrupted
signal.signal(signal.SIGALRM, interrupt)
program = start_program([{SLEEP!r}, "300"], environment={{}}, stdin=0, stdout=1, stderr=2)
armed = False
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for _ in range(20):
    try:
        armed = True
        while True:
            assert program.poll() is None
    except Interrupted:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
print(json.dumps(program.kill()))
"""
    assert run_caller(code) == -signal.SIGKILL


def test_the_exit_status_is_returned_each_time() -> None:
    program = start(SH, "-c", "exit 7")
    assert program.wait(20) == 7
    assert program.poll() == 7
    program.send_signal(signal.SIGTERM)  # of no consequence
    assert program.kill() == 7


def test_signals_reach_the_program() -> None:
    program = start(SLEEP, "300")
    program.send_signal(signal.SIGTERM)
    assert program.wait(20) == -signal.SIGTERM


def test_waiting_has_a_deadline() -> None:
    program = start(SLEEP, "300")
    with pytest.raises(TestbedTimeoutError, match=rf"sleep \(pid {program.pid}\) still runs after 0 s"):
        program.wait(0)
    assert program.kill() == -signal.SIGKILL


def test_a_directory_is_removed_after_its_programs() -> None:
    directory = make_directory("headrace-test-")
    writer = "while :; do mkdir -p $0/a/b && echo x > $0/a/b/c; done"
    program = start_program(
        [SH, "-c", writer, str(directory.path)],
        environment=dict(os.environ),
        stdin=0,
        stdout=1,
        stderr=2,
        directory=directory,
    )
    wait_until((directory.path / "a/b/c").exists, "a first file")
    directory.remove()
    assert program.poll() == -signal.SIGKILL
    assert not directory.path.exists()
    directory.remove()  # of no consequence


@pytest.mark.parametrize("ends", [False, True])
def test_what_a_program_has_started_ends_with_it(ends: bool, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = f"{SLEEP} 300 & echo $! > {pid_file}.draft; mv {pid_file}.draft {pid_file}; {'exit 3' if ends else 'wait'}"
    program = start_program([SH, "-c", code], environment=dict(os.environ), stdin=0, stdout=1, stderr=2)
    wait_until(pid_file.exists, "the program's program")
    grandchild = int(pid_file.read_text())
    if ends:
        assert program.wait(20) == 3
    assert is_running(grandchild)
    assert program.kill() == (3 if ends else -signal.SIGKILL)
    wait_until(lambda: not is_running(grandchild), "the end of the program's program")


def test_what_a_program_has_started_ends_with_the_caller() -> None:
    shell = f"{SLEEP} 300 & echo $! > $0/draft; {MV} $0/draft $0/pid; wait"
    code = CALLER.format(sleep=SH, then=WAIT).replace('"300"', f'"-c", {shell!r}, str(directory.path)')
    with caller(code) as process:
        pid, directory, _ = printed_by(process)
        pid_file = Path(directory) / "pid"
        wait_until(pid_file.exists, "the program's program")
        grandchild = int(pid_file.read_text())
        assert is_running(grandchild)
        process.kill()
        wait_until_nothing_is_left([pid, grandchild], Path(directory))


def test_a_program_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(SupervisorError, match=r"cannot start: FileNotFoundError: .*no-such-program"):
        start("/no-such-program")


def test_descriptors_do_not_pile_up() -> None:
    start(SLEEP, "0").wait(20)
    [supervisor] = [
        child for child in psutil.Process().children() if any("supervisor.py" in word for word in child.cmdline())
    ]
    before = supervisor.num_fds()
    for _ in range(5):
        start(SLEEP, "0").wait(20)
        with contextlib.suppress(SupervisorError):
            start("/no-such-program")
    assert supervisor.num_fds() == before
