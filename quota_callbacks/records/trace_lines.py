"""The format of traces for ``headrace replay``: one JSON object per line, with precise errors for invalid lines.

Called by `headrace.proxy.replay.replay` and the pipeline for each line. Independent of files, the order of lines and
quota arithmetic. Pure.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, Final, NoReturn

from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA, INT_MAX
from headrace.quota_callbacks.entities import (
    DEFAULT,
    LONG_MAX,
    EntityName,
    QuotaEntity,
    QuotaKey,
    bounded_name,
)
from headrace.quota_callbacks.records.replay import Change, Op, Usage

MAX_LINE_BYTES: Final = 1024 * 1024
"""Maximum length of a line, including its end. An event has about 100 bytes; the rest is for members that replay only
copies."""

ENTITY_TYPES: Final = ("user", "client-id")

Members = dict[str, Any]


class BadLineError(ValueError):
    """A line that cannot be replayed. The message states what was found and what is expected."""


def parse(line: str) -> Members:
    """Return the members of a line.

    Raises `BadLineError` unless it is one JSON object without duplicate names, NaN and Infinity.
    """
    try:
        members = _DECODER.decode(line)
    except BadLineError:
        raise
    except json.JSONDecodeError as error:
        found = "empty" if not line.strip() else f"not JSON ({error.msg} at column {error.colno})"
        raise BadLineError(f"{found}; expected one JSON object") from error
    except (ValueError, RecursionError) as error:  # an integer of 5,000 digits, lists in lists in lists
        raise BadLineError(
            "not JSON that can be read: a number is too long or the nesting too deep; expected one JSON object"
        ) from error
    if not isinstance(members, dict):
        raise BadLineError(f"{_shown(members)} is not an object; expected one JSON object")
    return members


def read_windows(members: Members) -> dict[QuotaKey, Window]:
    """Return the window of each quota key from the first line. Raises `BadLineError`."""
    if "window" not in members:
        raise BadLineError(f'the first line has no "window"; expected a line such as {_WINDOW_LINE}')
    _refuse_unknown(members, _WINDOWS, "")
    usual, controller = (_window(members, name) for name in _WINDOWS[:2])
    ids = _window(members, _WINDOWS[2]) if _WINDOWS[2] in members else Window(samples=11, seconds=3600)
    return {
        QuotaKey.PRODUCER_BYTE_RATE: usual,
        QuotaKey.CONSUMER_BYTE_RATE: usual,
        QuotaKey.REQUEST_PERCENTAGE: usual,
        QuotaKey.CONTROLLER_MUTATION_RATE: controller,
        QuotaKey.PRODUCER_IDS_RATE: ids,
    }


def read(members: Members) -> Change | Usage:
    """Return the quota change or event of any other line. Raises `BadLineError`."""
    if "alter" in members:
        return _change(members)
    if "op" not in members and "window" in members:
        raise BadLineError("a second window line; expected one only, as the first line")
    return _usage(members)


def _change(members: Members) -> Change:
    """Return a quota change; the rules are those of AlterClientQuotas (``ClientQuotaControlManager``)."""
    if "op" in members:
        raise BadLineError('both "alter" and "op"; expected either a quota change or an event per line')
    alter = _object(members, "alter")
    _refuse_unknown(alter, ("entity", "set", "remove"), "alter.")
    if "set" not in alter and "remove" not in alter:
        raise BadLineError('alter has neither "set" nor "remove"; expected at least one of them')
    entity = _entity(_object(alter, "entity", "alter."))
    to_set = _object(alter, "set", "alter.") if "set" in alter else {}
    values = {_key(name, "alter.set"): _value(name, value, entity) for name, value in to_set.items()}
    removed = _removed(alter.get("remove", []), entity)
    for key in removed:
        if key in values:
            raise BadLineError(f"alter both sets and removes {key}; expected one of them")
    return Change(t_ms=_time(members), entity=entity, values=values, removed=removed)


def _usage(members: Members) -> Usage:
    op = _OPS.get(members["op"]) if isinstance(members.get("op"), str) else None
    if op is None:
        _refuse(members, "op", f"one of {', '.join(Op)}")
    t_ms = _time(members)
    user = _name(members, "user")
    client_id = "" if members.get("client_id", "") is None else _name(members, "client_id")
    amount: Any = members.get("amount")
    if op is Op.PRODUCER_ID:
        if type(amount) is not int or not -LONG_MAX - 1 <= amount <= LONG_MAX:
            _refuse(members, "amount", "a producer id, a whole number of 64 bits")
    elif type(amount) not in _NUMBERS or not 0 <= amount <= LONG_MAX:
        _refuse(members, "amount", f"{_UNITS[op]}, a number from 0 to {LONG_MAX}")
    strict: Any = members.get("strict") if op is Op.CONTROLLER_MUTATION else False
    if type(strict) is not bool:
        _refuse(members, "strict", "true or false")
    return Usage(t_ms=t_ms, user=user, client_id=client_id, op=op, amount=amount, strict=strict)


def _time(members: Members) -> int:
    t_ms: Any = members.get("t")
    if type(t_ms) is float and t_ms.is_integer():
        t_ms = int(t_ms)
    if type(t_ms) is not int or not 0 <= t_ms <= LONG_MAX:
        _refuse(members, "t", "a time in whole milliseconds, 0 or more")
    return int(t_ms)


def _name(members: Members, name: str) -> str:
    value: Any = members.get(name)
    if type(value) is not str:
        _refuse(members, name, "a string")
    if not value.isascii():
        _check_text(name, value)
    return bounded_name(value)


def _check_text(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadLineError(f"{name} is {_shown(value)}; expected text without lone surrogates") from error


def _window(members: Members, name: str) -> Window:
    window = _object(members, name)
    _refuse_unknown(window, ("samples", "seconds"), f"{name}.")
    for part in ("samples", "seconds"):
        value = window.get(part)
        if type(value) is not int or not 1 <= value <= INT_MAX:  # as a broker's ``quota.window.*``
            _refuse(window, part, f"a whole number from 1 to {INT_MAX}", f"{name}.")
    return Window(samples=window["samples"], seconds=window["seconds"])


def _entity(members: Members) -> QuotaEntity:
    names: dict[str, EntityName] = {}
    for entity_type, name in members.items():
        path = f"alter.entity.{entity_type}"
        if entity_type not in ENTITY_TYPES:
            raise BadLineError(f"{path} is an unknown entity type; expected {' or '.join(ENTITY_TYPES)}")
        if name is not None and (type(name) is not str or not name):
            raise BadLineError(f"{path} is {_shown(name)}; expected a name, or null for the default entity")
        if name is not None:
            _check_text(path, name)
        names[entity_type] = DEFAULT if name is None else bounded_name(name)
    if not names:
        raise BadLineError("alter.entity is {}; expected a user, a client-id, or both")
    return QuotaEntity(user=names.get("user"), client_id=names.get("client-id"))


def _key(name: object, path: str) -> QuotaKey:
    if not isinstance(name, str) or name not in _KEYS:
        raise BadLineError(f"{path} names {_shown(name)}; expected one of {', '.join(QuotaKey)}")
    return QuotaKey(name)


def _value(name: str, value: object, entity: QuotaEntity) -> float:
    path = f"alter.set.{name}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadLineError(f"{path} is {_shown(value)}; expected a number above 0")
    try:
        BUILTIN_SCHEMA.check(QuotaKey(name), value, entity)
        return float(value)
    except OverflowError as error:
        raise BadLineError(f"{path} is {_shown(value)}; expected a number that a double holds") from error
    except ValueError as error:
        raise BadLineError(f"{path} is {_shown(value)}: {error}") from error


def _removed(names: object, entity: QuotaEntity) -> tuple[QuotaKey, ...]:
    if not isinstance(names, list):
        raise BadLineError(f"alter.remove is {_shown(names)}; expected a list of quota keys")
    keys = tuple(_key(name, "alter.remove") for name in names)
    if len(set(keys)) != len(keys):
        raise BadLineError(f"alter.remove is {_shown(names)}; expected each key once")
    for key in keys:
        try:
            BUILTIN_SCHEMA.check(key, 1.0, entity)  # an entity cannot lose a key that it cannot have
        except ValueError as error:
            raise BadLineError(f"alter.remove: {error}") from error
    return keys


def _object(members: Members, name: str, path: str = "") -> Members:
    found = members.get(name)
    if not isinstance(found, dict):
        _refuse(members, name, "an object", path)
    return found


def _refuse(members: Members, name: str, expected: str, path: str = "") -> NoReturn:
    if name not in members:
        raise BadLineError(f"no {path}{name}; expected {expected}")
    raise BadLineError(f"{path}{name} is {_shown(members[name])}; expected {expected}")


def _refuse_unknown(members: Members, known: tuple[str, ...], path: str) -> None:
    for name in members:
        if name not in known:
            raise BadLineError(f"unknown member {_shown(path + name)}; expected {', '.join(known)}")


def _shown(value: object) -> str:
    """Return a value as JSON, truncated to 60 characters."""
    text = "a number that is too large" if isinstance(value, float) and math.isinf(value) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _members(pairs: list[tuple[str, Any]]) -> Members:
    members = dict(pairs)
    if len(members) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise BadLineError(f"duplicate name {_shown(twice)}; expected each name once")
    return members


def _constant(name: str) -> Any:
    raise BadLineError(f"{name}, which is not JSON; expected finite numbers")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_members, parse_constant=_constant)
_OPS: Final = {op.value: op for op in Op}
_KEYS: Final = frozenset(QuotaKey)
_NUMBERS: Final = (int, float)
_UNITS: Final = {
    Op.PRODUCE: "bytes",
    Op.FETCH: "bytes",
    Op.REQUEST: "milliseconds of thread time",
    Op.CONTROLLER_MUTATION: "mutations",
    Op.NEW_PRODUCER_IDS: "producer ids",
}
_WINDOWS: Final = ("window", "controller_window", "producer_id_window")
_WINDOW_LINE: Final = '{"window": {"samples": 11, "seconds": 1}, "controller_window": {"samples": 11, "seconds": 1}}'
