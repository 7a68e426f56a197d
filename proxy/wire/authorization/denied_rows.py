"""Removing the rows of a request that are denied, and adding their errors to the reply.

Kafka serves the rest of a request of which some topics, groups or resources are denied, and answers these with an error
each. `DeniedRows` does so in the proxy, for a broker without an authorizer. Other rows are copied byte for byte. A
request may have thousands of rows, so everything is done in steps (`headrace.proxy.wire.messages.stepwise`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from headrace.proxy.wire.messages.editing import Row, Rows, edit_in_steps
from headrace.proxy.wire.messages.schemas import Field, schema
from headrace.proxy.wire.messages.stepwise import (
    NOTHING,
    ROWS_A_STEP,
    encode_in_steps,
    encode_row_in_steps,
    project_in_steps,
)
from headrace.proxy.wire.refusal_templates import ERROR, ROW, TEMPLATES, Copied, Each, Joined, Until
from headrace.proxy.wire.refusals import THROTTLE_TIME, OwnReply, needed_fields, refused_rows_in_steps
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.proxy.wire.authorization.requirement_types import RowKey
    from headrace.proxy.wire.messages.codec import Buffer, Message
    from headrace.proxy.wire.messages.editing import Edit
    from headrace.proxy.wire.messages.stepwise import Steps
    from headrace.proxy.wire.refusal_templates import Template

_ARRAYS: Final[Mapping[int, tuple[str, ...]]] = {
    ApiKey.PRODUCE: ("topic_data",),
    ApiKey.FETCH: ("topics",),
    ApiKey.LIST_OFFSETS: ("topics",),
    ApiKey.METADATA: ("topics",),
    ApiKey.OFFSET_COMMIT: ("topics",),
    ApiKey.OFFSET_FETCH: ("topics", "groups"),
    ApiKey.FIND_COORDINATOR: ("coordinator_keys",),
    ApiKey.DESCRIBE_GROUPS: ("groups",),
    ApiKey.CREATE_TOPICS: ("topics",),
    ApiKey.DELETE_TOPICS: ("topics", "topic_names"),
    ApiKey.DELETE_RECORDS: ("topics",),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ("topics",),
    ApiKey.ADD_PARTITIONS_TO_TXN: ("v3_and_below_topics",),
    ApiKey.TXN_OFFSET_COMMIT: ("topics",),
    ApiKey.DESCRIBE_CONFIGS: ("resources",),
    ApiKey.ALTER_CONFIGS: ("resources",),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ("resources",),
    ApiKey.CREATE_PARTITIONS: ("topics",),
    ApiKey.DELETE_GROUPS: ("groups_names",),
    ApiKey.OFFSET_DELETE: ("topics",),
    ApiKey.DESCRIBE_PRODUCERS: ("topics",),
    ApiKey.DESCRIBE_TRANSACTIONS: ("transactional_ids",),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ("group_ids",),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ("topics",),
    ApiKey.SHARE_GROUP_DESCRIBE: ("group_ids",),
    ApiKey.STREAMS_GROUP_DESCRIBE: ("group_ids",),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: ("groups",),
}
"""The arrays of the request, by API; each version has one of them."""

_PARTITION: Final[Template] = {"partition_index": Copied("partition_index"), "error_code": ERROR}
_OFFSET: Final[Template] = {"partition_index": ROW, "committed_offset": -1, "metadata": "", "error_code": ERROR}
_FETCHED: Final[Template] = {
    "partition_index": Copied("partition"),
    "error_code": ERROR,
    "high_watermark": -1,
    "records": b"",
}
_TEMPLATES: Final[Mapping[int, Template]] = {
    ApiKey.FETCH: {
        "responses": Each(
            "topics",
            {
                "topic": Copied("topic"),
                "topic_id": Copied("topic_id"),
                "partitions": Each("partitions", _FETCHED),
            },
        )
    },
    ApiKey.OFFSET_FETCH: {
        "topics": Each("topics", {"name": Copied("name"), "partitions": Each("partition_indexes", _OFFSET)})
    },
    ApiKey.OFFSET_DELETE: {
        "topics": Each("topics", {"name": Copied("name"), "partitions": Each("partitions", _PARTITION)})
    },
}
"""Templates of rows with errors, for the APIs whose template in `TEMPLATES` has no such rows, or different ones."""

_GROUPS: Final = "groups"
_ERROR: Final = frozenset({"error_code"})
_NAME: Final = frozenset({"name"})
_KEYS: Final = frozenset({"name", "topic", "topic_id", "group_id", "resource_type", "resource_name"})
"""The fields of rows by which requirements name them."""

_ROW_BYTES: Final = 120
"""Memory of a `Row`, its entry in a list and the object with its bytes, without these; from ``tracemalloc``."""
_PARTITION_BYTES: Final = 280
"""Memory of a partition, or topic, that was decoded; measured in the same way."""


def _template(api_key: int) -> Template:
    template = _TEMPLATES.get(api_key) or TEMPLATES[api_key]
    return {name: part for name, part in template.items() if isinstance(part, Each | Joined | Until | tuple)}


def _key(row: Any) -> RowKey:
    """Return what a row is about, as the requirements name it."""
    if not isinstance(row, dict):
        key: RowKey = row
        return key
    if "resource_type" in row:
        return row["resource_type"], row["resource_name"]
    for field in ("name", "topic", "group_id"):
        name: str | None = row.get(field)
        if name is not None:
            return name
    topic_id: bytes = row["topic_id"]
    return topic_id


class DeniedRows:
    """The errors of the denied rows of one request, which has at least one, and what is left of it."""

    __slots__ = ("_api_key", "_denied", "_errors", "_kept", "_of_groups", "_version", "left", "memory_bytes")

    def __init__(self, api_key: int, version: int, denied: Mapping[RowKey, int]) -> None:
        self._api_key = api_key
        self._version = version
        self._denied = dict(denied)
        """The error codes. Needed only while the request is split."""
        self._kept: set[RowKey] = set()
        self._errors: dict[str, list[Row | Message]] = {}
        """The rows to add to the reply, encoded, by array."""
        self._of_groups: dict[str, deque[list[Message]]] = {}
        """The topics to add to the groups of the reply to an OffsetFetch: for each group, as often as the request names
        it, since a broker answers each of these rows. Empty for other APIs."""
        self.left: bytes | None = None
        """The body to forward; ``None`` if nothing is left."""
        self.memory_bytes = 0
        """Estimated memory that it takes until the reply, without `left`."""

    @classmethod
    def split_in_steps(
        cls, api_key: int, version: int, body: Buffer, denied: Mapping[RowKey, int]
    ) -> Steps[DeniedRows]:
        """Split a request with this body; ``denied`` are the error codes.

        Raises `UnknownMessage` and `MalformedMessage`.
        """
        found = cls(api_key, version, denied)
        request = yield from project_in_steps(f"{API_NAMES[api_key]}Request", version, body, needed_fields(api_key))
        yield from found._write_errors(request)
        del request
        found.left = yield from found._split(body)
        found._denied.clear()
        if api_key != ApiKey.METADATA:
            found._kept.clear()
        return found

    @classmethod
    def can_split(cls, api_key: int) -> bool:
        """Return whether requests of this API are split; others are denied as a whole."""
        return api_key in _ARRAYS

    # --- the request ---

    def _split(self, body: Buffer) -> Steps[bytes | None]:
        if self._api_key == ApiKey.ADD_PARTITIONS_TO_TXN:
            return None
        fields = None if self._api_key == ApiKey.OFFSET_FETCH else _KEYS
        edits: dict[str, Edit] = {array: Rows(self._left_of, fields) for array in _ARRAYS[self._api_key]}
        forwarded = yield from edit_in_steps(f"{API_NAMES[self._api_key]}Request", self._version, body, edits)
        return forwarded if self._kept or self._api_key == ApiKey.METADATA else None

    def _left_of(self, rows: list[Row]) -> Steps[list[Row | Message]]:
        left: list[Row | Message] = []
        for number, row in enumerate(rows):
            key = _key(row.value)
            if key not in self._denied:
                self._kept.add(key)
                if self._api_key == ApiKey.METADATA:
                    self.memory_bytes += _ROW_BYTES + len(key)
                left.append(self._left_of_group(row) if self._is_group(row.value) else row)
            if number % ROWS_A_STEP == ROWS_A_STEP - 1:
                yield
        return left

    def _is_group(self, row: Any) -> bool:
        """Return whether it is a row of an OffsetFetch for several groups."""
        return self._api_key == ApiKey.OFFSET_FETCH and "group_id" in row

    def _left_of_group(self, row: Row) -> Row | Message:
        group: Message = row.value
        topics = [each for each in group["topics"] or () if (group["group_id"], _key(each)) not in self._denied]
        return row if len(topics) == len(group["topics"] or ()) else {**group, "topics": topics}

    # --- the errors ---

    def _write_errors(self, request: Message) -> Steps[None]:
        """Write the rows with errors. ``request`` was decoded."""
        if self._api_key == ApiKey.OFFSET_FETCH and _GROUPS in request:
            yield from self._write_groups(request[_GROUPS])
            return
        by_code = yield from self._by_code(request)
        template, fields = _template(self._api_key), self._response_fields()
        for code, part in by_code.items():
            response = yield from refused_rows_in_steps(template, self._api_key, self._version, part, code)
            for array, rows in response.items():
                yield from self._write(fields[array], rows)

    def _response_fields(self) -> dict[str, Field]:
        return {field.name: field for field in schema(f"{API_NAMES[self._api_key]}Response", self._version).fields}

    def _write(self, field: Field, rows: Iterable[Message]) -> Steps[None]:
        written = self._errors.setdefault(field.name, [])
        for row in rows:
            raw = yield from encode_row_in_steps(field, row)
            written.append(Row(value=None, raw=raw))
            self.memory_bytes += _ROW_BYTES + len(raw)
            if len(written) % ROWS_A_STEP == 0:
                yield

    def _by_code(self, request: Message) -> Steps[dict[int, Message]]:
        """Return the request with nothing but its denied rows, by error code."""
        arrays = [array for array in _ARRAYS[self._api_key] if request.get(array) is not None]
        found: dict[int, Message] = {}
        all_or_nothing = self._api_key == ApiKey.ADD_PARTITIONS_TO_TXN
        for array in arrays:
            for number, row in enumerate(request[array]):
                code = self._denied.get(_key(row), ErrorCode.OPERATION_NOT_ATTEMPTED if all_or_nothing else None)
                if code is not None:
                    part = found.setdefault(code, {**request, **{each: [] for each in arrays}})
                    part[array].append(row)
                if number % ROWS_A_STEP == ROWS_A_STEP - 1:
                    yield
        return found

    def _write_groups(self, groups: Iterable[Message]) -> Steps[None]:
        """Write the errors of an OffsetFetch for several groups: of groups, and of topics of other groups."""
        denied: list[Message] = []
        for group in groups:
            group_id = group["group_id"]
            if group_id in self._denied:
                denied.append({"group_id": group_id, "topics": [], "error_code": self._denied[group_id]})
                continue
            topics: list[Message] = []
            for row in group["topics"] or ():
                code = self._denied.get((group_id, _topic_key(row)))
                if code is not None:
                    topics.append(_topic_of_group(row, code))
                    self.memory_bytes += _PARTITION_BYTES * (1 + len(row["partition_indexes"]))
                yield
            self._of_groups.setdefault(group_id, deque()).append(topics)
            self.memory_bytes += _ROW_BYTES
            yield
        yield from self._write(self._response_fields()[_GROUPS], denied)

    # --- the reply ---

    def add_to_in_steps(self, body: Buffer) -> Steps[bytes]:
        """Return the broker's reply with the errors at the end of its rows. Raises `MalformedMessage`."""
        name = f"{API_NAMES[self._api_key]}Response"
        if (yield from project_in_steps(name, self._version, body, _ERROR)).get("error_code"):
            return bytes(body)  # the broker has refused the rest as a whole, and has no rows then
        edited = yield from edit_in_steps(name, self._version, body, self._edits())
        return edited

    def reply_in_steps(self) -> Steps[OwnReply]:
        """Return the reply if nothing was forwarded."""
        name = f"{API_NAMES[self._api_key]}Response"
        empty, throttle_at = yield from encode_in_steps(name, self._version, {}, mark=THROTTLE_TIME)
        edits = self._edits()
        body = yield from edit_in_steps(name, self._version, empty, edits)
        names = list(self._response_fields())
        if throttle_at is not None and names.index(THROTTLE_TIME) > min(map(names.index, edits)):
            throttle_at += len(body) - len(empty)
        return OwnReply(body, throttle_at)

    def _edits(self) -> dict[str, Edit]:
        if self._of_groups:
            return {_GROUPS: Rows(self._with_groups)}
        fields = _NAME if self._api_key == ApiKey.METADATA else NOTHING
        return {array: Rows(self._appending(added), fields) for array, added in self._errors.items()}

    def _appending(self, added: list[Row | Message]) -> Callable[[list[Row]], list[Row | Message]]:
        def change(rows: list[Row]) -> list[Row | Message]:
            if self._api_key == ApiKey.METADATA:  # the broker lists all topics if version 0 asks for none
                rows = [row for row in rows if row.value["name"] in self._kept]
            return [*rows, *added]

        return change

    def _with_groups(self, rows: list[Row]) -> Steps[list[Row | Message]]:
        extended: list[Row | Message] = []
        for row in rows:
            waiting = self._of_groups.get(row.value["group_id"])
            extended.append(_extended(row, waiting.popleft() if waiting else []))
            yield
        return [*extended, *self._errors.get(_GROUPS, ())]


def _topic_of_group(row: Message, code: int) -> Message:
    partitions = [
        {"partition_index": index, "committed_offset": -1, "metadata": "", "error_code": code}
        for index in row["partition_indexes"]
    ]
    named: Message = {field: row[field] for field in ("name", "topic_id") if field in row}
    return {**named, "partitions": partitions}


def _topic_key(row: Message) -> str | bytes:
    key: str | bytes = row["name"] if "name" in row else row["topic_id"]
    return key


def _extended(row: Row, topics: list[Message]) -> Row | Message:
    if not topics or row.value["error_code"]:
        return row
    extended: Message = {**row.value, "topics": [*row.value["topics"], *topics]}
    return extended
