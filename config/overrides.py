"""Values that override the file: flags of the command line, and environment variables.

Used by the command line, which creates its options from `FLAGS`, and by `loading`. The name of a variable is
``HEADRACE_`` and the key in capitals, with two underscores for each dot:

    HEADRACE_LISTEN__ADDRESS=0.0.0.0:9192
    HEADRACE_QUOTA__WINDOW__NUM=21
    HEADRACE_PLUGINS__OPTIONS__TRACING__ENABLED=true
    HEADRACE_LISTENERS__EXTERNAL__ADDRESS=0.0.0.0:9193

An underscore in the name of a listener also stands for a hyphen, if there is a listener with that name.
The value of a string key is not quoted, and a list is separated by commas. Other values, tables and arrays are written
as in the file. An empty variable counts as not set.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, get_origin

from headrace.config.keys import Leaf, keys
from headrace.config.problems import Problem
from headrace.config.schema import REMOVED, Config
from headrace.quota_callbacks.options import Parsed

if TYPE_CHECKING:
    from headrace.quota_callbacks.value_texts import Path

PREFIX: Final = "HEADRACE_"
OPTIONS: Final = ("plugins", "options")
LISTENERS: Final = "listeners"

ADMIN_TOKEN: Final = f"{PREFIX}ADMIN_TOKEN"
"""The variable with the token that ``headrace why`` and other commands send to the admin server."""
ADMIN_CA: Final = f"{PREFIX}ADMIN_CA"
ADMIN_CERT: Final = f"{PREFIX}ADMIN_CERT"
ADMIN_KEY: Final = f"{PREFIX}ADMIN_KEY"
ADMIN_SERVER_NAME: Final = f"{PREFIX}ADMIN_SERVER_NAME"
"""The variables for TLS with the admin server: its authorities, the command's own certificate and key, and the name."""
BOOTSTRAP_SERVER: Final = f"{PREFIX}BOOTSTRAP_SERVER"
"""The variable with the address to which ``headrace quotas`` connects, if neither an option nor a file names one."""

_OTHERS: Final = re.compile(
    r"HEADRACE_(ADMIN_(TOKEN|CA|CERT|KEY|SERVER_NAME)|BOOTSTRAP_SERVER|PURE|PIPELINE_\w+|TESTBED_\w+)"
)
"""Variables with the prefix that other parts read: commands for operators, the build, the pipeline, the test bed."""
_KUBERNETES: Final = re.compile(
    r"HEADRACE_((?!.*__).*_)?"
    r"(SERVICE_HOST=.*|SERVICE_PORT(_\w+)?=.*|PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=.*"
    r"|PORT(_\d+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://.*)"
)
"""Variables, with their values, that Kubernetes sets in all containers of a namespace with a service called headrace
(service links)."""


_AMBIGUOUS: Final = (
    "could be a key of the listeners {}, since an underscore stands for a hyphen, too; rename one of them"
)
_NAMING: Final = "the variable of a key is HEADRACE_ and the key in capitals, with two underscores for each dot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag of the command line: the key that it sets, and its help text."""

    name: str
    key: str
    help: str
    required: bool
    """Whether the key must be set in the file or by a variable if the flag is not given."""
    repeated: bool
    """Whether the flag can be given several times, to add values to a list."""


def _is_list(leaf: Leaf) -> bool:
    return get_origin(leaf.field.annotation) is tuple


def _is_text(leaf: Leaf) -> bool:
    kind = leaf.field.annotation
    if kind in (str, str | None) or (isinstance(kind, type) and issubclass(kind, StrEnum)):
        return True
    return any(isinstance(kind, Parsed) and kind.schema.get("type") == "string" for kind in leaf.field.metadata)


FLAGS: Final = tuple(
    Flag(name=leaf.about.flag, key=leaf.key, help=leaf.about.doc, required=leaf.required, repeated=_is_list(leaf))
    for leaf in keys(Config)
    if leaf.about.flag is not None
)
"""All flags, in the order of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A value of a flag or variable that overrides the file."""

    path: tuple[str, ...]
    value: object
    name: str
    """The name of the flag or variable."""

    def sets(self, path: Path) -> bool:
        """Return whether the value at ``path`` is (part of) this one."""
        return path[: len(self.path)] == self.path

    def put_into(self, document: dict[str, Any]) -> None:
        """Set the value in a document from `tomllib`. Do nothing if the document has another value in place of its
        table, which is reported as an error of the file."""
        *around, name = self.path
        for step in around:
            inner = document.setdefault(step, {})
            if not isinstance(inner, dict):
                return
            document = inner
        document[name] = self.value


def flag_overrides(flags: Mapping[str, object]) -> tuple[list[Override], list[Problem]]:
    """Return the overrides of flags, given by dotted key, and problems for unknown keys. None is a flag not given."""
    known = {leaf.key: leaf for leaf in keys(Config)}
    given = {key: value for key, value in flags.items() if value is not None}
    overrides = [
        Override(path=leaf.path, value=_value(leaf, value), name=leaf.about.flag or key)
        for key, value in given.items()
        if (leaf := known.get(key))
    ]
    return overrides, [Problem(flag=key, rule="unknown key") for key in given if key not in known]


def environment_overrides(
    environment: Mapping[str, str], document: Mapping[str, object]
) -> tuple[list[Override], list[Problem]]:
    """Return the overrides of variables, and problems for variables with the prefix that set no key.

    ``document`` is the file, whose listeners may have names that variables cannot have.
    """
    known = {variable_of(leaf.path): leaf for leaf in keys(Config)}
    options = f"{variable_of(OPTIONS)}__"
    overrides: list[Override] = []
    problems: list[Problem] = []
    listeners = document.get(LISTENERS)
    for name, text in sorted(environment.items()):  # the variable of all listeners precedes those of their keys
        if not name.startswith(PREFIX) or not text.strip():
            continue
        leaf = known.get(name)
        if leaf is not None:
            overrides.append(Override(path=leaf.path, value=_value(leaf, text), name=name))
            if leaf.path == (LISTENERS,):
                listeners = overrides[-1].value
        elif name.startswith(options) and all(steps := name.removeprefix(options).lower().split("__")) and steps[1:]:
            overrides.append(Override(path=(*OPTIONS, *steps), value=_as_toml(text), name=name))
        elif (found := _of_listener(name)) is not None:
            (_, listener, *inner), leaf = found
            names = _listeners_called(listener, listeners)
            if len(names) > 1:
                problems.append(Problem(flag=name, rule=_AMBIGUOUS.format(" or ".join(names))))
            overrides.append(Override(path=(LISTENERS, names[0], *inner), value=_value(leaf, text), name=name))
        elif (removed := _removed(name)) is not None:
            problems.append(Problem(flag=name, rule=removed))
        elif not (_OTHERS.fullmatch(name) or _KUBERNETES.fullmatch(f"{name}={text}")):
            closest = _closest(name)
            hint = _NAMING if closest is None else f"did you mean {closest}?"
            problems.append(Problem(flag=name, rule=f"unknown variable; {hint}"))
    return sorted(overrides, key=lambda each: len(each.path)), problems


def _of_listener(name: str) -> tuple[tuple[str, ...], Leaf] | None:
    """Return the path of a key of ``[listeners.NAME]`` that a variable sets, and the key of ``[listen]`` or
    ``[upstream]`` whose values it has; ``None`` for any other variable."""
    table, *steps = name.removeprefix(PREFIX).lower().split("__")
    if table != LISTENERS or len(steps) < 2 or not steps[0]:
        return None
    listener, *inner = steps
    path = tuple(inner) if inner[0] == "upstream" else ("listen", *inner)
    leaf = next((each for each in keys(Config) if each.path == path), None)
    return None if leaf is None else ((LISTENERS, listener, *inner), leaf)


def _listeners_called(written: str, listeners: object) -> list[str]:
    """Return the names of the listeners that a variable may mean, in which an underscore can stand for a hyphen."""
    known = listeners if isinstance(listeners, Mapping) else ()
    return [each for each in known if each.replace("-", "_") == written] or [written]


def variable_of(path: tuple[str, ...]) -> str:
    """Return the name of the variable that sets the key at ``path``."""
    return PREFIX + "__".join(path).upper()


def _removed(name: str) -> str | None:
    """Return the reason if the variable was for a key that a later version has removed; ``None`` for other
    variables."""
    for path, rule in REMOVED.items():
        if f"{name}__".startswith(variable_of((*map(str, path), ""))):
            return rule
    return None


def _closest(name: str) -> str | None:
    """Return the known variable whose name is most similar; for the name of a table alone, the table's first."""
    paths = [leaf.path for leaf in keys(Config)]
    known = {path[0]: path for path in reversed(paths)} | {"__".join(path): path for path in paths}
    close = difflib.get_close_matches(name.removeprefix(PREFIX).lower(), known, n=1)
    return variable_of(known[close[0]]) if close else None


def _value(leaf: Leaf, given: object) -> object:
    """Return the value in the form of the file, since flags and variables are strings."""
    if _is_list(leaf):
        if isinstance(given, str) and given.lstrip().startswith("["):
            return _as_toml(given)
        parts = (given,) if isinstance(given, str) else given
        if not isinstance(parts, Sequence):
            return given
        return [item.strip() for part in parts for item in str(part).split(",")]
    return _as_toml(given) if isinstance(given, str) and not _is_text(leaf) else given


def _as_toml(text: str) -> object:
    """Return a value parsed as TOML, or the text itself if it is not TOML, such as ``1MiB`` without quotes."""
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return document["value"] if document.keys() == {"value"} else text
