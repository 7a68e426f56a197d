"""The testbed's errors: one tree, so that a command line can catch `TestbedError` and print its text alone.

Every text is complete by itself: what was wanted, what stood in the way, and which setting or package changes it.
"""

from __future__ import annotations


class TestbedError(Exception):
    """Anything that keeps the testbed from running Kafka; its text is meant for the person who started it."""

    __test__ = False  # pytest would otherwise take the name for a test class


class UnknownVersionError(TestbedError):
    """A Kafka version that the testbed has no coordinates for (the caller's mistake)."""


class ArtifactsUnavailableError(TestbedError):
    """Kafka's jars are neither in the cache nor to be had from the Maven repository."""


class CompiledUnavailableError(TestbedError):
    """The proxy's modules cannot be compiled on this machine."""


class JavaNotFoundError(TestbedError):
    """No Java of the lowest usable version or newer on this machine."""


class JvmError(TestbedError):
    """The JVM inside this process cannot be started, or lacks the class asked for."""


class LockTimeoutError(TestbedError):
    """Another process kept one of the testbed's lock files for longer than we were ready to wait."""


class TestbedTimeoutError(TestbedError):
    """A program did not end, or a condition did not come true, within its deadline."""

    __test__ = False


class KeeperError(TestbedError):
    """The keeper process cannot do what was asked, for instance start a program that does not exist."""


class PortsExhaustedError(TestbedError):
    """No run of free ports of the wanted length is left outside the kernel's ephemeral range."""


class ClusterError(TestbedError):
    """A broker did not start, stop or answer in time; the text ends with the tail of its log."""


class ToolError(TestbedError):
    """One of Kafka's command line tools ended with an error or ran past its time-out."""
