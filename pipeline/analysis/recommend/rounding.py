"""Rounding to two significant digits, ignoring differences that are due to floating-point arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column


def rounded_up(value: Column) -> Column:
    """Round up to two significant digits."""
    step = _step(value)
    return sf.round(sf.ceil(value / step - 1e-9) * step, 9)


def rounded_down(value: Column) -> Column:
    """Round down to two significant digits."""
    step = _step(value)
    return sf.round(sf.floor(value / step + 1e-9) * step, 9)


def _step(value: Column) -> Column:
    return sf.pow(sf.lit(10.0), sf.floor(sf.log10(value)) - 1)
