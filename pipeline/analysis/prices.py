"""Price sheets: TOML files with the prices of a bill.

    currency = "EUR"
    per_gib_produced = 0.05
    per_thread_hour = 1.20
    minimum = 10

    [teams.payments]
    discount_percent = 15

They are read as the proxy's configuration is: all faults are reported at once, with line, key and value. Numbers are
parsed as decimals, so that a bill contains no binary fractions.
"""
# pydantic reads annotations at run time, so they are not postponed here.

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Annotated, Final

from pydantic import AfterValidator, ValidationError

from headrace.config.loading import parse_toml, read_text
from headrace.config.problems import ConfigError, Locator
from headrace.pipeline.errors import InputError
from headrace.quota_callbacks.options import Expect, Fault, Parsed, Table, faults_of, misfits, text, whole

NO_TEAM: Final = "(none)"
"""The team, in bills, of senders that the teams file does not contain."""
UNATTRIBUTED: Final = "(unattributed)"
"""The team, in bills, of usage without a sender."""

MAX_FILE_BYTES: Final = 2**20
PRICE_DECIMALS: Final = 6
MAX_PRICE: Final = Decimal(10) ** 8
MAX_DECIMALS: Final = 6
"""Maximum number of decimals of an amount; the table has no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A line of a bill."""

    key: str
    """Name of the price in the price sheet."""
    name: str
    column: str
    """Column of the rollups."""
    unit: str
    """Unit of that column."""
    per: str
    """Name of the unit that the price is for: ``divisor`` units of the column."""
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
            raise ValueError  # noqa: TRY004  the caller converts ValueError alone
        number = Decimal(raw)
        if not number.is_finite() or not 0 <= number <= highest or number != round(number, PRICE_DECIMALS):
            raise ValueError
        return number

    expected = f"a number from 0 to {highest:,} with at most {PRICE_DECIMALS} decimals"
    return Parsed(expected, parse, {"type": "number", "minimum": 0, "maximum": float(highest)})


Price = Annotated[Decimal | None, _number(MAX_PRICE - 1)]


class Terms(Table):
    """Prices for all teams or for one team. A price that is not given adds no line to the bill."""

    per_gib_produced: Price = None
    """Price of a GiB of Produce requests."""
    per_gib_fetched: Price = None
    """Price of a GiB of responses to Fetch and ShareFetch."""
    per_million_requests: Price = None
    """Price of a million requests of any API."""
    per_thread_hour: Price = None
    """Price of an hour of the broker's request handlers, as estimated."""
    per_thousand_mutations: Price = None
    """Price of a thousand partitions created, added or deleted."""
    per_producer_id: Price = None
    """Price of a new producer id."""
    minimum: Price = None
    """Minimum of a team's bill after its discount."""

    def prices(self) -> dict[str, Decimal]:
        """Return the prices that are given, by key."""
        given = {item.key: getattr(self, item.key) for item in ITEMS}
        return {key: price for key, price in given.items() if price is not None}


class TeamTerms(Terms):
    """The table ``[teams.NAME]``, whose prices replace those for all teams."""

    discount_percent: Annotated[Decimal | None, _number(Decimal(100))] = None
    """Discount on the sum of the lines."""


def _check_names(teams: Mapping[str, TeamTerms]) -> Mapping[str, TeamTerms]:
    reserved = [name for name in teams if name in (NO_TEAM, UNATTRIBUTED)]
    if reserved:
        rule = "is reserved for usage without a team, which has the prices for all teams"
        raise misfits(Fault(path=(name,), rule=rule) for name in reserved)
    return teams


class PriceSheet(Terms):
    """A whole price sheet."""

    currency: Annotated[str, text('three capital letters, such as "EUR" (ISO 4217)', "[A-Z]{3}")]
    """Currency of all prices."""
    decimals: Annotated[int, whole(0, MAX_DECIMALS)] = 2
    """Number of decimals that each amount of a bill is rounded to, half up."""
    teams: Annotated[
        Mapping[str, TeamTerms], AfterValidator(_check_names), Expect("tables, each headed [teams.NAME]")
    ] = {}
    """Prices of single teams."""

    def items(self) -> list[Item]:
        """Return the lines that bills can have: those with a price for any team."""
        priced = set(self.prices()).union(*(terms.prices() for terms in self.teams.values()))
        return [item for item in ITEMS if item.key in priced]


def read_prices(path: str) -> PriceSheet:
    """Read a price sheet from a local file. Raises `InputError` with all faults, one per line."""
    try:
        written = read_text(path, what="price sheet", longest_bytes=MAX_FILE_BYTES)
        document = parse_toml(written, path, parse_float=Decimal)
    except ConfigError as error:
        raise InputError(str(error)) from error
    except InvalidOperation as error:
        raise InputError(f"{path}: a number has an exponent that is too large") from error
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
        yield Fault(rule=f"no prices; expected at least one of {', '.join(item.key for item in ITEMS)}")
    given = ((("minimum",), sheet), *((("teams", name, "minimum"), terms) for name, terms in sheet.teams.items()))
    for path, terms in given:
        if terms.minimum is not None and terms.minimum != round(terms.minimum, sheet.decimals):
            rule = f"more decimals than amounts have (decimals = {sheet.decimals})"
            yield Fault(path=path, found=terms.minimum, rule=rule)
