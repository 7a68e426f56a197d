"""Bills in the columns of FOCUS 1.2, the FinOps Open Cost and Usage Specification (https://focus.finops.org).

A line of a bill is a row, except for its total and for prices of what was not used. `COLUMNS` names the column's rules
in the specification; docs/pipeline-finops.md says which values are the same in all rows, and why.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline.analysis.prices import ITEMS, NO_TEAM, SHARED, UNATTRIBUTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Row

VERSION: Final = "1.2"

COLUMNS: Final = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart",
    "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "ContractedUnitPrice", "EffectiveCost", "InvoiceIssuerName",
    "ListCost", "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName",
    "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName", "ServiceSubcategory", "SkuId",
    "SkuMeter", "SkuPriceDetails", "SkuPriceId", "SubAccountId", "SubAccountName", "Tags",
)  # fmt: skip
"""All columns that are mandatory, those that are recommended or conditional and have a value here; by name."""

SERVICE: Final = {"ServiceCategory": "Integration", "ServiceSubcategory": "Messaging", "ServiceName": "Apache Kafka"}
RESOURCE_TYPE: Final = "Kafka Cluster"
CLUSTER_TAG: Final = "headrace/cluster"
"""The tag that the provider sets: it has a prefix, other than that of the teams file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sku:
    """A quantity that has a price, with its unit in the form of the attribute UnitFormat of the specification."""

    sku: str
    meter: str
    consumed: str
    consumed_divisor: int = 1
    """Number of units of the bill in one of ``consumed``."""
    priced: str


SKUS: Final = {
    "produced": Sku(sku="kafka-produced", meter="Bytes produced", consumed="B", priced="GiB"),
    "fetched": Sku(sku="kafka-fetched", meter="Bytes fetched", consumed="B", priced="GiB"),
    "requests": Sku(sku="kafka-requests", meter="Requests", consumed="Requests", priced="1000000 Requests"),
    "thread time": Sku(
        sku="kafka-thread-time", meter="Thread time", consumed="Seconds", consumed_divisor=1000, priced="Hours"
    ),
    "mutations": Sku(
        sku="kafka-mutations", meter="Partition mutations", consumed="Partitions", priced="1000 Partitions"
    ),
    "producer ids": Sku(sku="kafka-producer-ids", meter="Producer ids", consumed="Producer Ids", priced="Producer Ids"),
}
"""The SKU of each item of a bill."""

_EXACT: Final = Context(prec=60)
"""Twice the digits of a quantity or a price in the tables."""
_KEYS: Final = {item.name: item.key for item in ITEMS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """The issuer of the bills, and the list prices."""

    provider: str
    account: str
    prices: Mapping[str, Decimal]
    """List prices by key of the price sheet. For a key without a list price, the price of the bill is used."""


def focus_cells(lines: Iterable[Row], issuer: Issuer) -> Iterator[Sequence[str]]:
    """Yield the rows of the CSV file, for lines of bills (`headrace.pipeline.lake.schemas.CHARGEBACK`)."""
    yield COLUMNS
    for line in lines:
        row = focus_row(line, issuer)
        if row is not None:
            yield [_text(row.get(name)) for name in COLUMNS]


def focus_row(line: Row, issuer: Issuer) -> dict[str, Any] | None:
    """Return the row of a line of a bill by column, without nulls; ``None`` for a total, and for no usage."""
    item = line["item"]
    if item == "total" or (item in SKUS and not line.used and not line.amount):
        return None
    of_item = _usage(line, issuer) if item in SKUS else _other(line)
    is_team = line.team not in (NO_TEAM, UNATTRIBUTED)
    month = line.date.replace(day=1)
    row: dict[str, Any] = {
        "BilledCost": line.amount,
        "EffectiveCost": line.amount,
        "BillingAccountId": issuer.account,
        "BillingAccountName": issuer.account,
        "BillingCurrency": line.currency,
        "BillingPeriodStart": month,
        "BillingPeriodEnd": _next_month(month),
        "ChargePeriodStart": line.date,
        "ChargePeriodEnd": _next_month(month) if line.period == "month" else line.date + timedelta(days=1),
        "ProviderName": issuer.provider,
        "PublisherName": issuer.provider,
        "InvoiceIssuerName": issuer.provider,
        **SERVICE,
        **of_item,
    }
    row["ChargeDescription"] += {NO_TEAM: ", senders without a team", UNATTRIBUTED: ", unrecorded senders"}.get(
        line.team, ""
    )
    if line.cluster is not None:
        row |= {"ResourceId": line.cluster, "ResourceType": RESOURCE_TYPE}
    if is_team:
        row |= {"SubAccountId": line.team, "SubAccountName": line.team}
    tags = {CLUSTER_TAG: line.cluster, "team": line.team if is_team else None}
    if given := {tag: value for tag, value in tags.items() if value is not None}:
        row["Tags"] = json.dumps(given, ensure_ascii=False)
    return row


def _usage(line: Row, issuer: Issuer) -> dict[str, Any]:
    sku = SKUS[line["item"]]
    listed = issuer.prices.get(_KEYS[line["item"]], line.price)
    return {
        "ChargeCategory": "Usage",
        "ChargeDescription": sku.meter,
        "ChargeFrequency": "Usage-Based",
        "ConsumedQuantity": _EXACT.divide(line.used, Decimal(sku.consumed_divisor)),
        "ConsumedUnit": sku.consumed,
        **_priced(line.quantity, sku.priced, listed=listed, contracted=line.price),
        "SkuId": sku.sku,
        "SkuMeter": sku.meter,
        "SkuPriceId": sku.sku,
    }


def _priced(quantity: Decimal, unit: str, *, listed: Decimal, contracted: Decimal) -> dict[str, Any]:
    """Return prices, and costs that are exactly their products with the quantity."""
    return {
        "PricingCategory": "Standard",
        "PricingQuantity": quantity,
        "PricingUnit": unit,
        "ListUnitPrice": listed,
        "ListCost": _EXACT.multiply(quantity, listed),
        "ContractedUnitPrice": contracted,
        "ContractedCost": _EXACT.multiply(quantity, contracted),
    }


def _other(line: Row) -> dict[str, Any]:
    """Return the columns of a shared cost, a discount or a minimum."""
    item, amount = line["item"], line.amount
    if item.startswith(SHARED):
        name = item.removeprefix(SHARED)
        return {
            "ChargeCategory": "Purchase",
            "ChargeDescription": f"Part of the shared cost {name}",
            "ChargeFrequency": "Recurring",
            **_priced(Decimal(1), "Units", listed=amount, contracted=amount),
            "SkuId": f"shared-{name}",
            "SkuMeter": f"Shared cost {name}",
            "SkuPriceId": f"shared-{name}",
        }
    is_discount = item == "discount"
    return {
        "ChargeCategory": "Credit" if is_discount else "Adjustment",
        "ChargeDescription": "Discount on the bill" if is_discount else "Minimum of the bill",
        "ChargeFrequency": "Usage-Based" if is_discount else "Recurring",
        "ListCost": amount,
        "ContractedCost": amount,
    }


def _next_month(first: date) -> date:
    return (first + timedelta(days=31)).replace(day=1)


def _text(value: object) -> str:
    """Return a value in the formats of the specification; null is an empty cell."""
    if value is None:
        return ""
    if isinstance(value, Decimal):
        digits = f"{value:f}"
        return (digits.rstrip("0").rstrip(".") if "." in digits else digits) if value else "0"
    if isinstance(value, date):
        return datetime.combine(value, time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(value)
