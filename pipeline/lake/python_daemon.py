"""The process that runs Python functions for Spark on this machine. It is pyspark's, with a shorter path for imports.

Spark puts archives of pyspark and py4j and a jar of its own in front of the path, and Python reads the directory of
each again before each task (`importlib.invalidate_caches`). This takes 0.1 s, longer than most functions. The installed
packages are the same, since the job itself uses them.

Started by Spark as ``python -m``, as the setting ``spark.python.daemon.module`` says.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import PurePath


def _is_archive_of_spark(path: str) -> bool:
    file = PurePath(path)
    return file.name == "pyspark.zip" or file.match("py4j-*.zip") or file.match("spark-core_*.jar")


def drop_archives() -> None:
    """Remove Spark's archives from the path, if their packages are found without them."""
    others = [path for path in sys.path if not _is_archive_of_spark(path)]
    specs = [PathFinder.find_spec(package, others) for package in ("pyspark", "py4j")]
    if all(spec is not None and spec.loader is not None for spec in specs):  # a folder of that name has no loader
        for path in set(sys.path).difference(others):
            sys.path_importer_cache.pop(path, None)
        sys.path[:] = others


if __name__ == "__main__":
    drop_archives()

    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]
