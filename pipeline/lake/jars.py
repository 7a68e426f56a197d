"""The jars of Spark's Kafka connector, in a cache of their own, resolved once.

Spark's own ``spark.jars.packages`` asks for more than Maven repositories may have; here the run-time dependencies are
resolved by jgo, put into one folder, and passed as ``spark.jars``. ``--packages`` is for who has a better way.
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
"""Of the version of pyspark that the extra pins."""

CACHE_VARIABLE: Final = "HEADRACE_PIPELINE_CACHE"
REPOSITORY_VARIABLE: Final = "HEADRACE_PIPELINE_REPOSITORY"


def cache_folder() -> Path:
    """$HEADRACE_PIPELINE_CACHE, else headrace-pipeline in the user's cache."""
    if own := os.environ.get(CACHE_VARIABLE):
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg).expanduser().absolute() if xdg else Path.home() / ".cache") / "headrace-pipeline"


def kafka_jars(coordinate: str = KAFKA_CONNECTOR) -> tuple[Path, ...]:
    """The connector and what it needs, without what Spark has itself. The first call downloads for about 20 s.

    Raises `NoJarsError`.
    """
    folder = cache_folder() / re.sub(r"[^\w.-]+", "_", coordinate)
    if not folder.is_dir():
        _download(coordinate, folder)
    return tuple(sorted(folder.glob("*.jar")))


def _download(coordinate: str, folder: Path) -> None:
    """Into a folder beside it, which then gets the name: whoever sees ``folder`` sees all of it."""
    try:
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.maven import MavenContext
        from jgo.parse import Coordinate
    except ImportError as error:
        raise NoJarsError(
            f"cannot resolve {coordinate}: the package jgo is missing; install headrace[pipeline]"
        ) from error
    repository = os.environ.get(REPOSITORY_VARIABLE) or MAVEN_CENTRAL_URL
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".download-") as name:
            draft = Path(name, "jars")
            draft.mkdir()
            context = MavenContext(repo_cache=Path(name, "maven"), remote_repos={"central": repository.rstrip("/")})
            wanted = context.create_dependency(Coordinate.parse(coordinate))
            inputs, transitive = context.resolver.resolve([wanted])
            needed = [*inputs, *(each for each in transitive if each.scope in {"compile", "runtime"})]
            for jar in (Path(each.artifact.resolve()) for each in needed):
                shutil.copy(jar, draft / jar.name)
            try:
                draft.rename(folder)
            except OSError:
                if not folder.is_dir():  # another process was faster
                    raise
    except Exception as error:
        raise NoJarsError(
            f"cannot get {coordinate}: {str(error).strip().partition(chr(10))[0][:300]}; connect this machine to a"
            f" Maven repository (set {REPOSITORY_VARIABLE} to a mirror's URL if Maven Central is out of reach), set"
            f" {CACHE_VARIABLE} to a cache filled elsewhere, or pass --packages {coordinate}"
        ) from error
