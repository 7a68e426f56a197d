"""The command line: `python -m benchmarks.bench --help`; `make bench` runs it with its defaults."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.bench import paths
from benchmarks.bench.broker import BenchBroker
from benchmarks.bench.cores import Cores, pin_process, take_cores
from benchmarks.bench.errors import BenchError, PathUnavailableError
from benchmarks.bench.figures import Results
from benchmarks.bench.interpreters import THIS, Interpreter, interpreter
from benchmarks.bench.paths import BrokerPath, Direct, Peer, headrace_path
from benchmarks.bench.peers import Haproxy, Kroxylicious
from benchmarks.bench.programs import Program
from benchmarks.bench.report import JSON_FILE, MARKDOWN_FILE, PLOT_FILE, write
from benchmarks.bench.runner import Plan, Runner
from benchmarks.bench.tls import TlsFiles, TlsSides, tls_files
from benchmarks.bench.workloads import WORKLOADS, Workload, scaled
from testbed.processes.supervised import make_directory

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Mapping, Sequence

PATHS: Final = (
    paths.DIRECT,
    paths.HAPROXY,
    paths.KROXYLICIOUS,
    paths.HEADRACE,
    paths.HEADRACE_QUOTAS,
    paths.HEADRACE_NATIVE,
    paths.HEADRACE_NATIVE_2_THREADS,
    paths.HEADRACE_NATIVE_OBSERVED,
    paths.HEADRACE_TRACING,
    paths.HEADRACE_AUTHORIZATION,
    paths.HAPROXY_TLS,
    paths.HEADRACE_TLS,
    paths.HEADRACE_NATIVE_TLS,
    paths.HAPROXY_TLS_CLIENTS,
    paths.HEADRACE_TLS_CLIENTS,
)
"""The paths that are measured by default."""
IF_NAMED: Final = (
    paths.HAPROXY_SPLICE,
    paths.HAPROXY_TLS_BROKERS,
    paths.HEADRACE_TLS_BROKERS,
)
ALL_PATHS: Final = (*PATHS, *IF_NAMED)
QUICK_SCALE: Final = 0.02
SINK_START_S: Final = 20.0
PEERS_PORT: Final = 29092
"""Default of --peers-port; below the kernel's ephemeral ports and above the testbed's lowest port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The parsed value of a --peer or --relay option."""

    name: str
    address: tuple[str, int]
    pid: int
    relays: bool


def read_peer(text: str, *, relays: bool) -> Given:
    """Parse NAME=HOST:PORT:PID. Raises BadParameter."""
    name, _, rest = text.partition("=")
    parts = rest.rsplit(":", 2)
    if not name or len(parts) != 3 or not parts[0] or not parts[1].isdecimal() or not parts[2].isdecimal():
        raise click.BadParameter(f"{text!r}: expected NAME=HOST:PORT:PID, such as mine=127.0.0.1:9192:4711")
    if name in ALL_PATHS:
        raise click.BadParameter(f"{name} is the name of a built-in path; choose another name")
    return Given(name=name, address=(parts[0], int(parts[1])), pid=int(parts[2]), relays=relays)


def choose(wanted: str | None, known: Sequence[str], what: str) -> list[str]:
    """Return the names of a comma-separated list in the order of `known`, or all without one. Raises BadParameter."""
    names = [name.strip() for name in wanted.split(",")] if wanted else list(known)
    if strange := [name for name in names if name not in known]:
        raise click.BadParameter(f"no {what} {', '.join(strange)}; there are {', '.join(known)}")
    return [name for name in known if name in names]


def start_sink(stack: contextlib.ExitStack) -> str:
    """Start a receiver of traces on the clients' core, and return its URL."""
    sink = Program("the receiver of traces", [sys.executable, "-u", "-m", "benchmarks.bench.otlp_sink"])
    stack.callback(sink.close)
    return f"http://127.0.0.1:{sink.wait_for_output(chr(10), SINK_START_S).strip()}"


def make_path(
    name: str,
    peers: Mapping[str, Peer],
    cores: Cores,
    tls: TlsFiles,
    python: Interpreter = THIS,
) -> BrokerPath:
    """Return the path of that name. Raises PathUnavailableError."""
    if name in peers:
        return peers[name]
    match name:
        case paths.DIRECT:
            return Direct()
        case paths.HAPROXY:
            return Haproxy(name, cores)
        case paths.HAPROXY_SPLICE:
            return Haproxy(name, cores, splice=True)
        case paths.HAPROXY_TLS | paths.HAPROXY_TLS_CLIENTS | paths.HAPROXY_TLS_BROKERS:
            return Haproxy(name, cores, tls=tls, sides=paths.TLS_SIDES[name])
        case paths.KROXYLICIOUS:
            return Kroxylicious(cores)
    return headrace_path(name, cores, start_sink, tls, python)


def make_peers(given: Sequence[Given], first_port: int) -> dict[str, Peer]:
    """Return the peers by name. `given` begins with the relays, whose broker ports begin at `first_port` + 1."""
    return {
        each.name: Peer(name=each.name, address=each.address, pid=each.pid, relays=each.relays, fixed_port=port)
        for port, each in enumerate(given, first_port + 1)
    }


def make_broker(made: Sequence[BrokerPath], peers_port: int, tls: TlsFiles) -> BenchBroker:
    """Return a broker with the listeners that these paths require."""
    with_tls = [path for path in made if TlsSides.BROKERS in path.sides]
    fixed = {path.name: path.fixed_port for path in made if isinstance(path, Peer) and path.relays}
    if any(isinstance(path, Peer) for path in made):
        fixed["peers that speak Kafka"] = peers_port
    relays = {path.name: path.relay_address for path in made if path.relay_address is not None}
    tls_relays = [path.name for path in with_tls if path.relay_address is not None]
    return BenchBroker(relays, fixed, tls=tls if with_tls else None, tls_relays=tls_relays)


def about(plan: Plan, cores: Cores, python: Interpreter = THIS) -> dict[str, Any]:
    """Return a description of the run for its report."""
    return {
        "paths": ", ".join(path.name for path in plan.paths),
        "rounds": plan.rounds,
        "sizes": asdict(plan.sizes),
        "cores": f"broker and clients on {cores.work}, the proxy on {cores.proxy}",
        "system": f"Linux {platform.release()}",
        "Headrace's Python": python.version,
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


class Screen:
    """Lines on standard error, with a progress bar below them on a terminal."""

    def __init__(self, total: int) -> None:
        self._console = Console(stderr=True, highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self.progress = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self._console)
        self._task = self.progress.add_task("measured runs", total=total)

    def print(self, line: str) -> None:
        """Print a line."""
        self._console.print(line, markup=False, soft_wrap=True)

    def advance(self) -> None:
        """Advance the progress bar by one run."""
        self.progress.advance(self._task)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of the command line."""

    path_names: Sequence[str]
    workloads: Sequence[Workload]
    rounds: int
    scale: float
    peers: Mapping[str, Peer]
    peers_port: int
    python: Interpreter
    output: Path


def measure(asked: Asked) -> str:
    """Run the benchmark; return the results as Markdown, and write them even if interrupted. Raises BenchError."""
    cores = take_cores()
    certificates = make_directory("headrace-bench-tls-")
    try:
        return _measure(asked, cores, tls_files(certificates.path))
    finally:
        certificates.remove()


def _measure(asked: Asked, cores: Cores, tls: TlsFiles) -> str:
    screen = Screen(asked.rounds * len(asked.workloads) * len(asked.path_names))
    made = []
    for name in asked.path_names:
        try:
            made.append(make_path(name, asked.peers, cores, tls, asked.python))
        except PathUnavailableError as error:
            screen.print(f"skipping {name}: {error}")
    for path in made:
        if isinstance(path, Peer):
            pin_process(path.pid, cores.proxy)
    plan = Plan(paths=made, workloads=asked.workloads, rounds=asked.rounds, sizes=scaled(asked.scale))
    runner = Runner(plan=plan, on_progress=screen.print, on_advance=screen.advance)
    described = about(plan, cores, asked.python)
    text = "nothing was measured: none of these paths supports any of these workloads\n"
    try:
        with screen.progress, make_broker(made, asked.peers_port, tls) as broker:
            runner.run(broker)
    finally:
        described["load after"] = f"{os.getloadavg()[0]:.2f}"
        if runner.samples:
            text = write(asked.output, Results(runner.samples), described)
    return text


@click.command(context_settings={"max_content_width": 120})
@click.option("--rounds", default=5, show_default=True, help="How often each workload runs on each path.")
@click.option(
    "--work",
    "--workload",
    "work_names",
    help=f"Comma-separated workloads of {','.join(work.name for work in WORKLOADS)}.  [default: all]",
)
@click.option(
    "--way",
    "--path",
    "path_names",
    help=f"Comma-separated paths of {','.join(ALL_PATHS)} and the peers.  [default: all but {', '.join(IF_NAMED)}]",
)
@click.option(
    "--scale", default=1.0, show_default=True, help="Factor by which the size of each workload is multiplied."
)
@click.option("--quick", is_flag=True, help=f"A smoke test: one round, --scale {QUICK_SCALE}. Not for comparisons.")
@click.option("--peer", "peers", multiple=True, help="NAME=HOST:PORT:PID of a running Kafka proxy.")
@click.option("--relay", "relays", multiple=True, help="NAME=HOST:PORT:PID of a running TCP relay.")
@click.option(
    "--peers-port",
    default=PEERS_PORT,
    show_default=True,
    help="Port of the broker's listener for peers; those for relays have the ports after it.",
)
@click.option(
    "--python",
    default=sys.executable,
    help="The Python that runs Headrace, of the same version as this one.  [default: this one]",
)
@click.option(
    "--output",
    default=Path(".cache/bench"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The directory for bench.json, bench.md and bench.svg.",
)
def main(
    rounds: int,
    work_names: str | None,
    path_names: str | None,
    scale: float,
    quick: bool,
    peers: tuple[str, ...],
    relays: tuple[str, ...],
    peers_port: int,
    python: str,
    output: Path,
) -> None:
    """Run the same workloads on each path in turn, and compare throughput, latency, CPU and memory."""
    given = [read_peer(text, relays=True) for text in relays] + [read_peer(text, relays=False) for text in peers]
    theirs = [each.name for each in given]
    wanted = choose(work_names, [work.name for work in WORKLOADS], "work")
    try:
        chosen = THIS if python == sys.executable else interpreter(python)
    except BenchError as error:
        raise click.ClickException(str(error)) from error
    asked = Asked(
        path_names=choose(path_names, [*ALL_PATHS, *theirs], "path") if path_names else [*PATHS, *theirs],
        workloads=[work for work in WORKLOADS if work.name in wanted],
        rounds=1 if quick else rounds,
        scale=QUICK_SCALE if quick else scale,
        peers=make_peers(given, peers_port),
        peers_port=peers_port,
        python=chosen,
        output=output,
    )
    try:
        print(measure(asked))
    except BenchError as error:
        raise click.ClickException(str(error)) from error
    print(f"written to {output}: {MARKDOWN_FILE}, {JSON_FILE}, {PLOT_FILE}")


if __name__ == "__main__":
    main()
