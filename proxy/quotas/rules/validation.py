"""Kafka's rules for AlterClientQuotas: which alterations of a request are made, and what is answered.

Pure functions: what may be configured is in a `QuotaSchema`, and the caller stores the alterations. The rules, their
order, and the texts of errors are those of ``ClientQuotaControlManager`` of Kafka 4.3.1; a test compares them with a
broker. Some rules are mere consequences of its hash maps, but clients may rely on them:

* An entity with two parts of the same type has the last one.
* If an entity is in the request twice, the first entry is applied, and the answer for both is the error of the second,
  with the parts in the order of the first.
  An entry that alters a key twice is answered with this error, too, and is not applied.
* The removal of a key is not checked. A key that is not set, or does not exist, is ignored.
* A request that makes more than `MAX_CHANGES` changes is refused as a whole.

Names are used as they are sent. Brokers percent-encode names of users and client ids only inside, where they need them
for metrics (``Sanitizer``), so ``%2A``, ``a b`` and ``<default>`` are ordinary names; ``null`` is the default entity.

Differences to a broker: a value must be finite, an ``ip`` must be an address
(`headrace.quota_callbacks.definitions.ip_address`), and messages of more than 32,767 bytes are shortened, where a
broker answers UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.proxy.quotas.rules.hash_order import hash_order
from headrace.proxy.quotas.rules.refusals import Refusal, invalid
from headrace.proxy.quotas.store import Alteration
from headrace.proxy.wire.client_quotas import AlterResult
from headrace.proxy.wire.messages.stepwise import ROWS_A_STEP
from headrace.quota_callbacks.entities import CLIENT_ID, DEFAULT, IP, USER, QuotaEntity
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from headrace.proxy.wire.client_quotas import AlterEntry, AlterRequest, EntityPart, QuotaOp
    from headrace.proxy.wire.messages.stepwise import Steps
    from headrace.quota_callbacks.definitions import QuotaKeyDefinition, QuotaSchema

MAX_CHANGES: Final = 10_000
"""Changes of keys that one request may make (``QuorumController.MAX_RECORDS_PER_USER_OP``)."""

_POLICY_MESSAGE: Final = "Request parameters do not satisfy the configured policy."  # Errors.POLICY_VIOLATION

Parts: TypeAlias = "dict[str, str | None]"
"""The names of an entity by type, in the order of Kafka's hash map; ``None`` is the default entity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedRequest:
    """The alterations of an AlterClientQuotas request, and the rows of its response."""

    alterations: tuple[Alteration, ...]
    """The alterations to store, in the order of the request, including those that seem to have no effect: another proxy
    may have changed the quota meanwhile. Empty if the request only validates."""
    results: tuple[AlterResult, ...]
    """The rows of the response, if the alterations can be stored: one for each entity, in the order of the request."""


def validation_in_steps(
    request: AlterRequest,
    schema: QuotaSchema,
    current: Callable[[QuotaEntity], Mapping[str, float]],
    further_check: Callable[[Alteration], Refusal | None] | None = None,
) -> Generator[None, None, ValidatedRequest]:
    """Apply all rules to a request, with a yield after each entry, so that the caller can do other work.

    ``current`` returns the quotas of an entity that are stored, without those that other sources define.
    ``further_check`` returns the refusal of an alteration that Kafka would accept, or ``None``. The returned
    alterations contain values that are set already, and removals of keys that are not set, since another proxy may have
    changed the quota meanwhile.
    """
    results: dict[frozenset[EntityPart], AlterResult] = {}
    alterations: list[Alteration] = []
    changes = 0
    for entry in request.entries:
        parts = entity_parts(entry)
        identity = frozenset(parts.items())
        if identity in results:
            outcome: Alteration | Refusal = _duplicate(parts)
        else:
            outcome = _validate(parts, entry.ops, schema)
        if isinstance(outcome, Alteration) and further_check is not None:
            outcome = further_check(outcome) or outcome
        first = results.get(identity)
        results[identity] = _result(tuple(parts.items()) if first is None else first.entity, outcome)
        if isinstance(outcome, Alteration) and outcome.values:
            alterations.append(outcome)
            changes += _count_changes(outcome, current(outcome.entity))
            if changes > MAX_CHANGES:
                refusal = Refusal(error_code=ErrorCode.POLICY_VIOLATION, error_message=_POLICY_MESSAGE)
                return ValidatedRequest(alterations=(), results=(yield from refused_in_steps(request, refusal)))
        yield
    made = () if request.validate_only else tuple(alterations)
    return ValidatedRequest(alterations=made, results=tuple(results.values()))


def refused_in_steps(request: AlterRequest, refusal: Refusal) -> Steps[tuple[AlterResult, ...]]:
    """Return the rows of a response that refuses the whole request, for example if the store cannot be written. Yield
    now and then.

    As in a broker's response, there is a row for each entry, with the parts as they were sent.
    """
    results = []
    for number, entry in enumerate(request.entries):
        results.append(_result(entry.entity, refusal))
        if number % ROWS_A_STEP == 0:
            yield
    return tuple(results)


def entity_parts(entry: AlterEntry) -> Parts:
    """Return the parts of the entity: the last of each type, in the order of Kafka's hash map."""
    names = dict(entry.entity)
    return {entity_type: names[entity_type] for entity_type in hash_order(names, len(entry.entity))}


def _result(entity: tuple[EntityPart, ...], outcome: Alteration | Refusal) -> AlterResult:
    if isinstance(outcome, Refusal):
        return AlterResult(entity=entity, error_code=outcome.error_code, error_message=outcome.error_message)
    return AlterResult(entity=entity)


def _count_changes(alteration: Alteration, current: Mapping[str, float]) -> int:
    """Return the number of values that differ from what is set."""
    return sum(current.get(key) != value for key, value in alteration.values.items())


def _validate(parts: Parts, ops: tuple[QuotaOp, ...], schema: QuotaSchema) -> Alteration | Refusal:
    values = {op.key: None if op.remove else op.value for op in ops}
    if len(values) < len(ops):
        return _duplicate(parts)
    try:
        _check_parts(parts, schema)
        entity = QuotaEntity.of({each: DEFAULT if name is None else name for each, name in parts.items()})
        keys = schema.keys_of(frozenset(parts))
        new = {key: value for key, value in values.items() if value is not None}
        for key in hash_order(new, len(ops), among=len(values)):
            _check_value(keys, key, new[key], entity)
    except ValueError as error:
        return invalid(str(error))
    return Alteration(entity=entity, values=values)


def _check_parts(parts: Parts, schema: QuotaSchema) -> None:
    """Raise `ValueError` unless the parts are those of an entity that can have quotas."""
    if not parts:
        raise ValueError("Invalid empty client quota entity")
    for entity_type, name in parts.items():
        if entity_type not in schema.entity_types:
            raise ValueError(f"Unhandled client quota entity type: {entity_type}")
        if name == "":
            raise ValueError(f"Empty {entity_type} not supported")
    if not schema.keys_of(frozenset(parts)):
        if IP in parts and (USER in parts or CLIENT_ID in parts):
            raise ValueError(
                "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"  # as in Kafka
            )
        raise ValueError(f"Invalid quota entity combination: {', '.join(parts)}")
    for entity_type, name in parts.items():
        check = schema.entity_types[entity_type].check
        if check is not None and name is not None:
            check(name)


def _check_value(keys: Mapping[str, QuotaKeyDefinition], key: str, value: float, entity: QuotaEntity) -> None:
    """Raise `ValueError` unless the entity can have the value."""
    definition = keys.get(key)
    if definition is None:
        raise ValueError(f"Invalid configuration key {key}")
    definition.check_value(value)
    if definition.check is not None:
        definition.check(entity, value)


def _duplicate(parts: Parts) -> Refusal:
    shown = ", ".join(f"{each}={'null' if name is None else name}" for each, name in parts.items())
    return invalid(f"Ignoring duplicate entity ClientQuotaEntity(entries={{{shown}}})")
