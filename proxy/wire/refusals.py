"""The response that refuses a whole request: the same response that a broker sends for that error.

`headrace.proxy.wire.refusal_templates` defines which fields are set. Refusing some topics of a mutation and forwarding
the others is in `headrace.proxy.wire.mutations`. Called by `headrace.proxy.connection`.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from headrace.proxy.wire.apis import APIS, response_header_version
from headrace.proxy.wire.errors import RefusalImpossible
from headrace.proxy.wire.messages.schemas import Field, schema
from headrace.proxy.wire.messages.stepwise import ALL, ROWS_A_STEP, encode_in_steps, project_in_steps
from headrace.proxy.wire.refusal_templates import TEMPLATES, Copied, Each, Joined, Slot, Until
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.proxy.wire.messages.codec import Buffer, Message
    from headrace.proxy.wire.messages.stepwise import Steps
    from headrace.proxy.wire.refusal_templates import Part, Template

THROTTLE_TIME: Final = "throttle_time_ms"
_PRODUCE_FIELDS: Final = frozenset(
    {"acks", "topic_data.name", "topic_data.topic_id", "topic_data.partition_data.index"}
)
_INT32: Final = Struct(">i")
_HEADER_V0: Final = Struct(">ii")
_HEADER_V1: Final = Struct(">iib")

NO_ACKS: Final = 0
"""Value of ``acks`` in a Produce request without a response, even if there is an error."""

IRREFUSABLE: Final[dict[int, str]] = {
    api.key: "no broker serves it to clients" for api in APIS.values() if api.controller_only
}
"""APIs that cannot be refused with a response to a client, and the reason.

Whether other APIs can be refused may depend on the version and the request. These cannot:

- Produce with acks=0: the client reads no response;
- DescribeLogDirs v0-2: only log directories have error codes, and the request names none;
- Metadata v0-12 for all topics: only topics have error codes, and the request names none.

For all of these `refusal_in_steps` raises `RefusalImpossible`, and the caller closes the connection as a broker does.
"""


@dataclass(frozen=True, slots=True)
class OwnReply:
    """The body of a response of the proxy's own, which is sent later."""

    body: bytes
    throttle_at: int | None
    """The position of the throttle time; ``None`` if the version has none."""

    def with_throttle_time(self, throttle_time_ms: int) -> bytes:
        """Return the body with this throttle time."""
        if self.throttle_at is None:
            return self.body
        changed = bytearray(self.body)
        _INT32.pack_into(changed, self.throttle_at, throttle_time_ms)
        return bytes(changed)


@dataclass(slots=True)
class _Refusal:
    """A response that is being built."""

    error_code: int
    error_message: str | None
    version: int
    placed: bool = False
    """Whether the error code was set in at least one field."""
    nothing_to_name: bool = True
    """Whether every array of the request that is answered row by row is null or missing. An empty array makes this
    false."""


def refusal_in_steps(
    api_key: int, version: int, request_body: Buffer, error_code: int, error_message: str | None
) -> Steps[OwnReply]:
    """Return the response that refuses a whole request with one of Kafka's error codes.

    ``error_message`` is set if the version has the field; ``None`` is null, or "" if the field is not nullable. Raises
    `RefusalImpossible` if no response can contain the error (`IRREFUSABLE`), `UnknownMessage` for a version without a
    schema, and `MalformedMessage` for a body that violates it. Source: ``AbstractRequest.getErrorResponse``.
    """
    template = TEMPLATES.get(api_key)
    if template is None:
        raise RefusalImpossible(f"api key {api_key}: {IRREFUSABLE.get(api_key, 'it is unknown')}")
    name = API_NAMES[api_key]
    request = yield from project_in_steps(f"{name}Request", version, request_body, needed_fields(api_key))
    if api_key == ApiKey.PRODUCE and request["acks"] == NO_ACKS:
        raise RefusalImpossible("a Produce request with acks=0 has no response")
    refusal = _Refusal(error_code=error_code, error_message=error_message, version=version)
    response = yield from _fill(template, schema(f"{name}Response", version).fields, request, refusal)
    if not refusal.placed and refusal.nothing_to_name:
        raise RefusalImpossible(f"{name} v{version}: its response has no field for error {error_code}")
    body, throttle_at = yield from encode_in_steps(f"{name}Response", version, response, mark=THROTTLE_TIME)
    return OwnReply(body, throttle_at)


def needed_fields(api_key: int) -> frozenset[str]:
    """Return the fields of a request that its refusal needs: not the records of a Produce, which may be large."""
    return _PRODUCE_FIELDS if api_key == ApiKey.PRODUCE else ALL


def refused_rows_in_steps(
    template: Template, api_key: int, version: int, request: Message, error_code: int
) -> Steps[Message]:
    """Return the fields of a response that ``template`` describes, for the rows of ``request``, which was decoded.

    For responses in which only some rows have the error. Raises `UnknownMessage`.
    """
    refusal = _Refusal(error_code=error_code, error_message=None, version=version)
    fields: Message = yield from _fill(
        template, schema(f"{API_NAMES[api_key]}Response", version).fields, request, refusal
    )
    return fields


def response_frame(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    """Return a response's body as a frame with length and header."""
    if response_header_version(api_key, version) == 0:
        return _HEADER_V0.pack(4 + len(body), correlation_id) + body
    return _HEADER_V1.pack(5 + len(body), correlation_id, 0) + body


def _fill(template: Template, fields: Sequence[Field], row: Any, refusal: _Refusal) -> Steps[Message]:
    """Return the fields of a template that this version has, filled in for one row of the request, or the request."""
    by_name = {field.name: field for field in fields}
    filled: Message = {}
    for name, part in template.items():
        field = by_name.get(name)
        if field is None or (isinstance(part, Copied) and part.field not in row):
            continue
        if isinstance(part, Until):
            if refusal.version > part.version:
                continue
            part = part.part
        if isinstance(part, Each | tuple | Joined):
            filled[name] = yield from _rows(part, field, row, refusal)
        else:
            filled[name] = _value(part, field, row, refusal)
    return filled


def _value(part: Part, field: Field, row: Any, refusal: _Refusal) -> Any:
    if isinstance(part, Copied):
        value = row[part.field]
        part = part.null if value is None else value
    elif part is Slot.ROW:
        part = row
    elif part is Slot.MESSAGE:
        part = refusal.error_message
    elif part is Slot.ERROR:
        refusal.placed = True
        return refusal.error_code
    return "" if part is None and field.kind == "string" and not field.nullable else part


def _rows(part: Each | Joined | tuple[Each, ...], field: Field, row: Any, refusal: _Refusal) -> Steps[list[Message]]:
    """Return one row for each row of one or more arrays of the request; an array that is null has no rows."""
    answers: list[Message] = []
    if isinstance(part, Joined):
        refusal.nothing_to_name = False
        for outer in row[part.outer]:
            answers += yield from _rows(part.inner, field, outer, refusal)
        return answers
    for each in (part,) if isinstance(part, Each) else part:
        rows = row.get(each.of)
        if rows is not None:
            refusal.nothing_to_name = False
            for one in rows:
                answers.append((yield from _fill(each.row, field.fields, one, refusal)))
                if len(answers) % ROWS_A_STEP == 0:
                    yield
    return answers
