"""Price sheets: what a bill charges for, as TOML.

    currency = "EUR"
    per_gib_produced = 0.05
    per_thread_hour = 1.20
    minimum = 10

    [teams.payments]
    discount_percent = 15

Read as the proxy's own configuration is: all that is wrong is told at once, with the line, the key and the value.
Numbers are decimals from the file on; nothing of a bill is ever a binary fraction.
"""
# Annotations are read at run time (`config.keys`), so they are not postponed here.

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final

from config.keys import Setting, build, read_table
from config.kinds import NOTHING, Fault, JsonSchema, Kind, Text, UnfitError, Whole
from config.positions import Positions
from config.problems import Problem, dotted, spelled
from pipeline.errors import InputError

NO_TEAM: Final = "(none)"
"""In bills, of senders that the teams file does not know."""
UNATTRIBUTED: Final = "(unattributed)"
"""In bills, of usage that does not tell its sender."""

MAX_FILE_BYTES: Final = 2**20
PRICE_DECIMALS: Final = 6
MAX_PRICE: Final = Decimal(10) ** 8
MAX_DECIMALS: Final = 6
"""Of amounts; the table has no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A line of a bill."""

    key: str
    """In the price sheet."""
    name: str
    column: str
    """Of the rollups."""
    unit: str
    """Of that column."""
    per: str
    """What the price is for: ``divisor`` units."""
    divisor: int


ITEMS: Final = (
    Item(key="per_gib_produced", name="produced", column="produced_bytes", unit="bytes", per="GiB", divisor=2**30),
    Item(key="per_gib_fetched", name="fetched", column="fetched_bytes", unit="bytes", per="GiB", divisor=2**30),
    Item(
        key="per_million_requests",
        name="requests",
        column="requests",
        unit="requests",
        per="million requests",
        divisor=10**6,
    ),
    Item(key="per_thread_hour", name="thread time", column="thread_ms", unit="ms", per="hour", divisor=3_600_000),
    Item(
        key="per_thousand_mutations",
        name="mutations",
        column="mutations",
        unit="partitions",
        per="thousand partitions",
        divisor=1000,
    ),
    Item(key="per_producer_id", name="producer ids", column="producer_ids", unit="ids", per="id", divisor=1),
)


class Number(Kind[Decimal]):
    """A decimal between 0 and a bound, with few enough decimals to be kept exactly."""

    __slots__ = ("_highest",)

    def __init__(self, highest: Decimal) -> None:
        self._highest = highest
        self.expected = f"a number from 0 to {highest:,} with at most {PRICE_DECIMALS} decimals"

    def _read(self, raw: object) -> Decimal:
        if isinstance(raw, bool) or not isinstance(raw, int | Decimal):
            raise self.unfit(raw)
        number = Decimal(raw)
        if not number.is_finite() or not 0 <= number <= self._highest or number != round(number, PRICE_DECIMALS):
            raise self.unfit(raw)
        return number

    def _schema(self) -> JsonSchema:
        return {"type": "number", "minimum": 0, "maximum": float(self._highest)}


_PRICE: Final = Number(MAX_PRICE - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What everybody or one team pays; a price that is not given is not a line of the bill."""

    per_gib_produced: Annotated[Decimal | None, Setting("per_gib_produced", _PRICE, "Requests to produce.")] = None
    per_gib_fetched: Annotated[Decimal | None, Setting("per_gib_fetched", _PRICE, "Replies to fetches.")] = None
    per_million_requests: Annotated[Decimal | None, Setting("per_million_requests", _PRICE, "Of any API.")] = None
    per_thread_hour: Annotated[
        Decimal | None, Setting("per_thread_hour", _PRICE, "Of the broker's request handlers, as estimated.")
    ] = None
    per_thousand_mutations: Annotated[
        Decimal | None, Setting("per_thousand_mutations", _PRICE, "Partitions created, added or deleted.")
    ] = None
    per_producer_id: Annotated[Decimal | None, Setting("per_producer_id", _PRICE, "New ones.")] = None
    minimum: Annotated[Decimal | None, Setting("minimum", _PRICE, "Of a team's bill, discount included.")] = None

    def prices(self) -> dict[str, Decimal]:
        """Those that are given, by key."""
        given = {item.key: getattr(self, item.key) for item in ITEMS}
        return {key: price for key, price in given.items() if price is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamTerms(Terms):
    """What stands below ``[teams.NAME]``: it comes in place of what everybody pays."""

    discount_percent: Annotated[
        Decimal | None, Setting("discount_percent", Number(Decimal(100)), "Off the sum of the lines.")
    ] = None


class Teams(Kind[Mapping[str, TeamTerms]]):
    """The tables ``[teams.NAME]``."""

    __slots__ = ()

    def __init__(self) -> None:
        self.expected = "tables, each headed [teams.NAME]"

    def _read(self, raw: object) -> Mapping[str, TeamTerms]:
        if not isinstance(raw, Mapping):
            raise self.unfit(raw)
        faults: list[Fault] = []
        teams: dict[str, TeamTerms] = {}
        for name, table in raw.items():
            if not isinstance(table, Mapping):
                rule = f"expected a table, headed [{dotted(('teams', name))}]"
                faults.append(Fault(path=(name,), rule=rule, found=table))
            elif name in (NO_TEAM, UNATTRIBUTED):
                faults.append(Fault(path=(name,), rule="is no team; its usage has the prices without one"))
            else:
                reading = read_table(TeamTerms, table)
                faults += (fault.under(name) for fault in reading.faults)
                if not reading.faults:
                    teams[name] = build(TeamTerms, reading.values)
        if faults:
            raise UnfitError(faults)
        return teams

    def _schema(self) -> JsonSchema:
        return {"type": "object", "additionalProperties": {"type": "object"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSheet(Terms):
    """The whole file."""

    currency: Annotated[
        str, Setting("currency", Text('three capital letters, such as "EUR" (ISO 4217)', "[A-Z]{3}"), "Of all prices.")
    ]
    decimals: Annotated[
        int, Setting("decimals", Whole(0, MAX_DECIMALS), "That each amount of a bill is rounded to, half up.")
    ] = 2
    teams: Annotated[Mapping[str, TeamTerms], Setting("teams", Teams(), "What single teams pay.")] = field(
        default_factory=dict
    )

    def items(self) -> list[Item]:
        """The lines that a bill has: those with a price for anybody."""
        priced = set(self.prices()).union(*(terms.prices() for terms in self.teams.values()))
        return [item for item in ITEMS if item.key in priced]


def read_prices(path: str) -> PriceSheet:
    """A price sheet from a file of this machine. Raises `InputError` with all that is wrong, a line each."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise InputError(f"{path}: longer than {MAX_FILE_BYTES:,} bytes; this is no price sheet")
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
        document = tomllib.loads(text, parse_float=Decimal)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8: {error.reason}; save the file as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not TOML: {error}") from error
    reading = read_table(PriceSheet, document)
    faults = [*reading.faults]
    faults += (
        Fault(path=leaf.path, rule=f"required; expected {leaf.setting.kind.expected}")
        for leaf in reading.missing(PriceSheet)
    )
    if not faults:
        sheet = build(PriceSheet, reading.values)
        faults += _faults_of(sheet)
    if faults:
        raise InputError("\n".join(str(_problem(fault, path, text)) for fault in faults))
    return sheet


def _faults_of(sheet: PriceSheet) -> Iterator[Fault]:
    if not sheet.items():
        yield Fault(rule=f"prices nothing; expected at least one of {', '.join(item.key for item in ITEMS)}")
    given = (("minimum", sheet), *((dotted(("teams", name, "minimum")), terms) for name, terms in sheet.teams.items()))
    for key, terms in given:
        if terms.minimum is not None and terms.minimum != round(terms.minimum, sheet.decimals):
            rule = f"{key} = {terms.minimum}: more decimals than amounts have (decimals = {sheet.decimals})"
            yield Fault(rule=rule)


def _problem(fault: Fault, path: str, text: str) -> Problem:
    position = Positions(text).nearest(fault.path) if fault.path else None
    return Problem(
        rule=fault.rule,
        key=dotted(fault.path) or None,
        found=None if fault.found is NOTHING else spelled(fault.found),
        source=path,
        line=None if position is None else position.line,
    )
