"""Kafka's own command line tools, run from the jars without its shell scripts.

Called by tests, the demo and the benchmarks. `run_tool` is for tools that end by themselves, `start_tool` for those
that run until they are stopped; both kinds end with this process. Logging is off, so that the output contains only what
the tool prints.
"""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import tempfile
import time
from typing import IO, TYPE_CHECKING, Self

from testbed.errors import TestbedTimeoutError, ToolError, UnknownVersionError
from testbed.kafka.artifacts import DEFAULT_BROKER_VERSION
from testbed.kafka.class_data import class_data_archive
from testbed.kafka.launch import STARTING_OPTIONS, java_command
from testbed.processes.programs import content, java_environment, run_program
from testbed.processes.supervised import SupervisedProgram, start_program

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

# Enough for the consoles and the performance tools at their default buffer sizes.
DEFAULT_HEAP_MB = 256
# A tool takes one second here; the first run after the cache was filled, or on a busy machine, takes longer.
DEFAULT_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.02

TOOLS = "org.apache.kafka.tools"


class Tool(enum.Enum):
    """Kafka's tools, named after their shell scripts; the value is the main class in Kafka 4.3.1."""

    ACLS = f"{TOOLS}.AclCommand"
    BROKER_API_VERSIONS = f"{TOOLS}.BrokerApiVersionsCommand"
    CLIENT_METRICS = f"{TOOLS}.ClientMetricsCommand"
    CLUSTER = f"{TOOLS}.ClusterTool"
    CONFIGS = "kafka.admin.ConfigCommand"
    CONSOLE_CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
    CONSOLE_PRODUCER = f"{TOOLS}.ConsoleProducer"
    CONSOLE_SHARE_CONSUMER = f"{TOOLS}.consumer.ConsoleShareConsumer"
    CONSUMER_GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    CONSUMER_PERF_TEST = f"{TOOLS}.ConsumerPerformance"
    DELEGATION_TOKENS = f"{TOOLS}.DelegationTokenCommand"
    DELETE_RECORDS = f"{TOOLS}.DeleteRecordsCommand"
    DUMP_LOG = f"{TOOLS}.DumpLogSegments"
    E2E_LATENCY = f"{TOOLS}.EndToEndLatency"
    FEATURES = f"{TOOLS}.FeatureCommand"
    GET_OFFSETS = f"{TOOLS}.GetOffsetShell"
    GROUPS = f"{TOOLS}.GroupsCommand"
    JMX = f"{TOOLS}.JmxTool"
    LEADER_ELECTION = f"{TOOLS}.LeaderElectionCommand"
    LOG_DIRS = f"{TOOLS}.LogDirsCommand"
    METADATA_QUORUM = f"{TOOLS}.MetadataQuorumCommand"
    PRODUCER_PERF_TEST = f"{TOOLS}.ProducerPerformance"
    REASSIGN_PARTITIONS = f"{TOOLS}.reassign.ReassignPartitionsCommand"
    SHARE_CONSUMER_PERF_TEST = f"{TOOLS}.ShareConsumerPerformance"
    SHARE_GROUPS = f"{TOOLS}.consumer.group.ShareGroupCommand"
    STORAGE = "kafka.tools.StorageTool"
    STREAMS_GROUPS = f"{TOOLS}.streams.StreamsGroupCommand"
    TOPICS = f"{TOOLS}.TopicCommand"
    TRANSACTIONS = f"{TOOLS}.TransactionsCommand"
    VERIFIABLE_CONSUMER = f"{TOOLS}.VerifiableConsumer"
    VERIFIABLE_PRODUCER = f"{TOOLS}.VerifiableProducer"


# The main classes that differ in Kafka 3.9; None for tools that it lacks.
IN_3_9: dict[Tool, str | None] = {
    Tool.ACLS: "kafka.admin.AclCommand",
    Tool.BROKER_API_VERSIONS: "kafka.admin.BrokerApiVersionsCommand",
    Tool.CONSOLE_PRODUCER: "kafka.tools.ConsoleProducer",
    Tool.CONSOLE_SHARE_CONSUMER: None,
    Tool.DUMP_LOG: "kafka.tools.DumpLogSegments",
    Tool.GROUPS: None,
    Tool.SHARE_CONSUMER_PERF_TEST: None,
    Tool.SHARE_GROUPS: None,
    Tool.STREAMS_GROUPS: None,
}


def main_class(tool: Tool, version: str) -> str:
    """Return the main class of `tool`. Raises UnknownVersionError if that version of Kafka lacks the tool."""
    name = IN_3_9.get(tool, tool.value) if version.startswith("3.") else tool.value
    if name is None:
        raise UnknownVersionError(f"Kafka {version} has no tool {tool.name}")
    return name


def run_tool(
    tool: Tool | str,
    arguments: Sequence[str],
    *,
    version: str = DEFAULT_BROKER_VERSION,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    stdin: str = "",
    check: bool = True,
    heap_mb: int = DEFAULT_HEAP_MB,
) -> subprocess.CompletedProcess[str]:
    """Run a tool, or any main class in Kafka's jars, to its end, and return its exit status and output.

    Raises ToolError, with its output, if it ends with a status other than 0 (unless `check=False`). Kills it and raises
    TestbedTimeoutError if it has not ended after `timeout_s` seconds.
    """
    result = run_program(_command(tool, arguments, version, heap_mb), timeout_s=timeout_s, stdin=stdin)
    if check and result.returncode != 0:
        printed = f"{result.stdout}\n{result.stderr}".strip()
        raise ToolError(f"{_name(tool)} {' '.join(arguments)} ended with status {result.returncode}: {printed}")
    return result


def start_tool(
    tool: Tool | str,
    arguments: Sequence[str],
    *,
    version: str = DEFAULT_BROKER_VERSION,
    heap_mb: int = DEFAULT_HEAP_MB,
    jvm_options: Sequence[str] = (),
) -> RunningTool:
    """Start a tool, or any main class in Kafka's jars, and return at once."""
    return RunningTool(_command(tool, arguments, version, heap_mb, jvm_options))


class RunningTool:
    """A running tool; a context manager, which kills the tool at its exit.

    The tool's output, including standard error, is written to a file, so that it never waits for a reader. `stdin` is
    its standard input; closing it ends a console producer.
    """

    __slots__ = ("_output", "_program", "stdin")

    def __init__(self, command: Sequence[str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        theirs, ours = os.pipe()
        self.stdin: IO[str] = os.fdopen(ours, "w", buffering=1, encoding="utf-8")
        try:
            self._program: SupervisedProgram = start_program(
                command,
                environment=java_environment(),
                stdin=theirs,
                stdout=self._output.fileno(),
                stderr=self._output.fileno(),
            )
        except BaseException:
            self._close_files()
            raise
        finally:
            os.close(theirs)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._program.pid

    def output(self) -> str:
        """Return the output so far."""
        return content(self._output.fileno())

    def wait_for_output(self, text: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> str:
        """Wait until `text` is in the output, and return the output so far.

        Raises ToolError, with the output, if the tool ends before it prints `text`, and TestbedTimeoutError after
        `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            status = self.poll()
            printed = self.output()
            if text in printed:
                return printed
            if status is not None:
                raise ToolError(f"the tool ended with status {status} before it printed {text!r}: {printed}")
            if time.monotonic() >= deadline:
                raise TestbedTimeoutError(f"the tool did not print {text!r} in {timeout_s} s: {printed}")
            time.sleep(POLL_S)

    def poll(self) -> int | None:
        """Return its exit status, minus the signal's number if a signal ended it, or None while it runs."""
        return self._program.poll()

    def wait(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> int:
        """Wait for its end and return the exit status. Raises TestbedTimeoutError after `timeout_s` seconds."""
        return self._program.wait(timeout_s)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Send SIGINT, as Ctrl-C does (consoles then print their totals), and return the exit status.

        Raises TestbedTimeoutError after `timeout_s` seconds.
        """
        self._program.send_signal(signal.SIGINT)
        return self._program.wait(timeout_s)

    def close(self) -> None:
        """Kill the tool if it is still running; its output is lost."""
        self._program.kill()
        self._close_files()

    def _close_files(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        self._output.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _command(
    tool: Tool | str, arguments: Sequence[str], version: str, heap_mb: int, jvm_options: Sequence[str] = ()
) -> list[str]:
    name = main_class(tool, version) if isinstance(tool, Tool) else tool
    archive = class_data_archive(version)
    options = (*STARTING_OPTIONS, *jvm_options)
    return java_command(version, name, arguments, heap_mb=heap_mb, options=options, class_data=archive)


def _name(tool: Tool | str) -> str:
    return tool.name if isinstance(tool, Tool) else tool
