"""The measured CPU time and memory of a process, compared with the process's own values."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from benchmarks.bench.cores import Cores, ProcessMeter, cpu_clock, pin_process
from benchmarks.bench.errors import BenchError

SPIN = "import sys, time\nwhile time.process_time() < 0.2: pass\nprint('done', flush=True)\nsys.stdin.read()"
PARENT = f"""
import subprocess, sys
print("alone", flush=True)
sys.stdin.readline()
child = subprocess.Popen([sys.executable, "-c", {SPIN!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""
GONE = 2**22 + 1
"""Above the highest process id that Linux gives."""


def test_the_clock_of_a_process_is_its_cpu_time() -> None:
    before = time.process_time()
    measured = ProcessMeter(os.getpid()).cpu_s
    assert before <= measured


def test_children_count() -> None:
    """Not of this process, since other tests' children come and go."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdout.readline()
        meter = ProcessMeter(parent.pid)
        alone_bytes = meter.resident_bytes
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        child = int(parent.stdout.readline())
        assert ProcessMeter(child).cpu_s >= 0.2
        own_s = time.clock_gettime(cpu_clock(parent.pid))
        assert meter.cpu_s >= own_s + 0.2
        assert meter.resident_bytes > alone_bytes


def test_a_process_that_is_gone() -> None:
    with pytest.raises(BenchError, match="no process"):
        ProcessMeter(GONE)
    with pytest.raises(BenchError, match="cannot pin"):
        pin_process(GONE, 0)


def test_the_prefix_pins_a_command() -> None:
    core = max(os.sched_getaffinity(0))
    command = [
        *Cores(work=0, proxy=core).proxy_prefix(),
        sys.executable,
        "-c",
        "import os; print(os.sched_getaffinity(0))",
    ]
    output = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    assert output.strip() == f"{{{core}}}"


def test_a_running_process_is_pinned() -> None:
    core = max(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        pin_process(child.pid, core)
        assert psutil.Process(child.pid).cpu_affinity() == [core]
        child.kill()


def test_so_are_the_processes_that_it_has_started() -> None:
    core = max(os.sched_getaffinity(0))
    parent = "import subprocess, sys; p = subprocess.Popen(['cat'], stdin=0); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        pin_process(child.pid, core)
        assert psutil.Process(grandchild).cpu_affinity() == [core]
