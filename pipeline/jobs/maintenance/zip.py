"""The command ``headrace pipeline zip``."""

from __future__ import annotations

import zipfile
from pathlib import Path

import click

import headrace
from headrace import config, pipeline, quota_callbacks

PACKAGES = (pipeline, quota_callbacks, config)
SUFFIXES = (".py", ".properties", ".toml", ".json")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default="headrace-pipeline.zip")
def command(file: Path) -> None:
    """Write a zip of the pipeline and the packages of Headrace that it imports, for spark-submit --py-files FILE.

    \b
    headrace pipeline zip headrace-pipeline.zip
    spark-submit --py-files headrace-pipeline.zip PATH/headrace/pipeline/__main__.py rollup --lake s3a://bucket/headrace

    The executors need the packages numpy, pandas, pyarrow, mmh3, pluggy, pydantic and click.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(str(headrace.__file__), "headrace/__init__.py")
        for package in PACKAGES:
            root = Path(str(package.__file__)).parent
            for path in sorted(root.rglob("*")):
                if path.suffix in SUFFIXES and "__pycache__" not in path.parts:
                    archive.write(path, Path("headrace", root.name, path.relative_to(root)))
    click.echo(f"wrote {file}")
