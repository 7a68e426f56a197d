"""``headrace pipeline instances``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pipeline import schemas
from pipeline.cli import LAKE, spark_options
from pipeline.instances import instances
from pipeline.lake import Lake
from pipeline.session import start_session

if TYPE_CHECKING:
    from pipeline.session import SparkOptions

SHOWN = 1000


@click.command()
@LAKE
@spark_options
def command(*, spark: SparkOptions, lake: str) -> None:
    """Say of each instance (a run of one process of the proxy) what it has recorded, and what is missing.

    MISSING are sequence numbers that nobody has seen, LOST records that the instance itself could not write. One
    without ENDED was killed or still runs: its last second may be missing.
    """
    tables = Lake(start_session("instances", spark), lake)
    found = instances(tables.read("usage", schemas.USAGE), tables.read_if_there("marks", schemas.MARKS))
    click.echo("instance  first_second  last_second  seen  missing  gaps  lost  ended")
    for row in found.orderBy("first_second", "instance").limit(SHOWN).collect():
        click.echo(
            f"{row.instance}  {row.first_second}  {row.last_second}  {row.seen}  {row.missing}  {row.gaps}  {row.lost}"
            f"  {'yes' if row.ended else 'no'}"
        )
