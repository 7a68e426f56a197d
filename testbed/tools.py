"""Kafka's own command line tools, run from the jars without its shell scripts.

Called by tests, the demo and the benchmarks. `run_tool` for those that end by themselves, `start_tool` for those that
go on; both kinds end with this process. The tools log nothing, so that their output is theirs alone.
"""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import subprocess
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from testbed.artifacts import DEFAULT_BROKER_VERSION
from testbed.class_data import class_data_archive
from testbed.errors import ToolError, UnknownVersionError
from testbed.kept import KeptProgram, start_program
from testbed.launch import java_command, java_environment
from testbed.programs import run_program

if TYPE_CHECKING:
    from collections.abc import Sequence

# Enough for the consoles and the performance tools at their default buffer sizes.
DEFAULT_HEAP_MB = 256
# A tool takes one second here; the first after the cache was filled, or on a busy machine, takes many.
DEFAULT_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0

TOOLS = "org.apache.kafka.tools"


class Tool(enum.Enum):
    """The tools, named after their shell scripts; the value is the main class in Kafka 4.3.1."""

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


# Where Kafka 3.9's main classes differ; None for those it lacks.
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
    """Return the class to run. Raises UnknownVersionError when that version of Kafka lacks the tool."""
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

    Raises ToolError, with what it printed, when it ends with a status other than 0 (not with `check=False`), and
    TestbedTimeoutError when it has not ended after `timeout_s` seconds; it is killed then.
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
    output: Path | None = None,
    heap_mb: int = DEFAULT_HEAP_MB,
) -> RunningTool:
    """Start a tool, or any main class in Kafka's jars, and return at once.

    Its output, standard error included, goes to the file `output`, else to a pipe that the caller must read: a tool
    waits when the pipe is full.
    """
    return RunningTool(_command(tool, arguments, version, heap_mb), output)


class RunningTool:
    """A tool at work. A context manager, whose end kills it.

    `stdin` takes its input; `stdout` gives its output, standard error included, unless that goes to a file. Both are
    text, and `stdin` is flushed after every line.
    """

    __slots__ = ("_program", "stdin", "stdout")

    def __init__(self, command: Sequence[str], output: Path | None) -> None:
        self.stdout: IO[str] | None = None
        their_stdin, our_stdin = os.pipe()
        self.stdin: IO[str] = os.fdopen(our_stdin, "w", buffering=1, encoding="utf-8")
        if output is None:
            our_stdout, their_stdout = os.pipe()
            self.stdout = os.fdopen(our_stdout, encoding="utf-8", errors="replace")
        else:
            their_stdout = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._program: KeptProgram = start_program(
                command,
                environment=java_environment(),
                stdin=their_stdin,
                stdout=their_stdout,
                stderr=their_stdout,
            )
        except BaseException:
            self._close_streams()
            raise
        finally:
            os.close(their_stdin)
            os.close(their_stdout)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._program.pid

    def poll(self) -> int | None:
        """Return its exit status, minus the signal's number if a signal ended it, or None while it runs."""
        return self._program.poll()

    def wait(self, timeout_s: float) -> int:
        """Wait for its end and return the exit status. Raises TestbedTimeoutError after `timeout_s` seconds."""
        return self._program.wait(timeout_s)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """End it in order, as Ctrl-C does (performance tools then print their sums), and return the exit status.

        Raises TestbedTimeoutError after `timeout_s` seconds.
        """
        self._program.send_signal(signal.SIGINT)
        return self._program.wait(timeout_s)

    def close(self) -> None:
        """Kill it if it still runs, and close its streams."""
        self._program.kill()
        self._close_streams()

    def _close_streams(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        if self.stdout is not None:
            self.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _command(tool: Tool | str, arguments: Sequence[str], version: str, heap_mb: int) -> list[str]:
    name = main_class(tool, version) if isinstance(tool, Tool) else tool
    archive = class_data_archive(version)
    return java_command(version, name, arguments, heap_mb=heap_mb, class_data=archive)


def _name(tool: Tool | str) -> str:
    return tool.name if isinstance(tool, Tool) else tool
