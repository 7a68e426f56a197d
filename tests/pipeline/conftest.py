"""One Spark session for all tests of the pipeline, as `headrace pipeline` makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipeline.session import SparkOptions, start_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "2g"}
    session = start_session("tests", SparkOptions(master="local[2]", conf=conf), kafka=True)
    yield session
    session.stop()
