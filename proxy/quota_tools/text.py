"""Quotas, plans and changes as text for people, in the format of KIP-546. Pure functions.

An entity is ``{user=<default>, client-id=my-client}``, and a quota ``key=value``. Names are chosen by clients and by
other operators, so nothing in a name can look like another entity or another line: unprintable characters are escaped,
and a name is written in quotes, with backslashes before quotes and backslashes, if it contains a comma, a brace, a
quote, a backslash or an unprintable character, begins or ends with a space, is in angle brackets, or is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.proxy.quota_tools.plans import sort_key
from headrace.quota_callbacks.entities import DEFAULT, is_bracketed
from headrace.quota_callbacks.escaping import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from headrace.proxy.quota_tools.plans import Plan, Refusal, Step
    from headrace.proxy.quota_tools.resolution import ResolvedQuota
    from headrace.quota_callbacks.entities import EntityName, QuotaEntity

_AMBIGUOUS: Final = frozenset(',{}"\\')
_SIGNS: Final = {"add": "+", "change": "~", "remove": "-"}


def name_text(name: EntityName) -> str:
    """Return a name as people read it; see the module's docstring."""
    if name is DEFAULT:
        return str(DEFAULT)
    text = str(name)
    if text and text == text.strip() and text.isprintable() and not _AMBIGUOUS & set(text) and not is_bracketed(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(escaped)}"'


def entity_text(entity: QuotaEntity) -> str:
    """Return an entity, such as ``{user=<default>, client-id=my-client}``."""
    return f"{{{', '.join(f'{printable(each)}={name_text(name)}' for each, name in entity.parts())}}}"


def number_text(value: float) -> str:
    """Return a value without a fraction that is zero. All values that differ have different texts."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def quota_text(key: str, value: float) -> str:
    """Return ``key=value``."""
    return f"{printable(key)}={number_text(value)}"


def described_lines(quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> Iterator[str]:
    """Yield the lines of a description: for each entity a line, its quotas, and an empty line before the next."""
    for count, entity in enumerate(sorted(quotas, key=sort_key)):
        if count:
            yield ""
        yield entity_text(entity)
        yield from (quota_text(key, value) for key, value in sorted(quotas[entity].items()))


def resolved_lines(resolved: Iterable[ResolvedQuota], *, overridden: bool) -> Iterator[str]:
    """Yield ``key=value {source}`` for each key, and with ``overridden`` what it overrides in lines of their own."""
    for quota in resolved:
        yield f"{quota_text(quota.key, quota.value)} {entity_text(quota.source)}"
        if overridden:
            yield from (
                f"    overrides {number_text(value)} {entity_text(entity)}" for entity, value in quota.overridden
            )


def step_text(step: Step) -> str:
    """Return one line of a plan."""
    values = " -> ".join(number_text(each) for each in (step.old, step.new) if each is not None)
    return f"{_SIGNS[step.action]} {entity_text(step.entity)} {printable(step.key)}={values}"


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yield a line for each addition (+), change (~) and removal (-), in the order of the entities."""
    yield from map(step_text, plan.steps)


def plan_summary(plan: Plan) -> str:
    """Return the numbers of a plan in one sentence, without a full stop."""
    counts = [f"{plan.count(action)} to {action}" for action in _SIGNS if plan.count(action)]
    unchanged = f"{plan.unchanged} unchanged"
    return ", ".join([*(counts or ["nothing to do"]), unchanged])


def refusal_text(refusal: Refusal) -> str:
    """Return one line about what was refused."""
    key = f" {refusal.key}" if refusal.key is not None else ""
    return f"{entity_text(refusal.entity)}{key}: {refusal.reason}"


def listed(lines: Sequence[str], most: int) -> list[str]:
    """Return the first ``most`` lines, and a line with the number of the others if there are any."""
    if len(lines) <= most:
        return list(lines)
    return [*lines[:most], f"... and {len(lines) - most} more"]
