"""The keys of the file, derived from typed dataclasses: which there are, how to read them, how to build the values.

Called by `loading`, `json_schema`, `reload` and `quotas` with the classes of `schema`, so that a key is declared once:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Shutdown:
        drain_timeout_s: Annotated[float, Setting("drain_timeout", Duration("0s", "1d"), "Why.")] = 30.0

A field is a `Setting` or, for a class within a class, a `Section`; both may have dots in their key. A field's default
is the key's default; a field without one is a required key. A class that is a section of another has no required
fields, or is itself without a default.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar, get_type_hints

from config.kinds import NOTHING, Fault, Kind, UnfitError, did_you_mean
from config.problems import dotted

ClassT = TypeVar("ClassT")


class Reload(Enum):
    """When a changed key takes effect."""

    AT_ONCE = "at once"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key: its name below its section, its kind of value, one line for people, and what a change needs."""

    key: str
    kind: Kind[Any]
    doc: str
    reload: Reload = Reload.AT_ONCE
    flag: str | None = None
    """The command-line flag that sets it too."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table of keys: its name below its parent, and one line for people."""

    key: str
    doc: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaf:
    """A key as the whole file has it: ``path`` in the document, ``attributes`` in the typed values.

    There is one object per key (`leaves` keeps them), so leaves are compared by identity.
    """

    path: tuple[str, ...]
    attributes: tuple[str, ...]
    setting: Setting
    default: object
    """`NOTHING` for a required key; None for one that is off or derived unless it is given."""

    @property
    def key(self) -> str:
        """The dotted key, as problems and flags spell it."""
        return dotted(self.path)

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is NOTHING


Tree: TypeAlias = "dict[str, Tree | Leaf]"


@cache
def leaves(declared: type) -> tuple[Leaf, ...]:
    """All keys of a class and the classes in it, in their order."""
    return tuple(_leaves(declared))


def _leaves(declared: type) -> Iterator[Leaf]:
    for name, role, member, default in _members(declared):
        if isinstance(role, Setting):
            yield Leaf(path=tuple(role.key.split(".")), attributes=(name,), setting=role, default=default)
            continue
        for leaf in leaves(member):
            path = (*role.key.split("."), *leaf.path)
            yield dataclasses.replace(leaf, path=path, attributes=(name, *leaf.attributes))


@cache
def section_docs(declared: type) -> Mapping[tuple[str, ...], str]:
    """The line for people of every table below a class, by the table's path."""
    docs: dict[tuple[str, ...], str] = {}
    for _, role, member, _ in _members(declared):
        if isinstance(role, Section):
            path = tuple(role.key.split("."))
            docs[path] = role.doc
            docs |= {(*path, *inner): doc for inner, doc in section_docs(member).items()}
    return docs


@cache
def _members(declared: type) -> tuple[tuple[str, Setting | Section, type, object], ...]:
    """Each field's name, role, class and default."""
    return tuple(_each_member(declared))


def _each_member(declared: type) -> Iterator[tuple[str, Setting | Section, type, object]]:
    hints = get_type_hints(declared, include_extras=True)
    for member in dataclasses.fields(declared):
        default: object = NOTHING
        if member.default is not dataclasses.MISSING:
            default = member.default
        elif member.default_factory is not dataclasses.MISSING:
            default = member.default_factory()
        hint = hints[member.name]
        (role,) = (note for note in hint.__metadata__ if isinstance(note, Setting | Section))
        yield member.name, role, hint.__origin__, default


@cache
def key_tree(declared: type) -> Tree:
    """The keys as nested tables."""
    tree: Tree = {}
    for leaf in leaves(declared):
        table = tree
        for name in leaf.path[:-1]:
            inner = table.setdefault(name, {})
            if isinstance(inner, Leaf):
                raise TypeError(f"{dotted(leaf.path)} stands below the key {inner.key}")
            table = inner
        table[leaf.path[-1]] = leaf
    return tree


@dataclass(slots=True)
class Reading:
    """What a table said: the values that fit, and the faults; `bad` holds the keys that were set, but not well."""

    values: dict[Leaf, object] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    bad: set[Leaf] = field(default_factory=set)

    def take(self, leaf: Leaf, raw: object) -> None:
        """Read one key's value."""
        try:
            self.values[leaf] = leaf.setting.kind.read(raw)
        except UnfitError as unfit:
            self.bad.add(leaf)
            self.faults += (fault.under(*leaf.path) for fault in unfit.faults)

    def missing(self, declared: type) -> list[Leaf]:
        """The required keys that were not set at all."""
        return [leaf for leaf in leaves(declared) if leaf.required and not (leaf in self.values or leaf in self.bad)]


def read_table(declared: type, table: Mapping[str, object]) -> Reading:
    """Read a table as `tomllib` gives it: all keys that are known, and every fault. Says nothing of missing keys."""
    reading = Reading()
    _read(declared, table, key_tree(declared), (), reading)
    return reading


def _read(declared: type, table: Mapping[str, object], tree: Tree, outer: tuple[str, ...], reading: Reading) -> None:
    for name, raw in table.items():
        path = (*outer, name)
        known = tree.get(name)
        if known is None:
            reading.faults.append(Fault(path=path, rule=_unknown(declared, path, tree)))
        elif isinstance(known, Leaf):
            reading.take(known, raw)
        elif isinstance(raw, Mapping):
            _read(declared, raw, known, path, reading)
        else:
            rule = f"expected a table: [{dotted(path)}] and keys below it"
            if isinstance(raw, list) and (hint := did_you_mean(name, _keys_of(tree))):
                rule += f"; {hint}"
            reading.faults.append(Fault(path=path, rule=rule, found=raw))
            reading.bad |= {leaf for leaf in leaves(declared) if leaf.path[: len(path)] == path}


def _keys_of(tree: Tree) -> list[str]:
    return [name for name, member in tree.items() if isinstance(member, Leaf)]


_CLOSE: Final = 0.7
"""How alike a known key must be to be suggested: enough for a slip of the pen, too much for another quota's name."""


def _unknown(declared: type, path: tuple[str, ...], siblings: Tree) -> str:
    """Say that a key is unknown, with the closest key in its table or, failing that, anywhere."""
    *outer, name = path
    if close := difflib.get_close_matches(name.lower(), siblings, n=1, cutoff=_CLOSE):
        return f"unknown key; did you mean {dotted((*outer, close[0]))}?"
    elsewhere = {leaf.path[-1]: leaf.key for leaf in reversed(leaves(declared))}
    if close := difflib.get_close_matches(name.lower(), elsewhere, n=1, cutoff=_CLOSE):
        return f"unknown key; did you mean {elsewhere[close[0]]}?"
    return f"unknown key; known here: {', '.join(siblings)}"


def build(declared: type[ClassT], values: Mapping[Leaf, object]) -> ClassT:
    """Make the typed value; a key without a value has its default. `TypeError` if a required one is missing."""
    return _build(declared, {leaf.attributes: value for leaf, value in values.items()})


def _build(declared: type[ClassT], values: Mapping[tuple[str, ...], object]) -> ClassT:
    arguments: dict[str, object] = {}
    hashable: type = declared  # mypy does not take a type[ClassT] for one
    for name, role, member, _ in _members(hashable):
        if isinstance(role, Setting):
            if (name,) in values:
                arguments[name] = values[(name,)]
        else:
            inner = {path[1:]: value for path, value in values.items() if path[0] == name}
            arguments[name] = _build(member, inner)
    return declared(**arguments)


def value_of(built: object, leaf: Leaf) -> object:
    """The value that a built object has for a key."""
    value = built
    for attribute in leaf.attributes:
        value = getattr(value, attribute)
    return value
