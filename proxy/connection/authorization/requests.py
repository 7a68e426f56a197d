"""Asking the plugins whether a client may do what it requests.

Called by the request relay for each request of an accepted client while a plugin takes part, before any quota is
charged. `passes_unread` decides in the read buffer; a request that it cannot decide about, or that is not allowed as it
is, is read in full by `headrace.proxy.connection.whole_requests`, which runs `authorize_in_steps`. What the broker must
be asked first, such as the name of a topic of which only the id is known, is a `Question`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.proxy.connection.authorization.denials import (
    check_rows_in_steps,
    deny_in_steps,
    framed,
    without_rows_in_steps,
)
from headrace.proxy.connection.reply_edits import learn_names_in_steps
from headrace.proxy.connection.state.authentication import HANDSHAKE_APIS
from headrace.proxy.errors import ClientFault, UpstreamFault
from headrace.proxy.long_work import LONG_STEP_BYTES
from headrace.proxy.wire.apis import APIS, TOKEN_APIS
from headrace.proxy.wire.authorization.denied_rows import DeniedRows
from headrace.proxy.wire.authorization.fetch_sessions import SESSIONS_FROM, continues_session, without_session
from headrace.proxy.wire.authorization.produced_topic import single_topic
from headrace.proxy.wire.authorization.requirement_types import Requirement, cluster
from headrace.proxy.wire.authorization.requirements import (
    internal_topics_in_steps,
    requirements_in_steps,
    requirements_of,
)
from headrace.proxy.wire.authorization.visible_rows import NAMES_A_STEP, filter_of
from headrace.proxy.wire.errors import PeerFault
from headrace.proxy.wire.heads import LENGTH_BYTES
from headrace.proxy.wire.messages.row_limit import has_more_rows
from headrace.proxy.wire.topic_lookups import (
    AUTO_CREATION_FROM,
    TOPIC_IDS_FROM,
    ask_for_topics,
    read_auto_creation,
    read_unknown_topics,
    without_auto_creation,
)
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from headrace.quota_callbacks.authorization import Action, Operation, ResourceType
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.proxy.connection.authorization.denials import Denial
    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.in_flight import Exchange
    from headrace.proxy.long_work import InTurn
    from headrace.proxy.network.upstream import Ask
    from headrace.proxy.wire.authorization.requirement_types import RowKey
    from headrace.proxy.wire.heads import RequestHead
    from headrace.proxy.wire.messages.stepwise import Steps

AT_ONCE_BYTES: Final = 256
"""The longest body of a request whose denied rows are removed in one step. A row takes two bytes or more, and 20
microseconds."""

AT_ONCE_ROWS: Final = 500
"""The most rows of a request that is authorized in one step if all of it is allowed: a row takes 8 microseconds."""

ROWS_A_STEP: Final = 200
"""After as many rows of requests that were read in one step, the next one is authorized in a step of its own."""

_MAY_CREATE_TOPICS: Final = frozenset({ApiKey.METADATA, ApiKey.STREAMS_GROUP_HEARTBEAT})
"""The APIs whose requests may also create topics, so that they are read in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to the broker whose answer the authorization of a request needs."""

    topics: tuple[str | bytes, ...]
    """The ids of topics whose names are unknown, or the names of topics that may not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The broker's answers to a question. The names of topic ids are not in it: they are kept in `TopicNames`."""

    unknown_names: frozenset[str] | None = None
    """The topics that do not exist; ``None`` if the question was another one."""


Authorized: TypeAlias = "bytes | Question | Denial"
"""The frame to forward, or a question to the broker, or the answer to the request."""


def must_authorize(state: ConnectionState, exchange: Exchange) -> bool:
    """Return whether the request is to be authorized. Requests of a handshake need no permission.

    Requests for delegation tokens are checked without any plugin, too, since these may be the proxy's own.
    """
    if exchange.api_key in TOKEN_APIS and not _owns_tokens(state):
        return True
    return state.shared.hooks.authorization.active and exchange.api_key not in HANDSHAKE_APIS


def passes_unread(state: ConnectionState, exchange: Exchange, head: RequestHead, frame: memoryview) -> bool:
    """Return whether a request may be forwarded as it is, without being collected.

    ``frame`` is what has been read of it; a Fetch is changed in place to one without a session. The result is false
    where that cannot be determined yet. Raises as `authorize_in_steps`.
    """
    if exchange.api_key in HANDSHAKE_APIS:
        return True
    passes = not takes_long(state, exchange) and _is_allowed_unread(state, exchange, head, frame)
    if passes:
        _count_allowed(state, exchange, {})
    return passes


def takes_long(state: ConnectionState, exchange: Exchange) -> bool:
    """Return whether the requests that were authorized in the step of ``exchange`` have so many rows that it must
    wait."""
    if state.authorized_s != exchange.received_s:
        state.authorized_s, state.authorized_rows = exchange.received_s, 0
    return state.authorized_rows > ROWS_A_STEP


def _is_allowed_unread(state: ConnectionState, exchange: Exchange, head: RequestHead, frame: memoryview) -> bool:
    api_key, version = exchange.api_key, exchange.api_version
    api = APIS[api_key]
    if api_key in _MAY_CREATE_TOPICS or api_key in TOKEN_APIS or not api.knows(version):
        return False
    name_of = state.shared.topic_names.name
    if api_key == ApiKey.PRODUCE:
        alone = single_topic(version, frame[head.body_at :], name_of)
        if alone is not None:
            return not _denied(state, alone)
    if not exchange.arrived or head.size > LONG_STEP_BYTES:
        return False
    body = frame[head.body_at : LENGTH_BYTES + head.size]
    if has_more_rows(f"{API_NAMES[api_key]}Request", version, body, AT_ONCE_ROWS):
        return False
    requirements = requirements_of(api_key, version, body, name_of)
    if requirements.unknown_ids or _denied(state, requirements.found):
        return False
    if filter_of(api_key, version, body) is not None:
        return False
    if api_key == ApiKey.FETCH and version >= SESSIONS_FROM and head.fetch_limits_at is not None:
        if continues_session(frame, head.fetch_limits_at):
            return False
        without_session(frame, head.fetch_limits_at)
    return True


def authorize_in_steps(
    state: ConnectionState, exchange: Exchange, head: RequestHead, frame: bytes, answers: Answers | None
) -> Steps[Authorized]:
    """Authorize a request that was read in full.

    If only a part of it is denied, return the frame with the rest, and note what is to be added to the reply.
    ``answers`` are those to the question that was returned before, if any. Raises `ClientFault` for a version without
    a schema, which cannot be authorized, and for what cannot be answered, and `PeerFault` for a malformed body.
    """
    api_key, version = exchange.api_key, exchange.api_version
    if not APIS[api_key].knows(version):
        raise ClientFault(f"{API_NAMES[api_key]} version {version} cannot be authorized, since it is not known")
    body = frame[head.body_at :]
    if api_key in TOKEN_APIS and not _owns_tokens(state):
        return (yield from deny_in_steps(state, exchange, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, body))
    if api_key != ApiKey.ALTER_CLIENT_QUOTAS:  # nothing of it is read, and it may have more rows than others
        yield from check_rows_in_steps(state, exchange, body)
    requirements = yield from requirements_in_steps(api_key, version, body, state.shared.topic_names.name)
    if requirements.unknown_ids and answers is None:
        return Question(topics=requirements.unknown_ids)
    denied = yield from _denied_in_steps(state, _without_own_tokens(state, api_key, requirements.found))
    whole: Question | int | None = _whole_error(api_key, denied)
    if whole is None:
        whole = yield from _further_error(state, exchange, body, answers)
    if isinstance(whole, Question):
        return whole
    if whole is None and api_key == ApiKey.FETCH and version >= SESSIONS_FROM and head.fetch_limits_at is not None:
        if continues_session(frame, head.fetch_limits_at):
            whole = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        else:
            frame = _without_session(frame, head.fetch_limits_at)
    if whole is not None:
        yield from _record(state, exchange, denied)
        return (yield from deny_in_steps(state, exchange, whole, body))
    rows = _error_of_each_row(denied)
    if api_key == ApiKey.METADATA:
        found = yield from _without_creation(state, exchange, head, frame, rows, answers)
        if isinstance(found, Question):
            return found
        frame = found
    yield from _record(state, exchange, denied)  # once, after the answers to all questions
    _count_allowed(state, exchange, rows)
    return (yield from without_rows_in_steps(state, exchange, head, frame, rows))


async def answer_question(state: ConnectionState, question: Question, ask: Ask, in_turn: InTurn) -> Answers:
    """Ask the broker for the names of topics by their ids, or which of several topics do not exist.

    ``ask`` sends a request on the client's connection, and ``in_turn`` runs a long computation in slices. The names are
    kept (`headrace.quota_callbacks.topic_names`). Raises `UpstreamFault` for a malformed answer.
    """
    version, body = await in_turn(ask_for_topics(question.topics))
    reply = await ask(ApiKey.METADATA, version, body)
    try:
        if version < TOPIC_IDS_FROM:
            return Answers(unknown_names=frozenset(await in_turn(read_unknown_topics(version, reply))))
        await in_turn(learn_names_in_steps(state, version, reply))
    except PeerFault as fault:
        raise UpstreamFault(str(fault)) from fault
    return Answers()


# --- deciding ---


def _count_allowed(state: ConnectionState, exchange: Exchange, denied_rows: Mapping[RowKey, int]) -> None:
    if state.shared.hooks.authorization.active and not denied_rows:
        state.shared.counters.allowed[exchange.api_key] += 1


def _owns_tokens(state: ConnectionState) -> bool:
    """Return whether delegation tokens that the broker creates for this connection are those of the client.

    They are those of the principal that the broker sees, which is the proxy's own unless the client has authenticated
    to the broker. With a token of another principal, a client would have that principal's rights, and could bypass the
    proxy. Without rules, a user may have tokens of its own identity at the brokers.
    """
    if state.authentication is not None and state.authentication.accepted:
        return True
    if state.shared.hooks.authorization.active:
        return False
    listener, tls = state.listener, state.listener.upstream.tls
    has_own = listener.upstream.sasl is not None or (tls is not None and tls.identity is not None)
    return not has_own or listener.identities is not None


def _denied(state: ConnectionState, requirements: Sequence[Requirement]) -> list[Requirement]:
    """Return the requirements that are not met."""
    actions = [action for one in requirements for action in one.any_of]
    if not actions:
        return list(requirements)
    state.authorized_rows += len(requirements)
    decisions = state.shared.hooks.authorization.authorize(state.info, actions)
    denied, at = [], 0
    for one in requirements:
        end = at + len(one.any_of)
        if not any(decisions[at:end]):
            denied.append(one)
        at = end
    return denied


def _without_own_tokens(
    state: ConnectionState, api_key: int, requirements: Sequence[Requirement]
) -> Sequence[Requirement]:
    """Leave out the permission to request a token for oneself (``KafkaApis.handleCreateTokenRequest``)."""
    if api_key != ApiKey.CREATE_DELEGATION_TOKEN:
        return requirements
    own = (Action(Operation.CREATE_TOKENS, ResourceType.USER, f"User:{state.info.user}"),)
    return [each for each in requirements if each.any_of != own]


def _denied_in_steps(state: ConnectionState, requirements: Sequence[Requirement]) -> Steps[list[Requirement]]:
    """Return the requirements that are not met, asking the plugins about some at a time."""
    denied: list[Requirement] = []
    for at in range(0, len(requirements), NAMES_A_STEP):
        denied += _denied(state, requirements[at : at + NAMES_A_STEP])
        yield
    return denied


def _error_of_each_row(denied: list[Requirement]) -> dict[RowKey, int]:
    """Return the first error of each row, as a broker, which checks a group before its topics."""
    rows: dict[RowKey, int] = {one.row: one.error_code for one in reversed(denied) if one.row is not None}
    return dict(reversed(rows.items()))


def _whole_error(api_key: int, denied: list[Requirement]) -> int | None:
    """Return the error for the whole request; ``None`` if only rows of it, or nothing, are denied."""
    splits = DeniedRows.can_split(api_key)
    return next((one.error_code for one in denied if one.row is None or not splits), None)


def _further_error(
    state: ConnectionState, exchange: Exchange, body: bytes, answers: Answers | None
) -> Steps[Question | int | None]:
    """Return the error for a request that would create topics that the client may not create, or the question to the
    broker that has to be answered first."""
    if exchange.api_key != ApiKey.STREAMS_GROUP_HEARTBEAT:
        return None
    created_topics = yield from internal_topics_in_steps(exchange.api_version, body)
    missing = yield from _may_not_create(state, created_topics)
    if missing and answers is None:
        return Question(topics=tuple(missing))
    unknown_names = frozenset() if answers is None else answers.unknown_names or frozenset()
    created = [name for name in missing if name in unknown_names]
    actions = (Action(Operation.CREATE, ResourceType.TOPIC, name) for name in created)
    yield from _record(
        state, exchange, (Requirement((each,), ErrorCode.TOPIC_AUTHORIZATION_FAILED) for each in actions)
    )
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED if created else None


def _record(state: ConnectionState, exchange: Exchange, denied: Iterable[Requirement]) -> Steps[None]:
    """Count, keep and log one decision for each operation and type of resource, with the first resource."""
    groups: dict[tuple[str, str], list[Action]] = {}
    for number, one in enumerate(denied):
        if one.any_of:
            action = one.any_of[-1]
            groups.setdefault((action.operation, action.resource_type), []).append(action)
        if number % NAMES_A_STEP == NAMES_A_STEP - 1:
            yield
    for actions in groups.values():
        rule = state.shared.hooks.authorization.explain(state.info, actions[0])
        now_s = state.shared.clock()
        state.shared.decisions.record_denial(exchange, actions[0], rule, len(actions), now_s)


# --- what is forwarded ---


def _without_session(frame: bytes, limits_at: int) -> bytes:
    changed = bytearray(frame)
    without_session(changed, limits_at)
    return bytes(changed)


def _without_creation(
    state: ConnectionState,
    exchange: Exchange,
    head: RequestHead,
    frame: bytes,
    rows: dict[RowKey, int],
    answers: Answers | None,
) -> Steps[bytes | Question]:
    """Keep a Metadata request from creating topics that its sender may not create.

    From version 4 on, a request can say that it creates none, which suffices unless it names a topic that does not
    exist and may be created. Otherwise those that do not exist and may not be created are taken out of it (``rows``).
    """
    version = exchange.api_version
    named = yield from read_auto_creation(version, memoryview(frame)[head.body_at :])
    names = [name for name in named if name not in rows]
    missing = yield from _may_not_create(state, names)
    if not missing:
        return frame
    may_say_so = version >= AUTO_CREATION_FROM
    if answers is None and (not may_say_so or len(missing) < len(names)):
        return Question(topics=tuple(names if may_say_so else missing))
    unknown_names = frozenset() if answers is None else answers.unknown_names or frozenset()
    rows |= {name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for name in missing if name in unknown_names}
    if may_say_so and all(name in rows for name in names if name in unknown_names):
        body = yield from without_auto_creation(version, frame[head.body_at :])
        return framed(frame[LENGTH_BYTES : head.body_at] + body)
    return frame


def _may_not_create(state: ConnectionState, names: Sequence[str]) -> Steps[list[str]]:
    create = cluster(Operation.CREATE)
    missing: list[str] = []
    for at in range(0, len(names), NAMES_A_STEP):
        needed = [
            Requirement(
                (create, Action(Operation.CREATE, ResourceType.TOPIC, name)), ErrorCode.TOPIC_AUTHORIZATION_FAILED, name
            )
            for name in names[at : at + NAMES_A_STEP]
        ]
        missing += [str(one.row) for one in _denied(state, needed)]
        yield
    return missing
