"""What a proxy costs that has nothing to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from testbed.errors import TestbedTimeoutError
from testbed.proxy_process import ProxyProcess

if TYPE_CHECKING:
    from tests.shared_cluster import FirstBroker

IDLE_S: Final = 4
MOST_PER_S: Final = 10


def waits(pid: int) -> int:
    """Return how often the threads of a process have waited until now."""
    tasks = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    lines = [line for task in tasks for line in task.splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches:"))


@pytest.mark.exhaustive
def test_an_idle_proxy_is_woken_a_few_times_a_second_at_most(kafka: FirstBroker) -> None:
    """How often its threads wait is what idling costs, and the same on every machine."""
    with ProxyProcess(kafka.bootstrap_servers) as proxy:
        before = waits(proxy.pid)
        with pytest.raises(TestbedTimeoutError):
            proxy.wait(IDLE_S)
        assert waits(proxy.pid) - before <= MOST_PER_S * IDLE_S
