"""Price sheets: valid ones, and the error messages for faults."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from headrace.pipeline.analysis.decimal_files import MAX_FILE_BYTES
from headrace.pipeline.analysis.prices import ITEMS, MEASURES, Split, read_prices
from headrace.pipeline.errors import InputError
from headrace.pipeline.lake.schemas import TOTALS

if TYPE_CHECKING:
    from pathlib import Path


def sheet_of(tmp_path: Path, text: str) -> str:
    path = tmp_path / "prices.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_prices_are_the_decimals_that_stand_there(tmp_path: Path) -> None:
    sheet = read_prices(
        sheet_of(
            tmp_path,
            """
            currency = "EUR"
            per_gib_produced = 0.1
            per_producer_id = 3
            minimum = 10.50
            [teams."a team"]
            discount_percent = 12.5
            per_gib_produced = 0.07
            """,
        )
    )
    assert sheet.prices() == {"per_gib_produced": Decimal("0.1"), "per_producer_id": Decimal(3)}
    assert (sheet.currency, sheet.decimals, sheet.minimum) == ("EUR", 2, Decimal("10.5"))
    assert sheet.teams["a team"].discount_percent == Decimal("12.5")
    assert sheet.teams["a team"].prices() == {"per_gib_produced": Decimal("0.07")}


def test_a_bill_has_the_lines_that_anybody_has_a_price_for(tmp_path: Path) -> None:
    text = 'currency = "EUR"\nper_producer_id = 0\n[teams.a]\nper_gib_fetched = 1\n[teams.b]\nminimum = 1\n'
    assert [item.name for item in read_prices(sheet_of(tmp_path, text)).items()] == ["fetched", "producer ids"]


def test_every_item_is_a_column_of_the_rollups() -> None:
    columns = {item.column for item in ITEMS}.union(*MEASURES.values())
    assert columns <= set(TOTALS.names)


def test_shared_costs(tmp_path: Path) -> None:
    sheet = read_prices(
        sheet_of(
            tmp_path,
            """
            currency = "EUR"
            [shared."on call"]
            amount = 1_000.5
            split = "thread_time"
            [shared.licences]
            amount = 0
            split = "equal"
            clusters = ["lkc-1", "lkc-2"]
            """,
        )
    )
    assert sheet.items() == []
    assert list(sheet.shared) == ["on call", "licences"]
    assert (sheet.shared["on call"].amount, sheet.shared["on call"].split) == (Decimal("1000.5"), Split.THREAD_TIME)
    assert (sheet.shared["on call"].clusters, sheet.shared["licences"].clusters) == ((), ("lkc-1", "lkc-2"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("per_producer_id = 1", "currency: required; expected three capital letters"),
        ('currency = "euro"\nper_producer_id = 1', ':1: currency = "euro": expected three capital letters'),
        ('currency = "EUR"', "no prices; expected at least one of per_gib_produced"),
        ('currency = "EUR"\nper_producer_id = -1', ":2: per_producer_id = -1: expected a number from 0"),
        (
            'currency = "EUR"\nper_producer_id = 100000000',
            "per_producer_id = 100000000: expected a number from 0 to 99,999",
        ),
        ('currency = "EUR"\nper_producer_id = nan', "per_producer_id = NaN: expected a number"),
        ('currency = "EUR"\nper_producer_id = true', "per_producer_id = true: expected a number"),
        ('currency = "EUR"\nper_producer_id = "1"', 'per_producer_id = "1": expected a number'),
        ('currency = "EUR"\nper_producer_id = 0.0000001', "with at most 6 decimals"),
        ('currency = "EUR"\nper_producer_ids = 1', "per_producer_ids: unknown key; did you mean per_producer_id?"),
        ('currency = "EUR"\nper_producer_id = 1\ndecimals = 7', "decimals = 7: expected a whole number from 0 to 6"),
        ('currency = "EUR"\nper_producer_id = 1\nminimum = 0.005', "minimum = 0.005: more decimals than amounts have"),
        ('currency = "EUR"\nper_producer_id = 1\n[teams.a]\nminimum = 0.005', "teams.a.minimum = 0.005: more decimals"),
        (
            'currency = "EUR"\nper_producer_id = 1\n[teams.a]\ndiscount_percent = 101',
            ":4: teams.a.discount_percent = 101",
        ),
        ('currency = "EUR"\nper_producer_id = 1\n[teams.a]\ncurrency = "USD"', "teams.a.currency: unknown key"),
        (
            'currency = "EUR"\nper_producer_id = 1\n[teams]\na = 5',
            "teams.a = 5: expected a table: [teams.a] and keys below it",
        ),
        ('currency = "EUR"\nper_producer_id = 1\n[teams."(none)"]\nminimum = 5', 'teams."(none)": is reserved'),
        ('currency = "EUR"\nper_producer_id = 1\nteams = 5', "teams = 5: expected tables, each headed [teams.NAME]"),
        ('currency = "EUR"\nshared = 5', "shared = 5: expected tables, each headed [shared.NAME]"),
        ('currency = "EUR"\n[shared.x]\namount = 1', 'shared.x.split: required; expected "bytes", "requests",'),
        (
            'currency = "EUR"\n[shared.x]\namount = 1\nsplit = "byte"',
            ':4: shared.x.split = "byte": expected "bytes", "requests", "thread_time" or "equal"; did you mean "bytes',
        ),
        (
            'currency = "EUR"\n[shared.x]\namount = 1_000_000_000_000\nsplit = "equal"',
            "shared.x.amount = 1000000000000: expected a number from 0 to 999,999,999,999 with at most 6 decimals",
        ),
        (
            'currency = "EUR"\n[shared.x]\namount = 0.005\nsplit = "equal"',
            "shared.x.amount = 0.005: more decimals than amounts have (decimals = 2)",
        ),
        (
            'currency = "EUR"\n[shared.x]\namount = 1\nsplit = "equal"\nclusters = []',
            "shared.x.clusters = []: expected a list of cluster ids",
        ),
        ("currency =", "prices.toml:1:11: not valid TOML: invalid value, at the end of the file"),
        ("#" * (MAX_FILE_BYTES + 1), "longer than 1048576 bytes, the maximum for a price sheet"),
    ],
)
def test_a_fault_names_key_value_and_rule(tmp_path: Path, text: str, expected: str) -> None:
    path = sheet_of(tmp_path, text)
    with pytest.raises(InputError) as error:
        read_prices(path)
    assert str(error.value).startswith(path)
    assert expected in str(error.value)


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    path = sheet_of(tmp_path, 'currency = "x"\nper_producer_id = -1\n')
    with pytest.raises(InputError) as error:
        read_prices(path)
    assert len(str(error.value).splitlines()) == 2


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"prices\.toml: cannot be read: no such file or directory"):
        read_prices(str(tmp_path / "prices.toml"))


def test_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_bytes(b'currency = "\xff"')
    with pytest.raises(InputError, match="not UTF-8"):
        read_prices(str(tmp_path / "prices.toml"))
