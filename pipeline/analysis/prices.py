"""Price sheets: TOML files with the prices of a bill, and with costs that teams share.

    currency = "EUR"
    per_gib_produced = 0.05
    per_thread_hour = 1.20
    minimum = 10

    [shared.support]
    amount = 2000
    split = "bytes"

    [teams.payments]
    discount_percent = 15

`decimal_files` reads them.
"""
# pydantic reads annotations at run time, so they are not postponed here.

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator

from headrace.pipeline.analysis.decimal_files import (
    CURRENCY,
    MAX_AMOUNT,
    MAX_DECIMALS,
    decimal_number,
    read_decimal_file,
)
from headrace.quota_callbacks.options import Expect, Fault, Table, choice, list_of, text, validation_error, whole

NO_TEAM: Final = "(none)"
"""The team, in bills, of senders that the teams file does not contain."""
UNATTRIBUTED: Final = "(unattributed)"
"""The team, in bills, of usage without a sender."""
UNKNOWN_CLUSTER: Final = "(unknown)"
"""The cluster, in bills, of usage whose cluster is unknown. A bill without a cluster is for all clusters."""

SHARED: Final = "shared: "
"""The item of a shared cost in a bill begins with this, followed by its name."""

MAX_PRICE: Final = Decimal(10) ** 8


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


Price = Annotated[Decimal | None, decimal_number(MAX_PRICE - 1)]


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

    discount_percent: Annotated[Decimal | None, decimal_number(Decimal(100))] = None
    """Discount on the sum of the lines."""


class Split(StrEnum):
    """The measure by which a shared cost is split among teams."""

    BYTES = "bytes"
    """Bytes of requests and responses."""
    REQUESTS = "requests"
    THREAD_TIME = "thread_time"
    EQUAL = "equal"
    """Equal parts for all teams with usage."""


MEASURES: Final = {
    Split.BYTES: ("request_bytes", "response_bytes"),
    Split.REQUESTS: ("requests",),
    Split.THREAD_TIME: ("thread_ms",),
}
"""The columns of the rollups whose sum a shared cost is split by."""


class SharedCost(Table):
    """The table ``[shared.NAME]``: an amount that all teams pay together."""

    amount: Annotated[Decimal, decimal_number(MAX_AMOUNT - 1)]
    """Amount for a month."""
    split: Annotated[Split, choice(Split)]
    clusters: Annotated[
        tuple[Annotated[str, text("the id of a cluster")], ...],
        list_of('a list of cluster ids, such as ["lkc-1"]', shortest=1),
    ] = ()
    """The clusters whose usage is counted; empty: all."""


def _check_names(teams: Mapping[str, TeamTerms]) -> Mapping[str, TeamTerms]:
    reserved = [name for name in teams if name in (NO_TEAM, UNATTRIBUTED)]
    if reserved:
        rule = "is reserved for usage without a team, which has the prices for all teams"
        raise validation_error(Fault(path=(name,), rule=rule) for name in reserved)
    return teams


class PriceSheet(Terms):
    """A whole price sheet."""

    currency: Annotated[str, CURRENCY]
    """Currency of all prices."""
    decimals: Annotated[int, whole(0, MAX_DECIMALS)] = 2
    """Number of decimals that each amount of a bill is rounded to, half up."""
    shared: Annotated[Mapping[str, SharedCost], Expect("tables, each headed [shared.NAME]")] = {}
    """Costs that teams share, by name, in the order of the file."""
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
    return read_decimal_file(path, "price sheet", PriceSheet, _faults_between_keys)


def _faults_between_keys(sheet: PriceSheet) -> Iterator[Fault]:
    if not sheet.items() and not sheet.shared:
        keys = ", ".join(item.key for item in ITEMS)
        yield Fault(rule=f"no prices; expected at least one of {keys}, or a table [shared.NAME]")
    given: list[tuple[tuple[str, ...], Decimal | None]] = [(("minimum",), sheet.minimum)]
    given += [(("teams", name, "minimum"), terms.minimum) for name, terms in sheet.teams.items()]
    given += [(("shared", name, "amount"), cost.amount) for name, cost in sheet.shared.items()]
    for path, amount in given:
        if amount is not None and amount != round(amount, sheet.decimals):
            rule = f"more decimals than amounts have (decimals = {sheet.decimals})"
            yield Fault(path=path, found=amount, rule=rule)
