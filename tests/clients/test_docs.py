"""docs/clients.md describes these tests: each line names a test, and each test of a file it names has a line."""

from __future__ import annotations

import ast
import re
from importlib.metadata import version
from pathlib import Path

from headrace.quota_callbacks.api_keys import API_NAMES
from testbed.kafka.artifacts import BROKER_VERSIONS, CLIENT_VERSIONS
from tests.clients.replies.read_only import READ_ONLY

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "clients.md").read_text(encoding="utf-8")
LINE = re.compile(r"^\| .* \| ([^|]*) \| `(test_\w+\.py)::(test_\w+)` \|$", re.MULTILINE)
NO_BROKER = "–"  # noqa: RUF001 - the dash of an empty cell


def brokers_by_test(files: set[str]) -> dict[tuple[str, str], str]:
    """Every test in these files, and its brokers as the page writes them, found by the tests' fixtures."""
    return {
        (file, function.name): _brokers({argument.arg for argument in function.args.args})
        for file in files
        for path in HERE.rglob(file)
        for function in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(function, ast.FunctionDef) and function.name.startswith("test_")
    }


def _brokers(fixtures: set[str]) -> str:
    if "front" in fixtures:
        return ", ".join(BROKER_VERSIONS)
    return "4.3.1" if "front43" in fixtures else "3.9.1" if "front39" in fixtures else NO_BROKER


def test_each_line_is_a_test_and_each_test_a_line() -> None:
    lines = [((file, test), brokers) for brokers, file, test in LINE.findall(PAGE)]
    assert len(lines) == len(dict(lines))
    assert dict(lines) == brokers_by_test({file for (file, _), _ in lines})


def test_the_tests_of_tls_exist() -> None:
    named = set(re.findall(r"`tls/(test_\w+\.py)::(test_\w+)`", PAGE))
    assert len(named) > 5
    assert named <= brokers_by_test({path.name for path in (HERE / "tls").glob("test_*.py")}).keys()


def test_versions_are_those_that_the_tests_run_with() -> None:
    packages = {
        "confluent-kafka (librdkafka)": "confluent-kafka",
        "kafka-python": "kafka-python",
        "aiokafka": "aiokafka",
    }
    for name, package in packages.items():
        assert f"| {name} | {version(package)} |" in PAGE
    assert f"| Java, inside the tests | {', '.join(CLIENT_VERSIONS)} |" in PAGE
    assert f"| Kafka's own tools (Java) | {', '.join(BROKER_VERSIONS)} |" in PAGE
    assert re.search(r"\| brokers \| {} \(three brokers\), {} \(one\) \|".format(*BROKER_VERSIONS), PAGE)


def test_apis_asked_are_those_of_the_table() -> None:
    listed = re.search(r"<!-- asked -->(.*)<!-- end -->", PAGE, re.DOTALL)
    assert listed is not None
    assert re.split(r",\s+", listed[1]) == sorted(API_NAMES[api_key] for api_key in READ_ONLY)
