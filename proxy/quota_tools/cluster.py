"""Describing and altering the quotas of a cluster, or of a proxy in front of it, for the commands.

Alterations are sent in batches. Errors are raised as `ClusterError`, whose text is a sentence for operators. Blocks, as
the admin client that it uses (`headrace.proxy.kafka_client.sync`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from headrace.proxy.kafka_client.errors import BrokerError, InvalidRequestError, KafkaClientError
from headrace.proxy.kafka_client.properties import read_settings
from headrace.proxy.kafka_client.quotas import (
    EVERY_QUOTA,
    QuotaAlteration,
    QuotaFilter,
    misplaced_key,
    refuses_key,
    refuses_type,
)
from headrace.proxy.kafka_client.settings import ClientSettings, parse_addresses
from headrace.proxy.kafka_client.sync import SyncAdminClient
from headrace.proxy.quota_tools.arguments import suggestion
from headrace.proxy.quota_tools.errors import ClusterError
from headrace.proxy.quota_tools.plans import Plan, Refusal
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import DEFAULT
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from headrace.quota_callbacks.definitions import QuotaSchema
    from headrace.quota_callbacks.entities import QuotaEntity

Values: TypeAlias = Mapping[str, float | None]
Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of entities that are done, and the total number of entities."""

BATCH_CHANGES: Final = 1000
"""Changes of keys in one request. A broker refuses more than 10,000 (``QuorumController.MAX_RECORDS_PER_USER_OP``)."""
PROXY_KEY_PREFIX: Final = "brokers."
"""The prefix of the keys of the brokers' own quotas in a proxy's description. They are shown, and cannot be changed."""

_CLIENT_ID: Final = "headrace-quotas"
_NOT_AUTHORIZED: Final = (
    "at a proxy the user must be in client_quotas.administrators; at a broker it needs DESCRIBE_CONFIGS and"
    " ALTER_CONFIGS on the cluster; give its credentials with --command-config"
)


def client_settings(
    *,
    servers: str | None,
    default_servers: str | None,
    properties: str | None,
    timeout_ms: int,
    report: Callable[[str], None],
) -> ClientSettings:
    """Return the settings for a cluster.

    The servers are those of the argument, or else of the properties file, or else ``default_servers``. ``report`` is
    called with a sentence about each property that has no effect. Raises `ClusterError`.
    """
    try:
        if properties is None:
            settings = ClientSettings(bootstrap_servers=parse_addresses(servers or default_servers or ""))
        else:
            settings = read_settings(
                properties, bootstrap_servers=servers, default_servers=default_servers, report=report
            )
    except KafkaClientError as error:
        raise ClusterError(str(error)) from error
    return replace(settings, client_id=_CLIENT_ID, default_api_timeout_ms=timeout_ms)


class QuotaCluster:
    """The quotas of one cluster; a context manager, which closes its connections."""

    def __init__(self, settings: ClientSettings, schema: QuotaSchema = BUILTIN_SCHEMA) -> None:
        """``schema`` has the keys and entity types that errors suggest for misspelled ones."""
        self._client = SyncAdminClient(settings)
        self._schema = schema
        self.servers: Final = ", ".join(map(str, settings.bootstrap_servers))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def describe(
        self, wanted: QuotaFilter = EVERY_QUOTA, *, report: Callable[[str], None] | None = None
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Return the quotas of the entities that match. ``report`` is called with a remark of the proxy, if any.

        Raises `ClusterError`.
        """
        try:
            return self._client.describe_client_quotas(wanted, report=report)
        except KafkaClientError as error:
            types = [each.entity_type for each in wanted.components]
            raise ClusterError(f"{self.servers}: {error_text(error, self._schema, types=types)}") from error

    def check_types(self, types: Iterable[str]) -> None:
        """Raise `ClusterError` if the cluster does not have one of these entity types, or cannot be asked."""
        if components := dict.fromkeys(types, DEFAULT):
            self.describe(QuotaFilter.of(components, strict=True))

    def changeable(self) -> dict[QuotaEntity, dict[str, float]]:
        """Return all quotas but those of the brokers that a proxy only shows. Raises `ClusterError`."""
        quotas = {
            entity: {key: value for key, value in values.items() if not key.startswith(PROXY_KEY_PREFIX)}
            for entity, values in self.describe().items()
        }
        return {entity: values for entity, values in quotas.items() if values}

    def alter(
        self,
        changes: Mapping[QuotaEntity, Values],
        *,
        validate_only: bool = False,
        progress: Progress = lambda _done, _total: None,
    ) -> list[Refusal]:
        """Make the changes, and return what was refused. An entity is changed completely or not at all.

        Raises `ClusterError` if the cluster cannot be reached any more; its text says how many entities are done.
        """
        refused: list[Refusal] = []
        done = 0
        for batch in _batches(changes):
            alterations = [QuotaAlteration(entity=entity, values=values) for entity, values in batch.items()]
            results = self._client.alter_client_quotas(alterations, validate_only=validate_only, raise_errors=False)
            for entity, error in results.errors.items():
                if not isinstance(error, BrokerError):
                    remaining = "" if validate_only or not done else f" ({done} of {len(changes)} entities are changed)"
                    raise ClusterError(f"{self.servers}: {error}{remaining}") from error
                refused.append(self._refusal(error, entity, batch[entity]))
            done += len(batch)
            progress(done, len(changes))
        return refused

    def check(self, plan: Plan) -> list[Refusal]:
        """Return which steps of a plan the cluster would refuse, one by one, and change nothing.

        If an entity is refused, each of its keys is checked by itself, so that the other keys can still be set. Raises
        `ClusterError`.
        """
        changes = plan.by_entity()
        refused = self.alter(changes, validate_only=True)
        found: list[Refusal] = []
        remaining = {each.entity: list(changes[each.entity]) for each in refused}
        while remaining:
            keys = {entity: keys.pop() for entity, keys in remaining.items()}
            single = self.alter({each: {key: changes[each][key]} for each, key in keys.items()}, validate_only=True)
            found += (replace(each, key=keys[each.entity]) for each in single)
            remaining = {entity: left for entity, left in remaining.items() if left}
        entities = {each.entity for each in found}
        whole = (each for each in refused if each.entity not in entities)  # refused as a whole only
        return [*found, *(replace(each, key=key) for each in whole for key in changes[each.entity])]

    def _refusal(self, error: BrokerError, entity: QuotaEntity, values: Values) -> Refusal:
        types = [each for each, _ in entity.parts()]
        rule = misplaced_key(self._schema, error.message, entity, values)
        reason = error_text(error, self._schema, types=types, keys=values, rule=rule)
        return Refusal(entity=entity, key=None, reason=reason, code=error.code)


def _batches(changes: Mapping[QuotaEntity, Values]) -> Iterator[dict[QuotaEntity, Values]]:
    entities = iter(changes.items())
    while batch := dict(islice(entities, BATCH_CHANGES)):
        part: dict[QuotaEntity, Values] = {}
        count = 0
        for entity, values in batch.items():
            if part and count + len(values) > BATCH_CHANGES:
                yield part
                part, count = {}, 0
            part[entity] = values
            count += len(values)
        yield part


def error_text(
    error: KafkaClientError,
    schema: QuotaSchema = BUILTIN_SCHEMA,
    *,
    types: Iterable[str] = (),
    keys: Iterable[str] = (),
    rule: str = "",
) -> str:
    """Return an error as a sentence.

    ``types`` and ``keys`` are those of the request, which may be misspelled; ``rule`` is what the request violates, if
    it is known better than from the error.
    """
    if not isinstance(error, BrokerError):
        return str(error)
    if error.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return f"{error.message.rstrip('.')} ({error.name}): {_NOT_AUTHORIZED}"
    hints = []
    if refuses_type(error):
        named = [*types]
        hints = [suggestion(each, schema.entity_types) for each in named]
        if len(named) > 1:
            hints.append(r" (a comma that belongs to a name is written \,)")
    elif refuses_key(error):
        hints = [suggestion(each, schema.keys) for each in keys if error.message.endswith(f" {each}")]
    hint = "".join(hints)
    explanation = rule or error.explanation
    if not hint and explanation:
        hint = f" ({explanation})"
    code = "" if isinstance(error, InvalidRequestError) else f" ({error.name})"
    return f"{error.message}{code}{hint}"
