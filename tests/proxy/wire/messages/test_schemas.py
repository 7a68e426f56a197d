"""The generated files equal what the generator makes of Kafka's jars, and schemas are read lazily."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.proxy.wire.apis import APIS
from headrace.proxy.wire.errors import OurFault, UnknownMessage
from headrace.proxy.wire.messages.schemas import message_names, schema, versions
from tests.proxy.wire import generate_messages as generator


def test_generated_files_are_up_to_date() -> None:
    assert generator.MESSAGES_FILE.read_text(encoding="utf-8") == generator.messages_text()
    assert generator.ROWS_FILE.read_text(encoding="utf-8") == generator.rows_text()


def test_generated_data_names_its_source() -> None:
    for path in (generator.MESSAGES_FILE, generator.ROWS_FILE):
        head = path.read_text(encoding="utf-8")[:700]
        assert "Apache Kafka" in head
        assert "Apache License" in head


@pytest.mark.parametrize(
    ("name", "snake"),
    [
        ("ThrottleTimeMs", "throttle_time_ms"),
        ("timeoutMs", "timeout_ms"),
        ("LeaderAndIsr", "leader_and_isr"),
        ("IsKRaftController", "is_k_raft_controller"),
        ("PushURLList", "push_url_list"),
    ],
)
def test_snake_case(name: str, snake: str) -> None:
    assert generator.snake_case(name) == snake


def test_every_api_has_its_two_messages_in_every_version() -> None:
    for api in APIS.values():
        for suffix in ("Request", "Response"):
            assert versions(api.name + suffix) == range(api.min_version, api.max_version + 1)
    assert len(message_names()) == 2 * len(APIS) + 2


def test_old_versions_come_from_the_old_definitions() -> None:
    assert [field.name for field in schema("ProduceRequest", 2).fields] == ["acks", "timeout_ms", "topic_data"]
    assert next(field.name for field in schema("ProduceRequest", 3).fields) == "transactional_id"
    assert "replica_id" in {field.name for field in schema("FetchRequest", 3).fields}


def test_unknown_messages_and_versions_are_our_fault() -> None:
    with pytest.raises(UnknownMessage, match="NoSuchRequest"):
        schema("NoSuchRequest", 0)
    with pytest.raises(UnknownMessage, match=r"MetadataResponse v14: known are 0 to 13"):
        schema("MetadataResponse", 14)
    assert issubclass(UnknownMessage, OurFault)


def test_importing_reads_no_schema() -> None:
    script = """
from headrace.proxy.wire import api_versions, apis, endpoints, mutations, refusals
from headrace.proxy.wire.messages import codec, editing
from headrace.proxy.wire.messages import schemas
assert schemas._lines.cache_info().currsize == 0, "the schemas were read on import"
"""
    subprocess.run([sys.executable, "-c", script], check=True)
