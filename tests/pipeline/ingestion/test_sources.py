"""Which errors of Spark show that the contents of a file are damaged, by the texts of Java's exceptions."""

from __future__ import annotations

import pytest

from headrace.pipeline.errors import ConflictError, InputError
from headrace.pipeline.ingestion.sources import FileSource

SOURCE = FileSource(folder="/in")
FILE = "s3a://bucket/in/usage-a-1.jsonl.gz"


def failed(cause: str, *, file: str = FILE) -> Exception:
    return ValueError(
        "[STREAM_FAILED] Query terminated with exception: An error occurred while calling o387.persist.\n"
        f": org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file {file}. "
        f" SQLSTATE: KD001\n\tat x\nCaused by: {cause}\n\tat y\n\t... 39 more\n"
    )


@pytest.mark.parametrize(
    "cause",
    [
        "java.io.EOFException: Unexpected end of input stream",
        "java.io.EOFException: Reached the end of stream with 9 bytes left to read",
        "java.io.IOException: gzip stream CRC failure",
        "java.io.IOException: not a gzip file",
        "java.io.IOException: invalid stored block lengths",
        "java.io.IOException: incorrect header check",
        "java.util.zip.ZipException: invalid code lengths set",
        "org.apache.hadoop.fs.ChecksumException: Checksum error: file:/in/usage-a.jsonl at 0 exp: 0 got: -1013477251",
        "java.lang.RuntimeException: s3a://b/usage-a.parquet is not a Parquet file. Expected magic number at tail",
        "java.lang.RuntimeException: s3a://b/usage-a.parquet is not a Parquet file (length is too low: 3)",
        "java.lang.RuntimeException: corrupted file: the footer index is not within the file: 99",
        "java.io.IOException: x\nCaused by: shaded.parquet.org.apache.thrift.protocol.TProtocolException: y",
        "org.apache.parquet.io.ParquetDecodingException: could not verify page integrity, CRC checksum failed",
        "com.github.luben.zstd.ZstdIOException: Data corruption detected",
    ],
)
def test_damage_is_known_by_its_cause(cause: str) -> None:
    assert SOURCE.damaged_file(failed(cause)) == FILE


@pytest.mark.parametrize(
    "cause",
    [
        "org.apache.hadoop.security.AccessControlException: Permission denied: user=spark, access=READ",
        "java.nio.file.AccessDeniedException: s3a://bucket/in/usage-a-1.jsonl.gz: getFileStatus: 403 Forbidden",
        "java.io.FileNotFoundException: /in/usage-a-1.jsonl.gz (Permission denied)",
        "org.apache.parquet.io.ParquetDecodingException: x\nCaused by: java.net.SocketTimeoutException: Read timed out",
        "java.io.EOFException: Unexpected EOF while trying to read response from server",
        "java.io.IOException: Connection reset by peer",
        "org.apache.hadoop.hdfs.BlockMissingException: Could not obtain block: BP-1 file=/in/usage-a-1.jsonl.gz",
        "java.lang.RuntimeException: native zStandard library not available",
        "java.lang.OutOfMemoryError: Java heap space",
    ],
)
def test_another_cause_is_an_error_that_names_the_file(cause: str) -> None:
    error = failed(cause)
    assert SOURCE.damaged_file(error) is None
    converted = SOURCE.as_pipeline_error(error)
    assert isinstance(converted, InputError)
    assert str(converted).startswith(f"cannot read {FILE}: {cause.rpartition('Caused by: ')[2]}; the next run reads it")


def test_a_removed_file_and_a_file_of_the_lake() -> None:
    for cause in ("File file:/in/x does not exist", "No such file or directory: s3a://bucket/in/x"):
        removed = failed(f"java.io.FileNotFoundException: {cause}")
        assert SOURCE.damaged_file(removed) is None
        assert isinstance(SOURCE.as_pipeline_error(removed), ConflictError)
    of_lake = failed("java.io.EOFException: Unexpected end of input stream", file="/lake/usage/part-0.parquet")
    assert SOURCE.damaged_file(of_lake) is None
    assert SOURCE.as_pipeline_error(of_lake) is None
