"""The cost model as the proxy is told it: the options of ``request_percentage``, and the file that one of them names.

Read at start by `quota_callbacks.request_percentage`; the pipeline, which fits models, reads and writes the same files.
A file is TOML with one table, by API key::

    [costs]
    0 = { base_ms = 0.068, per_kib_ms = 0.0015 }
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quota_callbacks.request_costs import RequestCost

if TYPE_CHECKING:
    from collections.abc import Mapping

TABLE: Final = "costs"
OPTION: Final = "costs_file"

_RULE: Final = 'expected API key = { base_ms = milliseconds, per_kib_ms = milliseconds }, such as "0" for Produce'
_FILE_RULE: Final = f"expected a TOML file with the table [{TABLE}] by API key"


def read_costs(table: object) -> dict[int, RequestCost]:
    """The table ``costs``: by API key, ``{ base_ms = 0.07, per_kib_ms = 0.002 }``. Raises `ValueError`."""
    if not isinstance(table, dict):
        raise ValueError(f"{TABLE} = {table!r}: expected a table by API key")  # noqa: TRY004 -- as all options' errors
    costs = {}
    for name, cost in table.items():
        try:
            costs[int(name)] = RequestCost(**{key: float(value) for key, value in cost.items()})
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{TABLE}.{name} = {cost!r}: {_RULE} ({error})") from error
    return costs


def load_costs(path: str, said: str = OPTION) -> dict[int, RequestCost]:
    """The costs of a file; blocks. Raises `ValueError`, which begins with ``said`` (the option that named it)."""
    where = f"{said} = {path!r}"
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{where}: {error.strerror or error}; {_FILE_RULE}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{where}: not TOML: {error}; {_FILE_RULE}") from error
    if unknown := document.keys() - {TABLE}:
        raise ValueError(f"{where}: unknown key {min(unknown)!r}; {_FILE_RULE}, and nothing else")
    if TABLE not in document:
        raise ValueError(f"{where}: there is no [{TABLE}]; {_FILE_RULE}")
    try:
        return read_costs(document[TABLE])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def spell_costs(costs: Mapping[int, RequestCost], notes: Mapping[int, str], head: str = "") -> str:
    """A file that `load_costs` reads: ``head`` and, behind each line, the API's note as comments."""
    lines = [f"# {line}".rstrip() for line in head.splitlines()]
    lines.append(f"[{TABLE}]")
    for api_key, cost in sorted(costs.items()):
        note = notes.get(api_key, "")
        line = f"{api_key} = {{ base_ms = {cost.base_ms:.6g}, per_kib_ms = {cost.per_kib_ms:.6g} }}"
        lines.append(f"{line}  # {note}" if note else line)
    return "\n".join(lines) + "\n"
