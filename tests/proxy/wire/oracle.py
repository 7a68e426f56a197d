"""Kafka's own classes as the judge of what `headrace.proxy.wire` writes: 4.4.0's, and 3.9.1's for versions 4 has
dropped."""

from __future__ import annotations

from functools import cache
from typing import Any

from headrace.proxy.wire.apis import APIS
from testbed.kafka.jvm import KafkaClasses, kafka_classes

OLD, NEW = "3.9.1", "4.4.0"


@cache
def java_versions(kafka: str) -> dict[int, range]:
    """The versions of every API that this Kafka has messages for, unstable ones included, by API key."""
    types = kafka_classes(kafka).cls("org.apache.kafka.common.message.ApiMessageType").values()
    unstable = True
    found = {
        int(one.apiKey()): range(one.lowestSupportedVersion(), one.highestSupportedVersion(unstable) + 1)
        for one in types
    }
    return {key: versions for key, versions in found.items() if key >= 0 and versions}


def judge(api_key: int, version: int) -> KafkaClasses:
    """The Kafka that knows this version best."""
    newest = java_versions(NEW).get(api_key)
    return kafka_classes(NEW if newest is not None and version in newest else OLD)


@cache
def api_key_of(message: str) -> int | None:
    """The API key of a request or response, ``None`` for headers."""
    stem = message.removesuffix("Request").removesuffix("Response")
    return next((api.key.value for api in APIS.values() if api.name == stem), None)


def judge_of(message: str, version: int) -> KafkaClasses:
    """The Kafka that knows this message in this version best."""
    key = api_key_of(message)
    if key is None:
        return kafka_classes(OLD if message == "RequestHeader" and version == 0 else NEW)
    return judge(key, version)


def through_java(message: str, version: int, body: bytes) -> bytes:
    """Have Kafka read these bytes and write what it read."""
    kafka = judge_of(message, version)
    return kafka.encode(kafka.decode(f"{message}Data", body, version), version)


def java_text(message: str, version: int, body: bytes) -> str:
    """What Kafka says these bytes mean (``toString``)."""
    kafka = judge_of(message, version)
    data: Any = kafka.decode(f"{message}Data", body, version)
    return str(data.toString())
