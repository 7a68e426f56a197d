"""Files of budgets: valid ones, and the error messages for faults."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from headrace.pipeline.errors import InputError
from headrace.pipeline.finops.budget_files import read_budgets

if TYPE_CHECKING:
    from pathlib import Path


def file_of(tmp_path: Path, text: str) -> str:
    path = tmp_path / "budgets.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_budgets_and_their_defaults(tmp_path: Path) -> None:
    text = """
        currency = "EUR"
        [teams.payments]
        amount = 500.25
        [teams."(none)"]
        amount = 1
        alert_percent = [50, 120]
        cluster = "lkc-1"
    """
    budgets = read_budgets(file_of(tmp_path, text))
    payments, none = budgets.teams["payments"], budgets.teams["(none)"]
    assert (budgets.currency, payments.amount, none.amount) == ("EUR", Decimal("500.25"), 1)
    assert (payments.alert_percent, payments.cluster) == ((80, 100), None)
    assert (none.alert_percent, none.cluster) == ((50, 120), "lkc-1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "currency: required; expected three capital letters"),
        ('currency = "EUR"', "no budgets; expected tables, each headed [teams.NAME]"),
        ('currency = "EUR"\n[teams.a]', "teams.a.amount: required; expected a number above 0 and up to 999,999,"),
        ('currency = "EUR"\n[teams.a]\namount = 0', ":3: teams.a.amount = 0: expected a number above 0"),
        ('currency = "EUR"\n[teams.a]\namount = 1\nalert_percent = []', "teams.a.alert_percent = []: expected a list"),
        (
            'currency = "EUR"\n[teams.a]\namount = 1\nalert_percent = [80, 0]',
            ":4: teams.a.alert_percent[1] = 0: expected a whole number from 1 to 1000",
        ),
        ('currency = "EUR"\n[teams.a]\namount = 1\nalert_percent = [8, 8]', "duplicate element"),
        ('currency = "EUR"\n[teams.a]\namount = 1\nclusters = "x"', "unknown key; did you mean teams.a.cluster?"),
        ('currency = "EUR"\n[teams.a]\namount = 1\ncluster = ""', 'teams.a.cluster = "": expected the id of a cluster'),
    ],
)  # fmt: skip
def test_a_fault_names_key_value_and_rule(tmp_path: Path, text: str, expected: str) -> None:
    path = file_of(tmp_path, text)
    with pytest.raises(InputError) as error:
        read_budgets(path)
    assert str(error.value).startswith(path)
    assert expected in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"budgets\.toml: cannot be read: no such file or directory"):
        read_budgets(str(tmp_path / "budgets.toml"))
