"""Errors of cost files name the option, whatever the file contains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.quota_callbacks.builtin.cost_files import load_costs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "text",
    [
        "[costs",
        "[costs]\n0 = { base_ms = " + "9" * 400 + " }",
        "[costs]\n0 = { base_ms = " + "9" * 5000 + " }",
        "costs = " + "[" * 5000,
        "[costs]\n" + "9" * 5000 + " = { base_ms = 1 }",
    ],
    ids=["not TOML", "a number above a double's", "a number of 5,000 digits", "nested too deeply", "a long API key"],
)
def test_an_invalid_file_is_an_error_that_names_the_option(tmp_path: Path, text: str) -> None:
    path = tmp_path / "costs.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^costs_file = '.*costs\.toml'"):
        load_costs(str(path))
