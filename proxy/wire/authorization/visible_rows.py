"""Removing from a reply what the client may not see.

Kafka leaves out what a client may not describe where a request asks for everything: all topics, groups or
transactions. It hides the configuration of new topics, and groups that use hidden topics. `filter_of` returns what is
filtered in the reply to a request, and `filter_reply_in_steps` filters it, for a broker without an authorizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headrace.proxy.wire.authorization.requirement_types import cluster
from headrace.proxy.wire.messages.editing import Row, Rows, edit_in_steps
from headrace.proxy.wire.messages.projection import project
from headrace.proxy.wire.messages.stepwise import project_in_steps
from headrace.proxy.wire.mutations import NO_ID
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from headrace.quota_callbacks.authorization import Action, Operation, ResourceType
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from headrace.proxy.wire.messages.codec import Buffer, Message
    from headrace.proxy.wire.messages.editing import Edit
    from headrace.proxy.wire.messages.stepwise import Steps

Authorize: TypeAlias = Callable[[Sequence[Action]], Sequence[bool]]
"""Returns for each action whether it is allowed."""

Change: TypeAlias = "Callable[[list[Row], Viewer], Steps[Sequence[Row | Message]]]"
"""Returns, in steps, the rows of an array that are left."""

NAMES_A_STEP: Final = 64
"""Resources about which plugins are asked at once: some tenths of a millisecond."""


@dataclass(frozen=True, slots=True)
class ByFields:
    """A change that keeps rows or replaces them as a whole, and needs only a few of their fields.

    The rows of a large reply are not decoded for it: 10,000 topics with 10 partitions each took 0.8 s, and take 0.15.
    """

    change: Change
    fields: frozenset[str]

    def __call__(self, rows: list[Row], viewer: Viewer) -> Steps[Sequence[Row | Message]]:
        """Return the rows that are left, in steps."""
        return self.change(rows, viewer)


HIDDEN_TOPICS: Final = "The described group uses topics that the client is not authorized to describe."


class Viewer:
    """The client that a reply is for."""

    __slots__ = ("authorize", "name_of", "user")

    def __init__(self, user: str, authorize: Authorize, name_of: Callable[[bytes], str | None]) -> None:
        self.user = user
        self.authorize = authorize
        self.name_of = name_of
        """Returns the name of the topic with an id; ``None`` if it is not known."""

    def may_describe(self, resource_type: ResourceType, names: Iterable[str]) -> Steps[frozenset[str]]:
        """Return those of ``names`` that the client may describe."""
        return self.may(Operation.DESCRIBE, resource_type, names)

    def may(self, operation: Operation, resource_type: ResourceType, names: Iterable[str]) -> Steps[frozenset[str]]:
        """Return those of ``names`` for which the client may do ``operation``, in steps."""
        distinct = list(dict.fromkeys(names))
        found: set[str] = set()
        for at in range(0, len(distinct), NAMES_A_STEP):
            part = distinct[at : at + NAMES_A_STEP]
            allowed = self.authorize([Action(operation, resource_type, name) for name in part])
            found.update(name for name, ok in zip(part, allowed, strict=True) if ok)
            yield
        return frozenset(found)

    def may_on_cluster(self, operation: Operation) -> bool:
        """Return whether the client may do ``operation`` on the cluster."""
        return bool(self.authorize([cluster(operation)])[0])


def filter_of(api_key: int, version: int, body: Buffer) -> Mapping[str, Change] | None:
    """Return what is changed in the reply to a request with this body, by array; ``None`` if nothing is.

    Raises `UnknownMessage` and `MalformedMessage`.
    """
    found = _FILTERS.get(api_key)
    if found is None:
        return None
    wanted, changes_for = found
    request = project(f"{API_NAMES[api_key]}Request", version, body, wanted) if wanted else {}
    return changes_for(version, request)


def filter_of_in_steps(api_key: int, version: int, body: Buffer) -> Steps[Mapping[str, Change] | None]:
    """Return what is changed in the reply, and raise, as `filter_of`, in steps."""
    found = _FILTERS.get(api_key)
    if found is None:
        return None
    wanted, changes_for = found
    request: Message = {}
    if wanted:
        request = yield from project_in_steps(f"{API_NAMES[api_key]}Request", version, body, wanted)
    return changes_for(version, request)


def filter_reply_in_steps(
    api_key: int, version: int, body: Buffer, changes: Mapping[str, Change], viewer: Viewer
) -> Steps[bytes]:
    """Return the reply without what the client may not see. Raises `MalformedMessage`."""
    edits: dict[str, Edit] = {array: _edit_of(change, viewer) for array, change in changes.items()}
    name = f"{API_NAMES[api_key]}Response"
    if api_key == ApiKey.DESCRIBE_TOPIC_PARTITIONS:
        cursor = (yield from project_in_steps(name, version, body, _CURSOR))["next_cursor"]
        if cursor is not None:
            next_topic = cursor["topic_name"]
            if next_topic not in (yield from viewer.may_describe(ResourceType.TOPIC, [next_topic])):
                edits = {"topics": _edit_of(_LAST_TOPICS, viewer), "next_cursor": lambda _old: None}
    edited = yield from edit_in_steps(name, version, body, edits)
    return edited


def _edit_of(change: Change, viewer: Viewer) -> Rows:
    return Rows(lambda rows: change(rows, viewer), change.fields if isinstance(change, ByFields) else None)


# --- rows that are left out ---


def _visible(resource_type: ResourceType, field: str, *, unless_cluster: bool = False) -> Change:
    """Leave out rows whose resource the client may not describe."""

    def change(rows: list[Row], viewer: Viewer) -> Steps[list[Row]]:
        if unless_cluster and viewer.may_on_cluster(Operation.DESCRIBE):
            return rows
        visible = yield from viewer.may_describe(resource_type, [row.value[field] or "" for row in rows])
        return [row for row in rows if (row.value[field] or "") in visible]

    return ByFields(change, frozenset({field}))


_TOPICS: Final = _visible(ResourceType.TOPIC, "name")


def _topics_by_id(rows: list[Row], viewer: Viewer, hidden: str | None) -> Steps[list[Row | Message]]:
    """Replace topics that were asked for by id; ``hidden`` is shown in place of their names."""
    visible = yield from viewer.may_describe(
        ResourceType.TOPIC, [row.value["name"] for row in rows if row.value["name"]]
    )
    return [
        row if not row.value["name"] or row.value["name"] in visible else _hidden_topic(row.value, hidden)
        for row in rows
    ]


_CURSOR: Final = frozenset({"next_cursor"})


def _last_topics(rows: list[Row], viewer: Viewer) -> Steps[list[Row | Message]]:
    """Leave out topics, and end with an error: the name with which the list would continue is not shown."""
    return [*(yield from _TOPICS(rows, viewer)), {"name": None, "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}]


_LAST_TOPICS: Final = ByFields(_last_topics, frozenset({"name"}))


def _hidden_topic(topic: Message, name: str | None) -> Message:
    return {"name": name, "topic_id": topic["topic_id"], "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}


_NULL_NAMES_FROM: Final = 12
"""The first version of Metadata with replies that can have topics without a name. Brokers refuse ids before it."""


def _metadata(version: int, request: Message) -> dict[str, Change] | None:
    rows = request["topics"]
    if rows is None or (version == 0 and not rows):
        return {"topics": _TOPICS}
    if not any(row.get("topic_id", NO_ID) != NO_ID for row in rows):
        return None
    hidden = None if version >= _NULL_NAMES_FROM else ""
    return {"topics": ByFields(partial(_topics_by_id, hidden=hidden), frozenset({"name", "topic_id"}))}


def _described_topics(_version: int, request: Message) -> dict[str, Change] | None:
    return None if request["topics"] else {"topics": _TOPICS}


def _offsets_of_groups(groups: frozenset[str]) -> Change:
    """Leave out topics of groups of which the request has named none."""

    def change(rows: list[Row], viewer: Viewer) -> Steps[list[Row | Message]]:
        topics = [topic for row in rows if row.value["group_id"] in groups for topic in row.value["topics"]]
        names = {_topic_key(topic): _topic_name(topic, viewer) for topic in topics}
        visible = yield from viewer.may_describe(
            ResourceType.TOPIC, [name for name in names.values() if name is not None]
        )
        return [_with_topics(row, names, visible) if row.value["group_id"] in groups else row for row in rows]

    return change


def _with_topics(row: Row, names: Mapping[str | bytes, str | None], visible: frozenset[str]) -> Row | Message:
    kept = [topic for topic in row.value["topics"] if names[_topic_key(topic)] in visible]
    return row if len(kept) == len(row.value["topics"]) else {**row.value, "topics": kept}


def _topic_key(topic: Message) -> str | bytes:
    for field in ("name", "topic_name"):
        if field in topic:
            name: str = topic[field]
            return name
    topic_id: bytes = topic["topic_id"]
    return topic_id


def _topic_name(topic: Message, viewer: Viewer) -> str | None:
    key = _topic_key(topic)
    return viewer.name_of(key) if isinstance(key, bytes) else key


def _offsets(_version: int, request: Message) -> dict[str, Change] | None:
    if "groups" not in request:
        return {"topics": _TOPICS} if request["topics"] is None else None
    groups = frozenset(group["group_id"] for group in request["groups"] if group["topics"] is None)
    return {"groups": _offsets_of_groups(groups)} if groups else None


def _tokens(rows: list[Row], viewer: Viewer) -> Steps[list[Row]]:
    """Leave out delegation tokens of others. Source: ``DelegationTokenManager.filterToken``."""
    visible = yield from viewer.may_describe(ResourceType.DELEGATION_TOKEN, [row.value["token_id"] for row in rows])
    owners = yield from viewer.may(Operation.DESCRIBE_TOKENS, ResourceType.USER, [_owner(row.value) for row in rows])
    return [
        row
        for row in rows
        if row.value["token_id"] in visible or _owner(row.value) in owners or _is_own(row.value, viewer.user)
    ]


def _owner(token: Message) -> str:
    return f"{token['principal_type']}:{token['principal_name']}"


def _is_own(token: Message, user: str) -> bool:
    renewers = {(each["principal_type"], each["principal_name"]) for each in token["renewers"]}
    requester = token.get("token_requester_principal_name")
    return ("User", user) in renewers or user in (token["principal_name"], requester)


def _fetched(rows: list[Row], viewer: Viewer) -> Steps[list[Row]]:
    """Leave out topics that the client may not read: by naming another member, a client can use the share session of
    that member, and so read topics that the member has added.

    Source: ``KafkaApis.handleShareFetchRequest``.
    """
    names = {row.value["topic_id"]: viewer.name_of(row.value["topic_id"]) for row in rows}
    readable = yield from viewer.may(
        Operation.READ, ResourceType.TOPIC, [name for name in names.values() if name is not None]
    )
    return [row for row in rows if names[row.value["topic_id"]] in readable]


# --- rows of which a part is hidden ---


def _transactions(rows: list[Row], viewer: Viewer) -> Steps[list[Row | Message]]:
    """Leave out the topics of transactions."""
    names = [topic["topic"] for row in rows for topic in row.value["topics"]]
    visible = yield from viewer.may_describe(ResourceType.TOPIC, names)
    found: list[Row | Message] = []
    for row in rows:
        kept = [topic for topic in row.value["topics"] if topic["topic"] in visible]
        found.append(row if len(kept) == len(row.value["topics"]) else {**row.value, "topics": kept})
    return found


def _new_topics(rows: list[Row], viewer: Viewer) -> Steps[list[Row | Message]]:
    """Hide the configuration of new topics. Source: ``ReplicationControlManager.createTopic``."""
    created = [row.value["name"] for row in rows if not row.value["error_code"]]
    visible = yield from viewer.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, created)
    return [
        row
        if row.value["error_code"] or row.value["name"] in visible
        else {
            **row.value,
            "topic_config_error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "num_partitions": -1,
            "replication_factor": -1,
            "configs": [],
        }
        for row in rows
    ]


_CONFIGURATIONS_FROM: Final = 5
"""The first version of CreateTopics whose response contains the configuration of a topic (KIP-525)."""


def _created(version: int, _request: Message) -> dict[str, Change] | None:
    return {"topics": _new_topics} if version >= _CONFIGURATIONS_FROM else None


def _groups(rows: list[Row], viewer: Viewer) -> Steps[list[Row | Message]]:
    """Hide groups with a topic that the client may not describe. Source: ``KafkaApis.handleConsumerGroupDescribe``."""
    topics = {row.value["group_id"]: _topics_of_group(row.value) for row in rows if not row.value["error_code"]}
    visible = yield from viewer.may_describe(ResourceType.TOPIC, [name for names in topics.values() for name in names])
    return [
        row if visible.issuperset(topics.get(row.value["group_id"], ())) else _hidden_group(row.value["group_id"])
        for row in rows
    ]


def _topics_of_group(group: Message) -> list[str]:
    found: list[str] = []
    for member in group["members"]:
        for field in ("assignment", "target_assignment"):
            assignment: Any = member.get(field) or {}
            found += [each["topic_name"] for each in assignment.get("topic_partitions", ())]
    for part in (group.get("topology") or {}).get("subtopologies") or ():
        found += [*part["source_topics"], *part["repartition_sink_topics"]]
        found += [row["name"] for row in (*part["repartition_source_topics"], *part["state_changelog_topics"])]
    return found


def _hidden_group(group_id: str) -> Message:
    return {"group_id": group_id, "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED, "error_message": HIDDEN_TOPICS}


def _always(**changes: Change) -> tuple[frozenset[str], Callable[[int, Message], dict[str, Change] | None]]:
    return frozenset(), lambda _version, _request: changes


_NAMED_TOPICS: Final = frozenset({"topics.name", "topics.topic_id"})

_FILTERS: Final[Mapping[int, tuple[frozenset[str], Callable[[int, Message], dict[str, Change] | None]]]] = {
    ApiKey.METADATA: (_NAMED_TOPICS, _metadata),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (_NAMED_TOPICS, _described_topics),
    ApiKey.OFFSET_FETCH: (
        frozenset({"topics.name", "groups.group_id", "groups.topics.name", "groups.topics.topic_id"}),
        _offsets,
    ),
    ApiKey.SHARE_FETCH: _always(responses=ByFields(_fetched, frozenset({"topic_id"}))),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (frozenset({"groups.group_id", "groups.topics"}), _offsets),
    ApiKey.LIST_GROUPS: _always(groups=_visible(ResourceType.GROUP, "group_id", unless_cluster=True)),
    ApiKey.LIST_TRANSACTIONS: _always(transaction_states=_visible(ResourceType.TRANSACTIONAL_ID, "transactional_id")),
    ApiKey.DESCRIBE_TRANSACTIONS: _always(transaction_states=_transactions),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _always(tokens=_tokens),
    ApiKey.CREATE_TOPICS: (frozenset(), _created),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _always(groups=_groups),
    ApiKey.SHARE_GROUP_DESCRIBE: _always(groups=_groups),
    ApiKey.STREAMS_GROUP_DESCRIBE: _always(groups=_groups),
}
"""The fields of a request that determine what is filtered, and the function that returns the filters, by API."""
