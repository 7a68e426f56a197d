"""The requirements of a Produce to a single topic, read from the first bytes of its body.

Most Produce requests are for one topic, and large ones are forwarded while they arrive. Their topic is named before
their records, so that they can be authorized at once. Source: ``ProduceRequest.json``.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.proxy.wire.apis import APIS
from headrace.proxy.wire.authorization.requirement_types import Requirement, TopicsById
from headrace.proxy.wire.messages.scalars import Broken, Reader, count_codec, fixed_codec, string_codec
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.authorization import Action, Operation, ResourceType
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.wire.messages.codec import Buffer
    from headrace.proxy.wire.messages.scalars import LengthReader

PREFIX_BYTES: Final = 2 * (2**15 + 5) + 16
"""Space for the transactional id, acks, the timeout, the number of topics and the name of one."""

_ACKS_AND_TIMEOUT: Final = 6
_TRANSACTIONAL_FROM: Final = 3
_TOPIC_IDS_FROM: Final = 13


class _Layout(NamedTuple):
    transactional_id: Reader | None
    topics: LengthReader
    topic: Reader


@cache
def _layout(version: int) -> _Layout:
    flexible_from = APIS[ApiKey.PRODUCE].flexible_from
    flexible = flexible_from is not None and version >= flexible_from
    return _Layout(
        string_codec(flexible=flexible, nullable=True).read if version >= _TRANSACTIONAL_FROM else None,
        count_codec(flexible=flexible, nullable=False)[0],
        fixed_codec("uuid").read
        if version >= _TOPIC_IDS_FROM
        else string_codec(flexible=flexible, nullable=False).read,
    )


def single_topic(
    version: int, prefix: Buffer, name_of: Callable[[bytes], str | None]
) -> tuple[Requirement, ...] | None:
    """Return the requirements of a Produce whose body begins with ``prefix``.

    Returns ``None`` if it is not for exactly one topic, whose name is known, or if the prefix ends too early or is
    malformed. The caller then reads the whole body.
    """
    layout, data = _layout(version), bytes(prefix[:PREFIX_BYTES])
    at, transactional_id = 0, None
    try:
        if layout.transactional_id is not None:
            transactional_id, at = layout.transactional_id(data, at)
        count, at = layout.topics(data, at + _ACKS_AND_TIMEOUT)
        if count != 1:
            return None
        topic, at = layout.topic(data, at)
    except (Broken, IndexError, struct.error):
        return None
    if at > len(data):
        return None
    by_id = TopicsById(name_of)
    named = {"topic_id": topic} if version >= _TOPIC_IDS_FROM else {"name": topic}
    requirement = by_id.topic(named, Operation.WRITE)
    if by_id.unknown:
        return None
    if transactional_id is None:
        return (requirement,)
    write = Action(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    return (Requirement((write,), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), requirement)
