"""The jars of Delta Lake, of Spark's Kafka connector and of Hadoop's client of S3, downloaded once into a cache.

Spark's own ``spark.jars.packages`` requests files that not all Maven repositories have. Here jgo resolves the run-time
dependencies, which are copied into one folder and passed as ``spark.jars``. What ``--packages`` names is not resolved
here. Called by `headrace.pipeline.lake.session`.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

from headrace.pipeline.errors import NoJarsError

KAFKA_CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
"""Maven coordinate; its version is that of the pyspark that the extra ``pipeline`` pins."""
DELTA_LAKE: Final = "io.delta:delta-spark_2.13:4.0.0"
"""Maven coordinate; its version is for the version of Spark that the extra ``pipeline`` pins."""

S3_CLIENT: Final = "org.apache.hadoop:hadoop-aws:3.4.1"
"""Maven coordinate; the version is that of Hadoop in pyspark. The jars, with Amazon's own library, take 560 MB."""

CACHE_VARIABLE: Final = "HEADRACE_PIPELINE_CACHE"
REPOSITORY_VARIABLE: Final = "HEADRACE_PIPELINE_REPOSITORY"


def cache_folder() -> Path:
    """Return $HEADRACE_PIPELINE_CACHE, or else ``headrace-pipeline`` in the user's cache folder."""
    if own := os.environ.get(CACHE_VARIABLE):
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg).expanduser().absolute() if xdg else Path.home() / ".cache") / "headrace-pipeline"


def jars_of(coordinate: str) -> tuple[Path, ...]:
    """Return the jars of one of these coordinates and their dependencies, without those that Spark contains.

    The first call downloads them, which takes some 20 s. Raises `NoJarsError`.
    """
    folder = cache_folder() / re.sub(r"[^\w.-]+", "_", coordinate)
    if not folder.is_dir():
        _download(coordinate, folder)
    return tuple(sorted(folder.glob("*.jar")))


def _download(coordinate: str, folder: Path) -> None:
    """Download into a temporary folder and rename it, so that ``folder`` never exists with only some of the jars."""
    try:
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.maven import MavenContext
        from jgo.parse import Coordinate
    except ImportError as error:
        raise NoJarsError(f"resolving {coordinate} needs the package jgo: pip install 'headrace[pipeline]'") from error
    repository = os.environ.get(REPOSITORY_VARIABLE) or MAVEN_CENTRAL_URL
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".download-") as name:
            draft = Path(name, "jars")
            draft.mkdir()
            context = MavenContext(repo_cache=Path(name, "maven"), remote_repos={"central": repository.rstrip("/")})
            connector = context.create_dependency(Coordinate.parse(coordinate))
            inputs, transitive = context.resolver.resolve([connector])
            needed = [*inputs, *(each for each in transitive if each.scope in {"compile", "runtime"})]
            for jar in (Path(each.artifact.resolve()) for each in needed):
                shutil.copy(jar, draft / jar.name)
            try:
                draft.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another process has created it first
                    raise
    except Exception as error:
        raise NoJarsError(
            f"cannot download {coordinate}: {str(error).strip().partition(chr(10))[0][:300]}; connect this machine to a"
            f" Maven repository (set {REPOSITORY_VARIABLE} to a mirror's URL if Maven Central cannot be reached), set"
            f" {CACHE_VARIABLE} to a cache filled on another machine, or pass --packages {coordinate}"
        ) from error
