"""Kafka's own classes, with which tests compare `headrace.proxy.wire`: those of 4.4.0, and of 3.9.1 for versions that
4.0 removed."""

from __future__ import annotations

from functools import cache

from headrace.proxy.wire.apis import APIS
from testbed.kafka.jvm import KafkaClasses, kafka_classes

OLD, NEW = "3.9.1", "4.4.0"


@cache
def java_versions(kafka: str) -> dict[int, range]:
    """Return the versions of each API in this Kafka release, including unstable ones, by API key."""
    types = kafka_classes(kafka).cls("org.apache.kafka.common.message.ApiMessageType").values()
    unstable = True
    found = {
        int(one.apiKey()): range(one.lowestSupportedVersion(), one.highestSupportedVersion(unstable) + 1)
        for one in types
    }
    return {key: versions for key, versions in found.items() if key >= 0 and versions}


def judge(api_key: int, version: int) -> KafkaClasses:
    """Return the classes of the newest Kafka release that has this version."""
    newest = java_versions(NEW).get(api_key)
    return kafka_classes(NEW if newest is not None and version in newest else OLD)


@cache
def api_key_of(message: str) -> int | None:
    """Return the API key of a request or response, ``None`` for headers."""
    stem = message.removesuffix("Request").removesuffix("Response")
    return next((api.key.value for api in APIS.values() if api.name == stem), None)


def judge_of(message: str, version: int) -> KafkaClasses:
    """Return the classes of the newest Kafka release that has this message in this version."""
    key = api_key_of(message)
    if key is None:
        return kafka_classes(OLD if message == "RequestHeader" and version == 0 else NEW)
    return judge(key, version)


def through_java(message: str, version: int, body: bytes) -> bytes:
    """Let Kafka decode these bytes, and return what it encodes again."""
    kafka = judge_of(message, version)
    return kafka.encode(kafka.decode(f"{message}Data", body, version), version)
