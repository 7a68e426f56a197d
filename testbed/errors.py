"""The testbed's errors: one tree, so that a command line can catch `TestbedError` and print only its text.

Every text is complete: what was attempted, what prevented it, and which setting or package changes it.
"""

from __future__ import annotations


class TestbedError(Exception):
    """Base class of the reasons why the testbed cannot run Kafka; the text is meant for the user."""

    __test__ = False  # otherwise pytest collects the class as tests


class UnknownVersionError(TestbedError):
    """The caller asked for a Kafka version that the testbed has no Maven coordinates for."""


class ArtifactsUnavailableError(TestbedError):
    """Kafka's jars are not in the cache and cannot be downloaded from the Maven repository."""


class HelmUnavailableError(TestbedError):
    """Helm is not installed and cannot be built on this machine."""


class HelmError(TestbedError):
    """Helm ended with an error: it refuses a chart or its values."""


class JavaNotFoundError(TestbedError):
    """No Java of the lowest usable version or newer on this machine."""


class JvmError(TestbedError):
    """The JVM inside this process cannot be started, or lacks the requested class."""


class LockTimeoutError(TestbedError):
    """Another process held one of the testbed's lock files for longer than the time-out."""


class TestbedTimeoutError(TestbedError):
    """A program did not end, or a condition did not come true, within its deadline."""

    __test__ = False


class SupervisorError(TestbedError):
    """The supervisor process cannot carry out a request, for instance start a program that does not exist."""


class PortsExhaustedError(TestbedError):
    """There are not enough consecutive free ports outside the kernel's ephemeral range."""


class ClusterError(TestbedError):
    """A broker did not start, stop or answer in time; the text ends with the last lines of its log."""


class ToolError(TestbedError):
    """One of Kafka's command line tools ended with an error."""
