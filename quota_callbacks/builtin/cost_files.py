"""The cost model in the configuration: the options of ``request_percentage``, and the file that ``costs_file`` names.

Read at start by `headrace.quota_callbacks.builtin.request_percentage`; the pipeline, which fits models, reads and
writes the same files. A file is TOML with one table, keyed by API key::

    [costs]
    0 = { base_ms = 0.068, per_kib_ms = 0.0015 }
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field, ValidationError

from headrace.quota_callbacks.builtin.request_costs import RequestCost
from headrace.quota_callbacks.files import read_ordinary_file
from headrace.quota_callbacks.options import Fault, Parsed, Table, faults_of, text, validation_error

if TYPE_CHECKING:
    from collections.abc import Mapping

TABLE: Final = "costs"
OPTION: Final = "costs_file"
LONGEST_FILE_BYTES: Final = 1024 * 1024
"""A row for each API takes about 10 KiB."""

_RULE: Final = 'expected API key = { base_ms = milliseconds, per_kib_ms = milliseconds }, such as "0" for Produce'
_FILE_RULE: Final = f"expected a TOML file with the table [{TABLE}] by API key"


def _parse_costs(table: object) -> dict[int, RequestCost]:
    """Read a table by API key: ``{ base_ms = 0.07, per_kib_ms = 0.002 }``."""
    if not isinstance(table, dict):
        raise ValueError  # noqa: TRY004 -- reported like every invalid value
    costs: dict[int, RequestCost] = {}
    faults: list[Fault] = []
    for name, cost in table.items():
        try:
            costs[int(name)] = RequestCost(**{key: float(value) for key, value in cost.items()})
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            faults.append(Fault(path=(name,), found=cost, rule=f"{_RULE} ({error})"))
    if faults:
        raise validation_error(faults)
    return costs


_COSTS: Final = Parsed("a table by API key", _parse_costs, {"type": "object"})


class CostsFile(Table):
    """The content of a costs file."""

    costs: Annotated[dict[int, RequestCost], _COSTS]


class CostOptions(Table):
    """The options of ``request_percentage``."""

    costs: Annotated[dict[int, RequestCost], _COSTS] = Field(default_factory=dict)
    costs_file: Annotated[str | None, text(f"the path of a TOML file with the table [{TABLE}] by API key")] = None

    def by_api(self) -> dict[int, RequestCost]:
        """Return the costs by API key; ``costs`` takes precedence over ``costs_file``.

        Reads the file and blocks. Raises `ValueError` if it cannot be read or is invalid.
        """
        return (load_costs(self.costs_file) if self.costs_file is not None else {}) | self.costs


def load_costs(path: str, option: str = OPTION) -> dict[int, RequestCost]:
    """Return the costs of a file, by API key; blocks.

    Raises `ValueError`; the message begins with ``option``, the name of the setting that has the path.
    """
    where = f"{option} = {path!r}"
    try:
        document = tomllib.loads(read_ordinary_file(path, LONGEST_FILE_BYTES, "costs file").decode())
    except OSError as error:
        raise ValueError(f"{where}: {error.strerror or error}; {_FILE_RULE}") from error
    except (ValueError, RecursionError) as error:  # also UnicodeDecodeError, and a number of thousands of digits
        raise ValueError(f"{where}: not TOML: {error}; {_FILE_RULE}") from error
    try:
        return CostsFile.model_validate(document).costs
    except ValidationError as error:
        faults = "; ".join(map(str, faults_of(error, CostsFile)))
    raise ValueError(f"{where}: {faults}; {_FILE_RULE}")


def costs_text(costs: Mapping[int, RequestCost], notes: Mapping[int, str], head: str = "") -> str:
    """Return the text of a file for `load_costs`, with ``head`` as the first comment and a note after each API."""
    lines = [f"# {line}".rstrip() for line in head.splitlines()]
    lines.append(f"[{TABLE}]")
    for api_key, cost in sorted(costs.items()):
        note = notes.get(api_key, "")
        line = f"{api_key} = {{ base_ms = {cost.base_ms:.6g}, per_kib_ms = {cost.per_kib_ms:.6g} }}"
        lines.append(f"{line}  # {note}" if note else line)
    return "\n".join(lines) + "\n"
