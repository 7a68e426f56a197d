"""Errors of Spark and of the gateway to its JVM, as users see them."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from headrace.pipeline.lake.spark_errors import as_pipeline_error


class JavaError(Py4JJavaError):  # type: ignore[misc]  # py4j has no types
    """An exception of Java's, without a JVM."""

    __module__ = "py4j.protocol"

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return f"An error occurred while calling o84.save.\n: {self.text}\n\tat x\n"


def test_a_full_disk_is_named_with_what_was_written() -> None:
    full = OSError(28, "No space left on device", "/lake/usage/x")
    assert str(as_pipeline_error(full)).startswith("no space left: ")
    written = as_pipeline_error(JavaError("java.io.IOException: No space left on device"), "/lake/usage")
    assert str(written).startswith("cannot write /lake/usage: no space left: java.io.IOException: No space left")


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        Py4JNetworkError("Answer from Java side is empty"),
        Py4JError("An error occurred while calling o84.collectToPython"),
    ],
)
def test_the_jvm_has_ended_if_its_gateway_does_not_answer(error: Exception) -> None:
    assert str(as_pipeline_error(error)).startswith("Spark's JVM ended before the job was done")


def test_a_server_that_the_jvm_cannot_reach_is_not_the_jvm() -> None:
    cause = "java.net.ConnectException: Call From a to namenode:8020 failed: Connection refused"
    refused = JavaError(f"org.apache.spark.SparkException: x\nCaused by: {cause}")
    assert str(as_pipeline_error(refused)) == f"a server cannot be reached: {cause}"
    assert str(as_pipeline_error(refused, "/lake/usage")) == (
        f"cannot write /lake/usage: a server cannot be reached: {cause}"
    )


def test_other_errors_are_bugs() -> None:
    for error in (
        ValueError("a bug"),
        JavaError("java.lang.NullPointerException: Connection refused"),
        Py4JError("An error occurred while calling o84.x. Trace:\npy4j.Py4JException: Method x([]) does not exist\n"),
        Py4JError("org.x does not exist in the JVM"),
    ):
        assert as_pipeline_error(error) is None, error
