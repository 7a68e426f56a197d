"""Reading the proxy's log, which the tests ask for as JSON lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from testbed.proxy_process import ProxyProcess

JSON_LOG = ("--log-format", "json")


def events(proxy: ProxyProcess) -> list[dict[str, Any]]:
    """All whole lines so far. Raises for a line that is no JSON object, such as those of a bare traceback."""
    return [json.loads(line) for line in proxy.log.split("\n")[:-1] if line]


def lines_of(proxy: ProxyProcess, peer: str) -> list[dict[str, Any]]:
    """What was logged about one connection, but for what quotas decided about its requests."""
    logged = [event for event in events(proxy) if event.get("peer") == peer]
    return [event for event in logged if "throttle_ms" not in event]


def wait_for_lines(proxy: ProxyProcess, peer: str) -> list[dict[str, Any]]:
    """What was logged about one connection, as soon as that is something."""
    wait_until(lambda: bool(lines_of(proxy, peer)), f"a log line of {peer}")
    return lines_of(proxy, peer)


def line_of(proxy: ProxyProcess, peer: str) -> dict[str, Any]:
    """The only line that was logged about one connection, as soon as there is one."""
    lines = wait_for_lines(proxy, peer)
    assert len(lines) == 1, lines
    return lines[0]


def wait_for_events(proxy: ProxyProcess, event: str, count: int = 1) -> list[dict[str, Any]]:
    """All lines of one kind of event, as soon as there are `count`: the log is written by a thread of its own."""

    def found() -> list[dict[str, Any]]:
        return [each for each in events(proxy) if each["event"] == event]

    wait_until(lambda: len(found()) >= count, f"{count} lines {event!r}")
    return found()


def assert_no_traceback(proxy: ProxyProcess) -> None:
    assert "Traceback" not in proxy.log, proxy.log[-4000:]
    mistakes = [event for event in events(proxy) if event["level"] in ("error", "critical")]
    assert not mistakes, mistakes
