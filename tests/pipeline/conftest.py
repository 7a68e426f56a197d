"""One Spark session for all tests of the pipeline, created as `headrace pipeline` creates it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from headrace.pipeline.lake.session import SparkOptions, start_session
from headrace.pipeline.lake.tables import Lake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


FEW_ROWS: Final = {
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    # Tests have thousands of small plans: what pays for millions of rows costs them more than it saves.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start_session("tests", SparkOptions(master="local[2]", conf=FEW_ROWS), kafka=True)
    yield session
    session.stop()


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """An empty lake."""
    return Lake(spark, str(tmp_path / "lake"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings about sockets of py4j, which leaves them to the garbage collector, during any test."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(
                pytest.mark.filterwarnings(
                    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
                )
            )
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"))
