"""The export in the columns of FOCUS 1.2: names, types, allowed values and null rules of the specification, and sums.

The rules below are written down from the pages of the specification's columns, version 1.2.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from click.testing import CliRunner
from pyspark.sql import Row

from headrace.pipeline.analysis.prices import ITEMS, NO_TEAM, UNATTRIBUTED
from headrace.pipeline.cli import pipeline
from headrace.pipeline.finops.focus import COLUMNS, SKUS, Issuer, focus_cells
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake
from headrace.pipeline.output import csv_lines
from tests.pipeline.finops.billing import lines
from tests.pipeline.records import record, usage

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

GIB = 2**30

# Types by column: C for a cost, D for another decimal, T for a time, S for a text, J for JSON; with ! if never null.
MANDATORY: Final = {
    "BilledCost": "C!", "BillingAccountId": "S!", "BillingAccountName": "S", "BillingCurrency": "S!",
    "BillingPeriodEnd": "T!", "BillingPeriodStart": "T!", "ChargeCategory": "S!", "ChargeClass": "S",
    "ChargeDescription": "S", "ChargePeriodEnd": "T!", "ChargePeriodStart": "T!", "ContractedCost": "C!",
    "EffectiveCost": "C!", "InvoiceIssuerName": "S!", "ListCost": "C!", "PricingQuantity": "D", "PricingUnit": "S",
    "ProviderName": "S!", "PublisherName": "S!", "ServiceCategory": "S!", "ServiceName": "S!",
}  # fmt: skip
OTHERS: Final = {
    "ChargeFrequency": "S!", "ConsumedQuantity": "D", "ConsumedUnit": "S", "ContractedUnitPrice": "D",
    "ListUnitPrice": "D", "PricingCategory": "S", "ResourceId": "S", "ResourceName": "S", "ResourceType": "S",
    "ServiceSubcategory": "S!", "SkuId": "S", "SkuMeter": "S", "SkuPriceDetails": "J", "SkuPriceId": "S",
    "SubAccountId": "S", "SubAccountName": "S", "Tags": "J",
}  # fmt: skip
ALLOWED: Final = {
    "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
    "ChargeClass": {"Correction", ""},
    "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
    "PricingCategory": {"Standard", "Dynamic", "Committed", "Other", ""},
    "ServiceCategory": {"Integration"},
    "ServiceSubcategory": {"API Management", "Messaging", "Workflow Orchestration", "Other (Integration)"},
}
PATTERNS: Final = {
    "C": r"-?\d+(\.\d+)?", "D": r"\d+(\.\d+)?", "T": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "S": r".*\S.*", "J": r"\{.+\}",
}  # fmt: skip
UNITS: Final = r"(\d+ )?(B|GiB|Seconds|Hours|Requests|Units|Partitions|Producer Ids)"
DEFAULT = Issuer(provider="Kafka team", account="acme", prices={})


def exported(*bills: list[dict[str, Any]], issuer: Issuer = DEFAULT) -> list[dict[str, str]]:
    names = schemas.CHARGEBACK.names
    rows = [Row(*names)(*(line.get(name) for name in names)) for each in bills for line in each]
    return list(csv.DictReader(io.StringIO("".join(csv_lines(focus_cells(rows, issuer))), newline=""), strict=True))


def priced(item: str, used: str, quantity: str, price: str, amount: str, **more: Any) -> dict[str, Any]:
    (of_item,) = [each for each in ITEMS if each.name == item]
    numbers = {"used": Decimal(used), "quantity": Decimal(quantity), "price": Decimal(price), "amount": Decimal(amount)}
    head = lines("payments", (item, amount))[0]
    return {**head, **numbers, "unit": of_item.unit, "per": of_item.per, **more}


BILL = [
    priced("produced", str(GIB // 2), "0.5", "0.05", "0.03"),
    priced("fetched", "0", "0", "0.02", "0.00"),
    priced("requests", "1500000", "1.5", "2", "3.00"),
    priced("thread time", "1800000.125", "0.5", "1.2", "0.60"),
    priced("mutations", "1500", "1.5", "0.5", "0.75"),
    priced("producer ids", "7", "7", "0.001", "0.01"),
    *lines("payments", ("shared: support", "12.34"), ("discount", "-0.44"), ("minimum", "0.05")),
]


def check(row: dict[str, str]) -> None:
    """Check one row against the rules of the specification."""
    for column, kind in {**MANDATORY, **OTHERS}.items():
        assert row[column] or "!" not in kind, f"{column} is null"
        assert not row[column] or re.fullmatch(PATTERNS[kind[0]], row[column], re.DOTALL), (column, row[column])
    for column, allowed in ALLOWED.items():
        assert row[column] in allowed, (column, row[column])
    category = row["ChargeCategory"]
    if category in ("Usage", "Purchase"):
        names = ("PricingQuantity", "PricingCategory", "ListUnitPrice", "ContractedUnitPrice", "SkuId", "SkuPriceId")
        assert all(row[name] for name in names), category
    assert bool(row["ConsumedQuantity"]) == bool(row["ConsumedUnit"]) == (category == "Usage")
    assert bool(row["PricingQuantity"]) == bool(row["PricingUnit"])
    assert bool(row["SkuId"]) == bool(row["SkuMeter"]) == bool(row["SkuPriceId"])
    assert not (category == "Purchase" and row["ChargeFrequency"] == "Usage-Based")
    for price, cost in (("ListUnitPrice", "ListCost"), ("ContractedUnitPrice", "ContractedCost")):
        if row[price]:
            assert Decimal(row[price]) * Decimal(row["PricingQuantity"]) == Decimal(row[cost])
        else:
            assert row[cost] == row["BilledCost"], "a charge without prices costs what is billed"
    if category in ("Credit", "Adjustment"):
        assert row["EffectiveCost"] == row["BilledCost"]
    assert re.fullmatch(r"[A-Z]{3}", row["BillingCurrency"])
    assert all(re.fullmatch(UNITS, row[name]) for name in ("ConsumedUnit", "PricingUnit") if row[name])
    assert row["BillingPeriodStart"] <= row["ChargePeriodStart"] < row["ChargePeriodEnd"] <= row["BillingPeriodEnd"]
    assert bool(row["SubAccountId"]) == bool(row["SubAccountName"])
    assert bool(row["ResourceId"]) == bool(row["ResourceType"])
    tags = json.loads(row["Tags"] or "{}")
    assert all(isinstance(value, str) for value in tags.values())


def test_the_columns_are_those_of_the_specification_in_order_of_their_names() -> None:
    assert set(COLUMNS) == MANDATORY.keys() | OTHERS.keys()
    assert list(COLUMNS) == sorted(COLUMNS)


def test_every_item_of_a_bill_has_a_sku() -> None:
    assert list(SKUS) == [item.name for item in ITEMS]


def test_rows_keep_the_rules_and_their_sum_is_the_total() -> None:
    rows = exported(BILL)
    for row in rows:
        check(row)
    assert sum(Decimal(row["BilledCost"]) for row in rows) == sum(line["amount"] for line in BILL[:-1])
    assert [(row["ChargeCategory"], row["ChargeDescription"], row["BilledCost"]) for row in rows] == [
        ("Usage", "Bytes produced", "0.03"),
        ("Usage", "Requests", "3"),
        ("Usage", "Thread time", "0.6"),
        ("Usage", "Partition mutations", "0.75"),
        ("Usage", "Producer ids", "0.01"),
        ("Purchase", "Part of the shared cost support", "12.34"),
        ("Credit", "Discount on the bill", "-0.44"),
        ("Adjustment", "Minimum of the bill", "0.05"),
    ]
    quantities = [
        tuple(row[f"{kind}{n}"] for kind in ("Consumed", "Pricing") for n in ("Quantity", "Unit")) for row in rows
    ]
    assert quantities[:6] == [
        (str(GIB // 2), "B", "0.5", "GiB"),
        ("1500000", "Requests", "1.5", "1000000 Requests"),
        ("1800.000125", "Seconds", "0.5", "Hours"),
        ("1500", "Partitions", "1.5", "1000 Partitions"),
        ("7", "Producer Ids", "7", "Producer Ids"),
        ("", "", "1", "Units"),
    ]


def test_costs_are_exact_products_and_list_prices_those_of_the_sheet() -> None:
    (row,) = exported([priced("produced", str(2**62 + 2**30), "123456789012345.000001", "98765432.123457", "1.00")])
    product = str(123456789012345000001 * 98765432123457)
    assert row["ListCost"] == row["ContractedCost"] == f"{product[:-12]}.{product[-12:]}"
    sheet = Issuer(
        provider="x", account="x", prices={"per_gib_produced": Decimal("0.1"), "per_producer_id": Decimal(1)}
    )
    (row,) = exported([BILL[0]], issuer=sheet)
    check(row)
    assert (row["ListUnitPrice"], row["ListCost"]) == ("0.1", "0.05")
    assert (row["ContractedUnitPrice"], row["ContractedCost"], row["BilledCost"]) == ("0.05", "0.025", "0.03")


def test_periods_accounts_and_tags() -> None:
    (month, day, none, unrecorded) = exported(
        [BILL[0] | {"team": 'a "team"', "date": dt.date(2026, 12, 1)}],
        [BILL[0] | {"period": "day", "date": dt.date(2026, 2, 28), "cluster": None}],
        [BILL[0] | {"team": NO_TEAM}],
        [BILL[0] | {"team": UNATTRIBUTED, "cluster": None}],
    )
    for row in (month, day, none, unrecorded):
        check(row)
    periods = ("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd")
    assert [month[name][:10] for name in periods] == ["2026-12-01", "2027-01-01"] * 2
    assert [day[name][:10] for name in periods] == ["2026-02-01", "2026-03-01", "2026-02-28", "2026-03-01"]
    assert month["ChargePeriodStart"] == "2026-12-01T00:00:00Z"
    assert (month["SubAccountId"], month["ResourceId"], month["ResourceType"]) == ('a "team"', "c1", "Kafka Cluster")
    assert json.loads(month["Tags"]) == {"headrace/cluster": "c1", "team": 'a "team"'}
    assert (day["ResourceId"], json.loads(day["Tags"])) == ("", {"team": "payments"})
    assert (none["SubAccountId"], json.loads(none["Tags"])) == ("", {"headrace/cluster": "c1"})
    assert none["ChargeDescription"] == "Bytes produced, senders without a team"
    assert (unrecorded["Tags"], unrecorded["ChargeDescription"]) == ("", "Bytes produced, unrecorded senders")
    issuers = ("ProviderName", "PublisherName", "InvoiceIssuerName", "BillingAccountId", "BillingAccountName")
    assert [month[name] for name in issuers] == ["Kafka team"] * 3 + ["acme"] * 2


def test_the_command_exports_bills_whose_sum_is_that_of_their_totals(
    lake: Lake, spark: SparkSession, tmp_path: Path
) -> None:
    records = [record(request_bytes=GIB), record(user="bob"), record(cluster="c2"), record(user=None, client_id=None)]
    lake.append("usage", usage(spark, records).coalesce(1), "date", "hour")
    (tmp_path / "teams.csv").write_text("user,client_id,team\nalice,,payments\n", encoding="utf-8")
    (tmp_path / "prices.toml").write_text(
        'currency = "EUR"\nper_gib_produced = 7\nper_million_requests = 5\nminimum = 3\n'
        '[shared.support]\namount = 100\nsplit = "bytes"\n[teams.payments]\ndiscount_percent = 10\n',
        encoding="utf-8",
    )
    options = ["--teams", str(tmp_path / "teams.csv"), "--prices", str(tmp_path / "prices.toml")]
    runner, output = CliRunner(), tmp_path / "focus.csv"
    assert runner.invoke(pipeline, ["rollup", "--lake", lake.root, *options]).exit_code == 0

    def export(*arguments: str) -> tuple[dict[str, Any], list[dict[str, str]]]:
        result = runner.invoke(pipeline, ["focus", "--lake", lake.root, "--output", str(output), "--json", *arguments])
        assert result.exit_code == 0, result.output
        with output.open(encoding="utf-8", newline="") as file:
            return json.loads(result.stdout), list(csv.DictReader(file, strict=True))

    found, rows = export("--from", "2026-09-21")
    for row in rows:
        check(row)
    totals = Lake(spark, lake.root).read("chargeback", schemas.CHARGEBACK).where("item = 'total'")
    (total,) = totals.selectExpr("sum(amount) as amount").collect()
    assert sum(Decimal(row["BilledCost"]) for row in rows) == total.amount
    assert {row["ChargeCategory"] for row in rows} == {"Usage", "Purchase", "Credit", "Adjustment"}
    assert (found["bills"], Decimal(found["amounts"]["EUR"])) == (4, total.amount)
    assert export("--to", "2026-08-31") == ({"job": "focus", "status": "done", "output": str(output), "bills": 0,
                                             "amounts": {}}, [])  # fmt: skip
    assert export("--per", "day")[1] == []
