"""The requirements of a request: each of its actions, with the error with which it is answered if it is denied.

`requirements_of` and `requirements_in_steps` read the names of a request by the table of
`headrace.proxy.wire.authorization.table`. Nothing but the names is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.proxy.wire.authorization.requirement_types import Requirement, TopicsById, cluster
from headrace.proxy.wire.authorization.table import TABLE, TOPOLOGY, WITHOUT_REQUIREMENTS, names_of_internal_topics
from headrace.proxy.wire.messages.projection import project
from headrace.proxy.wire.messages.stepwise import ROWS_A_STEP, project_in_steps
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from headrace.quota_callbacks.authorization import Operation
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.wire.messages.codec import Buffer, Message
    from headrace.proxy.wire.messages.stepwise import Steps


class Requirements(NamedTuple):
    """The requirements of one request."""

    found: tuple[Requirement, ...]
    """The requirements in Kafka's order: of several that concern the whole request, the first that is denied determines
    the error."""
    unknown_ids: tuple[bytes, ...] = ()
    """The ids of topics whose names are not known. They are in ``found``, too, with ``UNKNOWN_TOPIC_ID``."""


NO_REQUIREMENTS: Final = Requirements(())
NOT_IN_THE_TABLE: Final = Requirements(
    (Requirement((cluster(Operation.CLUSTER_ACTION),), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),)
)
"""The requirements of an API that is not in the table: those of requests between brokers, which no client sends."""


def requirements_of(api_key: int, version: int, body: Buffer, name_of: Callable[[bytes], str | None]) -> Requirements:
    """Return the requirements of a request with this body.

    ``name_of`` returns the name of the topic with an id, or ``None``. Raises `UnknownMessage` for a version without a
    schema, and `MalformedMessage` for a body that violates it.
    """
    entry = TABLE.get(api_key)
    if entry is None:
        return _without_entry(api_key)
    request = project(f"{API_NAMES[api_key]}Request", version, body, entry.wanted) if entry.wanted else {}
    by_id = TopicsById(name_of)
    found = dict.fromkeys(entry.read(request, by_id))  # a topic may be listed twice
    return Requirements(tuple(found), tuple(dict.fromkeys(by_id.unknown)))


def requirements_in_steps(
    api_key: int, version: int, body: Buffer, name_of: Callable[[bytes], str | None]
) -> Steps[Requirements]:
    """Return the requirements of a request, and raise, as `requirements_of`, in steps."""
    entry = TABLE.get(api_key)
    if entry is None:
        return _without_entry(api_key)
    request: Message = {}
    if entry.wanted:
        request = yield from project_in_steps(f"{API_NAMES[api_key]}Request", version, body, entry.wanted)
    by_id = TopicsById(name_of)
    found: dict[Requirement, None] = {}
    for number, one in enumerate(entry.read(request, by_id)):
        found[one] = None
        if number % ROWS_A_STEP == ROWS_A_STEP - 1:
            yield
    return Requirements(tuple(found), tuple(dict.fromkeys(by_id.unknown)))


def _without_entry(api_key: int) -> Requirements:
    return NO_REQUIREMENTS if api_key in WITHOUT_REQUIREMENTS else NOT_IN_THE_TABLE


def internal_topics_in_steps(version: int, body: Buffer) -> Steps[list[str]]:
    """Return the topics that the broker creates for a StreamsGroupHeartbeat if they do not exist.

    Raises `UnknownMessage` and `MalformedMessage`.
    """
    name = f"{API_NAMES[ApiKey.STREAMS_GROUP_HEARTBEAT]}Request"
    return names_of_internal_topics((yield from project_in_steps(name, version, body, TOPOLOGY)))
