"""The cost of a request in the proxy, in numbers that are the same on every machine: bytecode instructions, memory and
system calls.

    .venv/bin/python -m benchmarks.instructions [--only produce] [--where] [--json]

One connection at a time, with all four quotas and with none, through the proxy's own poller and sockets
(`benchmarks.instructions_stage`). *instructions* are those that the interpreter executes for a request and its reply,
without this benchmark's own code; they depend on the version of Python. *KiB* is the
peak memory of a request. *left* are the memory blocks and bytes that remain allocated afterwards: any value other than
0 is a leak. The other columns are system calls. All figures are means over whole seconds of the proxy's clock, so that
work that is done once per second (a quota's next sample) is included in proportion.
"""

from __future__ import annotations

import gc
import json
import platform
import sys
import tracemalloc
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import click
import trio

from benchmarks import instructions_stage
from benchmarks.bench.paths import QUOTAS
from benchmarks.instructions_stage import open_stage
from headrace.config.schema import Log, LogLevel
from headrace.proxy.logs import configure_logs
from headrace.quota_callbacks.api_keys import ApiKey
from tests.faults.messages import batch
from tests.proxy.playbook import reply, request

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, FrameType

    from benchmarks.instructions_stage import Stage

OWN_CODE: Final = frozenset({__file__, instructions_stage.__file__})
WARM_UP: Final = (28, 0.5)
"""Number of requests, and seconds between them: together longer than a quota's window."""
LEFT_AFTER: Final = (28, 0.01)
NEXT_SAMPLE: Final = (1, 1.0)
MEASURED: Final = (7, 0.001)
"""Number of measured requests, and seconds between them: within one sample of a quota's window, and
`headrace.proxy.connection.state.thread_time.ONE_OF` requests, so that the mean is exact."""
PRODUCER_ID: Final = 4711
PRODUCER_ID_AT: Final = 43
"""Offset in a record batch of format 2 of the producer id, followed by its epoch and the first sequence number."""
TOPIC: Final = "orders"
TOPIC_ID: Final = bytes(range(16))
PRODUCE_VERSION, FETCH_VERSION, API_VERSIONS_VERSION, METADATA_VERSION = 9, 17, 4, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request and the broker's reply, as complete frames."""

    name: str
    request: bytes
    reply: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The mean cost of one request."""

    name: str
    quotas: bool
    instructions: float
    peak_bytes: int
    """Peak memory, in addition to the memory that is held between requests."""
    blocks_left: int
    """Memory blocks left after `LEFT_AFTER` requests in total."""
    bytes_left: int
    calls: dict[str, float]


class Instructions:
    """A context manager that counts the instructions executed within it, by code object."""

    def __init__(self) -> None:
        self.by_code: Counter[CodeType] = Counter()
        self._counting = False

    def begin(self) -> None:
        self._counting = True

    def end(self) -> None:
        self._counting = False

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # noqa: SLF001 -- 3.12 reads it only when tracing begins
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        if frame.f_code.co_filename in OWN_CODE:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._executed

    def _executed(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "opcode" and self._counting:
            self.by_code[frame.f_code] += 1
        return self._executed


class Calls:
    """The system calls of a measured run."""

    def __init__(self, calls: dict[str, int]) -> None:
        self._calls = calls
        self.made: dict[str, int] = {}

    def begin(self) -> None:
        self._calls.clear()

    def end(self) -> None:
        self.made = dict(self._calls)


class Left:
    """The memory left by a measured run, compared with the end of the run before, when the benchmark held the same."""

    blocks = held_bytes = 0

    def __init__(self) -> None:
        self._blocks = self._bytes = 0

    def begin(self) -> None: ...

    def end(self) -> None:
        blocks, held_bytes = sys.getallocatedblocks(), tracemalloc.get_traced_memory()[0]
        self.blocks, self._blocks = blocks - self._blocks, blocks
        self.held_bytes, self._bytes = held_bytes - self._bytes, held_bytes


class Peak:
    """The peak memory of a measured run."""

    held_bytes = 0

    def begin(self) -> None:
        tracemalloc.reset_peak()
        self._before = tracemalloc.get_traced_memory()[0]

    def end(self) -> None:
        self.held_bytes = tracemalloc.get_traced_memory()[1] - self._before


def exchanges() -> list[Exchange]:
    """Return the exchanges that are measured."""
    return [
        _produce("produce, one record", batch(bytes(100))),
        _produce("produce, 64 KiB", batch(bytes(1000), 64)),
        _produce("produce, 16 of 16 KiB", batch(bytes(1000), 16), partitions=16),
        _fetch("fetch, 1 MiB", batch(bytes(1000), 64) * 16),
        _fetch("fetch, 32 of 30 KiB", batch(bytes(1000), 30), partitions=32),
        _api_versions(),
        _metadata(),
    ]


def _produce(name: str, records: bytes, partitions: int = 1) -> Exchange:
    known = bytearray(records)
    known[PRODUCER_ID_AT : PRODUCER_ID_AT + 8] = PRODUCER_ID.to_bytes(8, "big")
    numbers = range(partitions)
    data = [{"name": TOPIC, "partition_data": [{"index": index, "records": bytes(known)} for index in numbers]}]
    answered = [{"index": index, "error_code": 0, "base_offset": 0} for index in numbers]
    answers = [{"name": TOPIC, "partition_responses": answered}]
    return Exchange(
        name=name,
        request=request(ApiKey.PRODUCE, PRODUCE_VERSION, acks=-1, timeout_ms=1000, topic_data=data),
        reply=reply(ApiKey.PRODUCE, PRODUCE_VERSION, responses=answers),
    )


def _fetch(name: str, records: bytes, partitions: int = 1) -> Exchange:
    numbers = range(partitions)
    wanted = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for index in numbers]
    fields: dict[str, Any] = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 50 << 20}
    found = [{"partition_index": index, "high_watermark": 1, "records": records} for index in numbers]
    return Exchange(
        name=name,
        request=request(ApiKey.FETCH, FETCH_VERSION, **fields, topics=[{"topic_id": TOPIC_ID, "partitions": wanted}]),
        reply=reply(ApiKey.FETCH, FETCH_VERSION, responses=[{"topic_id": TOPIC_ID, "partitions": found}]),
    )


def _api_versions() -> Exchange:
    client: dict[str, Any] = {"client_software_name": "java", "client_software_version": "4.3.1"}
    keys = [{"api_key": key, "min_version": 0, "max_version": 4} for key in range(75)]
    return Exchange(
        name="api versions",
        request=request(ApiKey.API_VERSIONS, API_VERSIONS_VERSION, **client),
        reply=reply(ApiKey.API_VERSIONS, API_VERSIONS_VERSION, api_keys=keys),
    )


def _metadata() -> Exchange:
    brokers = [{"node_id": number, "host": "kafka", "port": 9092 + number} for number in range(3)]
    partitions = [
        {"partition_index": number, "leader_id": number, "replica_nodes": [0, 1, 2], "isr_nodes": [0, 1, 2]}
        for number in range(3)
    ]
    topics = [{"name": TOPIC, "topic_id": TOPIC_ID, "partitions": partitions}]
    return Exchange(
        name="metadata",
        request=request(ApiKey.METADATA, METADATA_VERSION, topics=[{"name": TOPIC}], allow_auto_topic_creation=True),
        reply=reply(ApiKey.METADATA, METADATA_VERSION, brokers=brokers, cluster_id="c", controller_id=0, topics=topics),
    )


async def measure(exchange: Exchange, quotas: bool) -> tuple[Cost, Counter[CodeType]]:
    """Return the cost of a request, and its instructions by code object."""
    gc.collect()
    gc.disable()
    try:
        async with open_stage(exchange.request, exchange.reply, QUOTAS if quotas else "") as stage:
            return await _measure(stage, exchange.name, quotas)
    finally:
        gc.enable()


async def _measure(stage: Stage, name: str, quotas: bool) -> tuple[Cost, Counter[CodeType]]:
    calls, instructions, left, peak = Calls(stage.calls), Instructions(), Left(), Peak()
    await stage.ask(*WARM_UP)
    tracemalloc.start()
    try:
        for _ in range(3):
            await stage.ask(*LEFT_AFTER, left)
        await stage.ask(*NEXT_SAMPLE)
        await stage.ask(*MEASURED, peak)
    finally:
        tracemalloc.stop()
    await stage.ask(*MEASURED, calls)
    with instructions:
        await stage.ask(*MEASURED)  # since 3.12, code is not counted completely the first time that it is traced
        await stage.ask(*MEASURED, instructions)
    requests = MEASURED[0]
    cost = Cost(
        name=name,
        quotas=quotas,
        instructions=instructions.by_code.total() / requests,
        peak_bytes=peak.held_bytes,
        blocks_left=left.blocks,
        bytes_left=left.held_bytes,
        calls={call: made / requests for call, made in sorted(calls.made.items())},
    )
    return cost, instructions.by_code


def table(costs: Sequence[Cost]) -> str:
    """Return a table with a line for each cost."""
    calls = sorted({call for cost in costs for call in cost.calls})
    lines = [f"{'a request':20} {'quotas':6} {'instructions':>12} {'KiB':>6} {'left':>11}  {'  '.join(calls)}"]
    for cost in costs:
        made = "  ".join(f"{cost.calls.get(call, 0):{len(call)}.3g}" for call in calls)
        left = f"{cost.blocks_left}, {cost.bytes_left} B"
        lines.append(
            f"{cost.name:20} {'four' if cost.quotas else 'none':6} {cost.instructions:12.1f}"
            f" {cost.peak_bytes / 1024:6.1f} {left:>11}  {made}"
        )
    return "\n".join(lines)


def where(by_code: Counter[CodeType], most: int = 40) -> str:
    """Return the functions with the most instructions for a request."""
    lines = [
        f"    {count / MEASURED[0]:8.1f}  {code.co_qualname}  {code.co_filename}:{code.co_firstlineno}"
        for code, count in by_code.most_common(most)
    ]
    return "\n".join(lines)


@click.command()
@click.option("--only", default="", help="Only exchanges whose name contains this text.")
@click.option("--where", "show_where", is_flag=True, help="Also print the functions with the most instructions.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def main(only: str, show_where: bool, as_json: bool) -> None:
    """Measure the cost of a request in the proxy, in numbers that are the same on every machine."""
    configure_logs(Log(level=LogLevel.ERROR))
    costs = []
    for exchange in exchanges():
        for quotas in (True, False) if only in exchange.name else ():
            cost, by_code = trio.run(measure, exchange, quotas)
            costs.append(cost)
            if show_where:
                print(f"{cost.name}, {'four quotas' if quotas else 'no quotas'}\n{where(by_code)}")
    if as_json:
        print(json.dumps([asdict(cost) for cost in costs]))
    else:
        print(f"Python {platform.python_version()}\n{table(costs)}")


if __name__ == "__main__":
    main()
