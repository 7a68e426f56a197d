"""The exceptions that jobs report to users in one line. Any other exception is a bug and shows its traceback."""

from __future__ import annotations

import os
from typing import ClassVar


class PipelineError(Exception):
    """A job cannot be run. ``str()`` names the value, the rule and the setting to change."""

    exit_status: ClassVar[int] = 1


class NoJavaError(PipelineError):
    """Java is missing, or is a version that Spark does not support."""


class NoJarsError(PipelineError):
    """The jars of Spark's Kafka connector cannot be downloaded."""


class InputError(PipelineError):
    """A job's input is missing or invalid."""


class OutputError(PipelineError):
    """A job's output cannot be written, or the place already holds something else."""


class StoppedError(PipelineError):
    """A signal has stopped a job. It can be run again."""

    exit_status: ClassVar[int] = os.EX_TEMPFAIL


class ConflictError(OutputError):
    """Another job has changed what this one reads or writes. Nothing was written; it can be run again."""

    exit_status: ClassVar[int] = os.EX_TEMPFAIL
