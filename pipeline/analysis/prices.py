"""Price sheets: what a bill charges for, as TOML.

    currency = "EUR"
    per_gib_produced = 0.05
    per_thread_hour = 1.20
    minimum = 10

    [teams.payments]
    discount_percent = 15

Read as the proxy's own configuration is: all that is wrong is reported at once, with the line, the key and the value.
Numbers are decimals from the file on; nothing of a bill is ever a binary fraction.
"""
# pydantic reads annotations at run time, so they are not postponed here.

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Final

from pydantic import AfterValidator, ValidationError

from headrace.config.loading import parse_toml, read_text
from headrace.config.problems import ConfigError, Locator
from headrace.pipeline.errors import InputError
from headrace.quota_callbacks.options import Expect, Fault, Parsed, Table, faults_of, misfits, text, whole

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


def _number(highest: Decimal) -> Parsed:
    """Return the annotation for a decimal from 0 to a bound, with few enough decimals to be kept exactly."""

    def parse(raw: object) -> Decimal:
        if isinstance(raw, bool) or not isinstance(raw, int | Decimal):
            raise ValueError  # noqa: TRY004  a misfit like any other
        number = Decimal(raw)
        if not number.is_finite() or not 0 <= number <= highest or number != round(number, PRICE_DECIMALS):
            raise ValueError
        return number

    expected = f"a number from 0 to {highest:,} with at most {PRICE_DECIMALS} decimals"
    return Parsed(expected, parse, {"type": "number", "minimum": 0, "maximum": float(highest)})


Price = Annotated[Decimal | None, _number(MAX_PRICE - 1)]


class Terms(Table):
    """What everybody or one team pays; a price that is not given is not a line of the bill."""

    per_gib_produced: Price = None
    """Requests to produce."""
    per_gib_fetched: Price = None
    """Replies to fetches."""
    per_million_requests: Price = None
    """Of any API."""
    per_thread_hour: Price = None
    """Of the broker's request handlers, as estimated."""
    per_thousand_mutations: Price = None
    """Partitions created, added or deleted."""
    per_producer_id: Price = None
    """New producer ids."""
    minimum: Price = None
    """Of a team's bill, discount included."""

    def prices(self) -> dict[str, Decimal]:
        """Return those that are given, by key."""
        given = {item.key: getattr(self, item.key) for item in ITEMS}
        return {key: price for key, price in given.items() if price is not None}


class TeamTerms(Terms):
    """What stands below ``[teams.NAME]``: it comes in place of what everybody pays."""

    discount_percent: Annotated[Decimal | None, _number(Decimal(100))] = None
    """Off the sum of the lines."""


def _check_names(teams: Mapping[str, TeamTerms]) -> Mapping[str, TeamTerms]:
    reserved = [name for name in teams if name in (NO_TEAM, UNATTRIBUTED)]
    if reserved:
        rule = "is no team; its usage has the prices without one"
        raise misfits(Fault(path=(name,), rule=rule) for name in reserved)
    return teams


class PriceSheet(Terms):
    """The whole file."""

    currency: Annotated[str, text('three capital letters, such as "EUR" (ISO 4217)', "[A-Z]{3}")]
    """Of all prices."""
    decimals: Annotated[int, whole(0, MAX_DECIMALS)] = 2
    """That each amount of a bill is rounded to, half up."""
    teams: Annotated[
        Mapping[str, TeamTerms], AfterValidator(_check_names), Expect("tables, each headed [teams.NAME]")
    ] = {}
    """What single teams pay."""

    def items(self) -> list[Item]:
        """Return the lines that a bill has: those with a price for anybody."""
        priced = set(self.prices()).union(*(terms.prices() for terms in self.teams.values()))
        return [item for item in ITEMS if item.key in priced]


def read_prices(path: str) -> PriceSheet:
    """Read a price sheet from a file of this machine. Raises `InputError` with all that is wrong, a line each."""
    try:
        written = read_text(path, what="price sheet", longest_bytes=MAX_FILE_BYTES)
        document = parse_toml(written, path, parse_float=Decimal)
    except ConfigError as error:
        raise InputError(str(error)) from error
    try:
        sheet = PriceSheet.model_validate(document)
        faults = list(_faults_between_keys(sheet))
    except ValidationError as error:
        faults = faults_of(error, PriceSheet)
    if faults:
        locator = Locator(written, path)
        raise InputError("\n".join(str(locator.locate(fault)) for fault in faults))
    return sheet


def _faults_between_keys(sheet: PriceSheet) -> Iterator[Fault]:
    if not sheet.items():
        yield Fault(rule=f"prices nothing; expected at least one of {', '.join(item.key for item in ITEMS)}")
    given = ((("minimum",), sheet), *((("teams", name, "minimum"), terms) for name, terms in sheet.teams.items()))
    for path, terms in given:
        if terms.minimum is not None and terms.minimum != round(terms.minimum, sheet.decimals):
            rule = f"more decimals than amounts have (decimals = {sheet.decimals})"
            yield Fault(path=path, found=terms.minimum, rule=rule)
