"""How a file is replaced in an object store, without one and without Spark."""

from __future__ import annotations

from unittest.mock import MagicMock, call

import pytest

from headrace.pipeline.lake.stores import write_text

PATH = "s3a://bucket/lake/file.json"


@pytest.fixture
def spark() -> MagicMock:
    """A session whose Hadoop has an object store."""
    session = MagicMock()
    file_system(session).makeQualified.return_value.toUri.return_value.getScheme.return_value = "s3a"
    return session


def hadoop(spark: MagicMock) -> MagicMock:
    found: MagicMock = spark.sparkContext._jvm.org.apache.hadoop.fs
    return found


def file_system(spark: MagicMock) -> MagicMock:
    found: MagicMock = hadoop(spark).Path.return_value.getFileSystem.return_value
    return found


def test_an_object_is_replaced_by_creating_it(spark: MagicMock) -> None:
    write_text(spark, PATH, "two")
    assert all(each == call(PATH) for each in hadoop(spark).Path.call_args_list)
    file_system(spark).create.assert_called_once_with(hadoop(spark).Path.return_value, True)
    assert file_system(spark).create.return_value.mock_calls == [call.write(bytearray(b"two")), call.close()]
    file_system(spark).delete.assert_not_called()
    hadoop(spark).FileContext.getFileContext.assert_not_called()


def test_an_object_of_which_a_part_was_written_is_not_published(spark: MagicMock) -> None:
    stream = file_system(spark).create.return_value
    stream.write.side_effect = ValueError("connection lost")
    with pytest.raises(ValueError, match="connection lost"):
        write_text(spark, PATH, "two")
    stream.close.assert_not_called()
