"""The response that refuses a whole request: the same response that a broker sends for that error.

`headrace.proxy.wire.refusal_templates` defines which fields are set. Refusing some topics of a mutation and forwarding
the others is in `headrace.proxy.wire.mutations`. Called by `headrace.proxy.connection`.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from headrace.proxy.wire.api_versions import UNSUPPORTED_VERSION, unsupported_version_reply
from headrace.proxy.wire.apis import APIS, response_header_version
from headrace.proxy.wire.errors import RefusalImpossible
from headrace.proxy.wire.messages.codec import decode, encode
from headrace.proxy.wire.messages.schemas import Field, schema
from headrace.proxy.wire.refusal_templates import TEMPLATES, Copied, Each, Joined, Slot, Until
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.proxy.wire.messages.codec import Buffer, Message
    from headrace.proxy.wire.refusal_templates import Part, Template

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

For all of these `refuse_whole` raises `RefusalImpossible`, and the caller closes the connection as a broker does.
"""


@dataclass(slots=True)
class _Refusal:
    """A response that is being built."""

    error_code: int
    error_message: str | None
    version: int
    placed: bool = False
    """Whether the error code was set in at least one field."""
    nothing_to_name: bool = True
    """Whether the request has no array that is answered row by row; an empty array counts as one, null does not."""


def refuse_whole(
    api_key: int,
    version: int,
    correlation_id: int,
    request_body: Buffer,
    error_code: int,
    error_message: str | None,
    throttle_time_ms: int,
) -> bytes:
    """Return the frame, with length and header, that refuses a request with one of Kafka's error codes.

    ``error_message`` and ``throttle_time_ms`` are set if the version has the fields; the message ``None`` is null, or
    "" if the field is not nullable. Raises `RefusalImpossible` if no response can contain the error (`IRREFUSABLE`),
    `UnknownMessage` for a version without a schema, and `MalformedMessage` for a body that violates it. Source:
    ``AbstractRequest.getErrorResponse``.
    """
    if api_key == ApiKey.API_VERSIONS and error_code == UNSUPPORTED_VERSION:
        return unsupported_version_reply(correlation_id)
    template = TEMPLATES.get(api_key)
    if template is None:
        raise RefusalImpossible(f"api key {api_key}: {IRREFUSABLE.get(api_key, 'it is unknown')}")
    name = API_NAMES[api_key]
    request = decode(f"{name}Request", version, request_body)
    if api_key == ApiKey.PRODUCE and request["acks"] == NO_ACKS:
        raise RefusalImpossible("a Produce request with acks=0 has no response")
    refusal = _Refusal(error_code=error_code, error_message=error_message, version=version)
    fields = schema(f"{name}Response", version).fields
    response = _fill(template, fields, request, refusal)
    if not refusal.placed and refusal.nothing_to_name:
        raise RefusalImpossible(f"{name} v{version}: its response has no field for error {error_code}")
    if any(field.name == "throttle_time_ms" for field in fields):
        response["throttle_time_ms"] = throttle_time_ms
    return response_frame(api_key, version, correlation_id, encode(f"{name}Response", version, response))


def response_frame(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    """Return a response's body as a frame with length and header."""
    if response_header_version(api_key, version) == 0:
        return _HEADER_V0.pack(4 + len(body), correlation_id) + body
    return _HEADER_V1.pack(5 + len(body), correlation_id, 0) + body


def _fill(template: Template, fields: Sequence[Field], row: Any, refusal: _Refusal) -> Message:
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
        filled[name] = _value(part, field, row, refusal)
    return filled


def _value(part: Part, field: Field, row: Any, refusal: _Refusal) -> Any:
    if isinstance(part, Each | tuple | Joined):
        return _rows(part, field, row, refusal)
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


def _rows(part: Each | Joined | tuple[Each, ...], field: Field, row: Any, refusal: _Refusal) -> list[Message]:
    """Return one row for each row of one or more arrays of the request; an array that is null has no rows."""
    if isinstance(part, Joined):
        refusal.nothing_to_name = False
        return [answer for outer in row[part.outer] for answer in _rows(part.inner, field, outer, refusal)]
    answers = []
    for each in (part,) if isinstance(part, Each) else part:
        rows = row.get(each.of)
        if rows is not None:
            refusal.nothing_to_name = False
            answers += [_fill(each.row, field.fields, one, refusal) for one in rows]
    return answers
