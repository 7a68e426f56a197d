"""What a proxy imports only when it is asked for it: each of these is resident memory.

The interpreter itself reports them (``-X importtime``), so that what is imported and forgotten is found, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from testbed.proxy_process import ProxyProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UNREACHABLE = "127.0.0.1:1"
"""No broker: what is imported for the first connection may be, and nothing else."""

QUOTAS = """
[[quotas]]
entity = { user = "<default>" }
producer_byte_rate = "1GiB"
consumer_byte_rate = "1GiB"
request_percentage = 1000.0
controller_mutation_rate = 100.0
producer_ids_rate = 100.0
"""

METRICS_PAGE = {"prometheus_client", "headrace.proxy.admin.metrics_page"}
TRACING = {
    "opentelemetry.sdk.trace",
    "opentelemetry.exporter",
    "google.protobuf",
    "requests",
    "headrace.plugins.tracing.spans",
}
METRICS_PUSH = {
    "opentelemetry.sdk.metrics",
    "opentelemetry.exporter",
    "google.protobuf",
    "requests",
    "headrace.plugins.metrics.instruments",
    "headrace.plugins.metrics.push_thread",
}
STATE_FILE = {"sqlite3", "headrace.proxy.server.bucket_state_file"}
OTHER_COMMANDS = {"headrace.proxy.admin.client", "headrace.proxy.replay.replay", "http.client"}
NOBODYS = {"multiprocessing", "unittest", "pdb", "doctest", "email.mime"}
"""Of which the proxy has no use at all."""

HEAVY = METRICS_PAGE | TRACING | METRICS_PUSH | STATE_FILE | OTHER_COMMANDS | NOBODYS


def imported(proxy: ProxyProcess) -> set[str]:
    """Every module so far, and every package of one; but for those that ``importlib.import_module`` is asked for, of
    which the interpreter reports only what they import in turn."""
    lines = [line for line in proxy.log.splitlines() if line.startswith("import time:")]
    modules = {line.rsplit("|", 1)[1].strip() for line in lines}
    return modules | {module.rsplit(".", depth)[0] for module in modules for depth in range(1, module.count(".") + 1)}


def started(config: str, *arguments: str) -> ProxyProcess:
    return ProxyProcess(UNREACHABLE, config=config, arguments=arguments, environment={"PYTHONPROFILEIMPORTTIME": "1"})


def test_a_proxy_with_all_four_quotas_imports_nothing_that_it_was_not_asked_for() -> None:
    with started(QUOTAS) as proxy:
        modules = imported(proxy)
    assert {
        "headrace.proxy.server.server",
        "headrace.proxy.admin.server",
        "headrace.plugins.metrics.plugin",
        "headrace.plugins.tracing.plugin",
    } <= modules
    assert modules & HEAVY == set()


def use_the_page(proxy: ProxyProcess) -> None:
    status, page = proxy.get("/metrics")
    assert (status, "headrace_connections 0.0" in page) == (200, True)


def nothing(_proxy: ProxyProcess) -> None:
    """The configuration alone brings it."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("config", "use", "expected"),
    [
        ("", use_the_page, METRICS_PAGE),
        (
            (
                "[plugins.options.tracing]\nenabled = true\n"
                '[plugins.options.metrics]\notlp_endpoint = "http://127.0.0.1:1"\n'
                '[quota.state]\nfile = "{directory}/buckets.sqlite"\n'
            ),
            nothing,
            TRACING | METRICS_PUSH | STATE_FILE,
        ),
    ],
    ids=["metrics page", "tracing, metrics push and bucket state"],
)
def test_what_is_asked_for_is_imported_then(
    config: str, use: Callable[[ProxyProcess], None], expected: set[str], tmp_path: Path
) -> None:
    with started(config.format(directory=tmp_path)) as proxy:
        use(proxy)
        modules = imported(proxy)
    assert expected <= modules
    if expected is METRICS_PAGE:
        assert not {module for module in modules if module.startswith("opentelemetry.")}
