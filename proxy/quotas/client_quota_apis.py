"""DescribeClientQuotas and AlterClientQuotas (KIP-546): authorization, validation, the store, and the reply.

Called by `headrace.proxy.connection.client_quota_requests` with a request of a client that the broker has accepted.
Errors are those of a broker (`rules`); this module adds the errors that a broker has no case for.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from headrace.proxy.long_work import LongSteps, in_slices
from headrace.proxy.quotas.authorization import Permissions, may
from headrace.proxy.quotas.rules.filters import compile_filter, described_parts
from headrace.proxy.quotas.rules.refusals import Refusal
from headrace.proxy.quotas.rules.validation import MAX_CHANGES, refused_in_steps, validation_in_steps
from headrace.proxy.quotas.store import Author, StoreError, StoreTimeoutError
from headrace.proxy.repeated_lines import RepeatedLines
from headrace.proxy.wire.client_quotas import (
    DescribeResponse,
    alter_response_in_steps,
    alterations_in_steps,
    describe_error,
    filter_in_steps,
)
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.client_addresses import counted_owner
from headrace.quota_callbacks.error_codes import ErrorCode
from headrace.quota_callbacks.identities import QuotaOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from headrace.proxy.long_work import InTurn
    from headrace.proxy.quotas.authorization import AskPlugins
    from headrace.proxy.quotas.definitions import QuotaDefinitions
    from headrace.proxy.quotas.follower import StoreFollower
    from headrace.proxy.quotas.rules.filters import EntityPredicate
    from headrace.proxy.quotas.store import Alteration, Change
    from headrace.proxy.wire.client_quotas import AlterRequest, AlterResult
    from headrace.quota_callbacks.definitions import QuotaSchema
    from headrace.quota_callbacks.entities import QuotaEntity
    from headrace.quota_callbacks.requests import Connection

    Paused = Callable[[], AbstractContextManager[None]]

_NO_VALUES: Mapping[str, float] = {}

log = structlog.get_logger("headrace.quotas")

NOT_AUTHORIZED: Final = Refusal(
    error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message="Cluster authorization failed."
)
"""The answer to a client that may not use an API, with the message of Kafka's
``Errors.CLUSTER_AUTHORIZATION_FAILED``."""
NO_STORE: Final = Refusal(
    error_code=ErrorCode.POLICY_VIOLATION,  # not INVALID_REQUEST: tools leave out what a proxy finds invalid
    error_message="this proxy keeps no quotas: neither client_quotas.file is set nor a topic is used",
)
MAX_ALTER_ROWS: Final = 4 * MAX_CHANGES
"""Entities, parts of entities, and keys of an AlterClientQuotas request: enough for `MAX_CHANGES` pairs of a user and a
client id with one key each. A broker accepts more rows, if they make no more changes."""
OF_BROKERS: Final = "brokers."
"""The prefix of the names of the brokers' own quotas in a description."""


class KnownBrokersQuotas(Protocol):
    """The quotas that were set at the brokers themselves, as far as the proxy has read them."""

    quotas: Mapping[QuotaEntity, Mapping[str, float]]

    def remark(self) -> str:
        """Return a sentence about the quotas that both the brokers and the proxy have; empty if there are none."""


class ClientQuotaApis:
    """The answers to DescribeClientQuotas and AlterClientQuotas. Without a store, ``follower`` is ``None``, and quotas
    can only be described."""

    def __init__(
        self,
        schema: QuotaSchema,
        definitions: QuotaDefinitions,
        follower: StoreFollower | None,
        ask_plugins: AskPlugins,
    ) -> None:
        self._schema = schema
        self._definitions = definitions
        self._follower = follower
        self._ask_plugins = ask_plugins
        self.permissions = Permissions()
        self.brokers: KnownBrokersQuotas | None = None
        """The brokers' own quotas. ``shows_brokers`` is whether they are described, too."""
        self.shows_brokers = False
        self.max_reply_bytes = 64 * 2**20
        self._describing, self._altering = LongSteps(), LongSteps()
        """Let one description and one alteration be processed at a time, those of each client in its turn. Otherwise
        the slices of all of them would be a long turn of the loop, and the replies of many descriptions would need
        memory before they are counted."""
        self._repeated = RepeatedLines()

    async def answer(
        self,
        connection: Connection,
        api_key: int,
        version: int,
        body: memoryview,
        *,
        allowed: bool,
        paused: Paused = nullcontext,
    ) -> bytes:
        """Return the body of the reply, with a throttle time of 0. Raises `MalformedMessage` for an invalid body.

        ``allowed`` is whether the client may do what it requests (`allows`).
        ``paused`` returns a context in which no time is charged to the client: it is entered for every wait.

        Waits for the store, for at most ``client_quotas.timeout``. If cancelled, an alteration may or may not be made.
        """
        owner = counted_owner(connection.user, connection.peer.host)
        if api_key == ApiKey.ALTER_CLIENT_QUOTAS:
            in_turn = partial(self._altering.run, owner, paused=paused)
            request = await in_turn(alterations_in_steps(version, body, MAX_ALTER_ROWS))
            if allowed:
                author = Author(principal=connection.user, address=connection.peer.host)
                results = await self._alter(request, author, in_turn, paused)
            else:
                self._log_denial(connection)
                results = await in_turn(refused_in_steps(request, NOT_AUTHORIZED))
            return await in_turn(alter_response_in_steps(version, results))
        if not allowed:
            return describe_error(version, NOT_AUTHORIZED.error_code, NOT_AUTHORIZED.error_message)
        return await self._describe(version, body, owner, paused)

    def allows(self, connection: Connection, api_key: int, *, authenticated: bool) -> bool:
        """Return whether a client that the broker has accepted may do what a request with this API key does.

        Asks the plugins, so it is called once for each request. ``authenticated`` is as for `may`.
        """
        return may(
            connection,
            QuotaOperation.ALTER if api_key == ApiKey.ALTER_CLIENT_QUOTAS else QuotaOperation.DESCRIBE,
            authenticated=authenticated,
            permissions=self.permissions,
            ask_plugins=self._ask_plugins,
        )

    def _log_denial(self, connection: Connection) -> None:
        if (left_out := self._repeated.due("a change of quotas is denied")) is not None:
            host, user = connection.peer.host, connection.user
            log.warning("a change of quotas is denied", principal=user, address=host, left_out=left_out or None)

    async def _describe(self, version: int, body: memoryview, owner: str, paused: Paused) -> bytes:
        asked_for = await self._describing.run(owner, filter_in_steps(version, body), paused)
        matches = compile_filter(asked_for, self._schema)
        if isinstance(matches, Refusal):
            return describe_error(version, matches.error_code, matches.error_message)
        try:
            if self._follower is not None:
                with paused():
                    await self._follower.catch_up()
        except StoreError as error:
            return describe_error(version, error_code_of(error), str(error))
        return await self._describing.run(owner, self._description_in_steps(version, matches), paused)

    def _description_in_steps(self, version: int, matches: EntityPredicate) -> Generator[None, None, bytes]:
        """Return the body of the description, with a yield before each entity. Quotas may change meanwhile."""
        response = DescribeResponse(version)
        own = self._definitions.entities()
        of_brokers = self.brokers.quotas if self.shows_brokers and self.brokers is not None else {}
        for number, entity in enumerate(chain(own, of_brokers)):
            yield
            if not matches(entity) or (number >= len(own) and entity in own):
                continue
            values = {**self._definitions.values(entity)}
            values |= {f"{OF_BROKERS}{key}": value for key, value in of_brokers.get(entity, _NO_VALUES).items()}
            if not values:
                continue  # they were removed meanwhile
            response.add(described_parts(entity), values)
            if response.size > self.max_reply_bytes:
                reason = (
                    f"the description has more than limits.max_collected_bytes = {self.max_reply_bytes} bytes;"
                    " describe fewer entities at once"
                )
                return describe_error(version, ErrorCode.INVALID_REQUEST, reason)
        return response.body(remark=self.brokers.remark() if self.brokers is not None else "")

    async def _alter(
        self, request: AlterRequest, author: Author, in_turn: InTurn, paused: Paused
    ) -> Sequence[AlterResult]:
        if self._follower is None:
            return await in_turn(refused_in_steps(request, NO_STORE))
        deadline = self._follower.deadline()
        try:
            with paused():
                await self._follower.catch_up(deadline)  # what others have changed decides about removals
            validation = validation_in_steps(request, self._schema, self._definitions.stored, self._further_check)
            validated = await in_turn(validation)
            if not validated.alterations:
                return validated.results
            with paused():
                await self._follower.alter(validated.alterations, author, deadline)
        except StoreError as error:
            timed_out = isinstance(error, StoreTimeoutError)  # the reason says whether the change may have been made
            event = "a change of quotas has timed out" if timed_out else "quotas cannot be changed"
            self._warn(event, author, error)
            refusal = Refusal(error_code=error_code_of(error), error_message=str(error))
            return await in_turn(refused_in_steps(request, refusal))
        try:
            with paused():
                await self._follower.catch_up(deadline)
        except StoreError as error:  # the changes are durable, and put into force as soon as the store can be read
            self._warn("changed quotas are not in force yet", author, error)
        return validated.results

    def _warn(self, event: str, author: Author, error: StoreError) -> None:
        """Log a failure of the store, of which every request of every client could have one."""
        if (left_out := self._repeated.due(event, str(error))) is not None:
            log.warning(event, principal=author.principal, reason=str(error), left_out=left_out or None)

    async def audit(self, *, newest: int, before: int | None) -> dict[str, Any]:
        """Return the page ``/quotas/audit``: the ``newest`` changes before the position ``before``, newest first.

        There are fewer if the names are long (`QuotaStore.audit`). ``problem`` is set if there is no store, or it
        cannot be read.
        """
        if self._follower is None:
            return {"changes": [], "problem": NO_STORE.error_message}
        try:
            changes = await self._follower.audit(limit=newest, before=before)
        except StoreError as error:
            return {"changes": [], "problem": str(error)}
        return {"changes": await in_slices(_audit_rows_in_steps(changes)), "problem": None}

    def _further_check(self, alteration: Alteration) -> Refusal | None:
        """Refuse to remove a quota that only the configuration file has: it would be in force all the same. Refuse
        changes of the brokers' own quotas."""
        for key, value in alteration.values.items():
            message = None
            if key.startswith(OF_BROKERS):
                message = f"Invalid configuration key {key}"
            elif value is None and self._definitions.only_in_file(alteration.entity, key):
                message = f"{key} of {alteration.entity} is set in the proxy's configuration file and cannot be removed"
            if message is not None:
                return Refusal(error_code=ErrorCode.INVALID_REQUEST, error_message=message)
        return None


def _audit_rows_in_steps(changes: Sequence[Change]) -> Generator[None, None, list[dict[str, Any]]]:
    rows = []
    for change in changes:
        yield
        rows.append(_audit_row(change))
    return rows


def _audit_row(change: Change) -> dict[str, Any]:
    return {
        "sequence": change.sequence,
        "time_ms": change.time_ms,
        "principal": change.author.principal,
        "address": change.author.address,
        "entity": [{"type": each, "name": name} for each, name in described_parts(change.entity)],
        "key": change.key,
        "old": change.old,
        "new": change.new,
    }


def error_code_of(error: StoreError) -> int:
    """Return Kafka's error code for an error of the store."""
    return ErrorCode.REQUEST_TIMED_OUT if isinstance(error, StoreTimeoutError) else ErrorCode.UNKNOWN_SERVER_ERROR
