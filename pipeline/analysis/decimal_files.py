"""TOML files with amounts of money: price sheets (`prices`) and budgets (`headrace.pipeline.finops.budget_files`).

They are read as the proxy's configuration is: all faults are reported at once, with line, key and value. Numbers are
parsed as decimals, so that no amount is a binary fraction.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final, TypeVar

from pydantic import ValidationError

from headrace.config.loading import parse_toml, read_text
from headrace.config.problems import ConfigError, Locator
from headrace.pipeline.errors import InputError
from headrace.quota_callbacks.options import Fault, Parsed, Table, faults_of, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FileT = TypeVar("FileT", bound=Table)

MAX_FILE_BYTES: Final = 2**20
MAX_DECIMALS: Final = 6
"""Maximum number of decimals of a price or an amount; the tables have no more."""
MAX_AMOUNT: Final = Decimal(10) ** 12
"""An amount is below this, so that sums of many fit into the tables."""

CURRENCY: Final = text('three capital letters, such as "EUR" (ISO 4217)', "[A-Z]{3}")
"""The annotation for a currency."""


def decimal_number(highest: Decimal, *, positive: bool = False) -> Parsed:
    """Return the annotation for a decimal from 0 to a bound, with few enough decimals to be kept exactly.

    With ``positive``, 0 is an error, too.
    """

    def parse(raw: object) -> Decimal:
        if isinstance(raw, bool) or not isinstance(raw, int | Decimal):
            raise ValueError  # noqa: TRY004  the caller converts ValueError alone
        number = Decimal(raw)
        if not number.is_finite() or not 0 <= number <= highest or number != round(number, MAX_DECIMALS):
            raise ValueError
        if positive and not number:
            raise ValueError
        return number

    bounds = f"above 0 and up to {highest:,}" if positive else f"from 0 to {highest:,}"
    expected = f"a number {bounds} with at most {MAX_DECIMALS} decimals"
    return Parsed(expected, parse, {"type": "number", "minimum": 0, "maximum": float(highest)})


def read_decimal_file(
    path: str, what: str, table: type[FileT], faults_between_keys: Callable[[FileT], Iterable[Fault]]
) -> FileT:
    """Read a local file, a ``what`` such as "price sheet". Raises `InputError` with all faults, one per line.

    ``faults_between_keys`` returns what is wrong although each value is valid.
    """
    try:
        written = read_text(path, what=what, longest_bytes=MAX_FILE_BYTES)
        document = parse_toml(written, path, parse_float=Decimal)
    except ConfigError as error:
        raise InputError(str(error)) from error
    except InvalidOperation as error:
        raise InputError(f"{path}: a number has an exponent that is too large") from error
    try:
        found = table.model_validate(document)
        faults = list(faults_between_keys(found))
    except ValidationError as error:
        faults = faults_of(error, table)
    if faults:
        locator = Locator(written, path)
        raise InputError("\n".join(str(locator.locate(fault)) for fault in faults))
    return found
