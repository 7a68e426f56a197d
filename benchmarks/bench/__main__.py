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

from benchmarks.bench import ways
from benchmarks.bench.broker import BenchBroker
from benchmarks.bench.cores import Cores, pin_process, take_cores
from benchmarks.bench.errors import BenchError, WayUnavailableError
from benchmarks.bench.figures import Results
from benchmarks.bench.interpreters import THIS, Interpreter, interpreter
from benchmarks.bench.peers import Haproxy, Kroxylicious
from benchmarks.bench.programs import Program
from benchmarks.bench.report import JSON_FILE, MARKDOWN_FILE, PLOT_FILE, write
from benchmarks.bench.runner import Plan, Runner
from benchmarks.bench.ways import Direct, Peer, Way, headrace_way
from benchmarks.bench.works import WORKS, Work, scaled

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Mapping, Sequence

WAYS: Final = (
    ways.DIRECT,
    ways.HAPROXY,
    ways.KROXYLICIOUS,
    ways.HEADRACE,
    ways.HEADRACE_QUOTAS,
    ways.HEADRACE_COMPILED,
    ways.HEADRACE_2_WORKERS,
    ways.HEADRACE_TRACING,
)
"""Unless --way says otherwise."""
ALL_WAYS: Final = (*WAYS[:2], ways.HAPROXY_SPLICE, *WAYS[2:])
QUICK_SCALE: Final = 0.02
SINK_START_S: Final = 20.0
PEERS_PORT: Final = 29092
"""Below the kernel's ephemeral ports, and above the testbed's lowest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A --peer or --relay, as it was typed."""

    name: str
    address: tuple[str, int]
    pid: int
    relays: bool


def read_peer(text: str, *, relays: bool) -> Given:
    """NAME=HOST:PORT:PID. Raises BadParameter."""
    name, _, rest = text.partition("=")
    parts = rest.rsplit(":", 2)
    if not name or len(parts) != 3 or not parts[0] or not parts[1].isdecimal() or not parts[2].isdecimal():
        raise click.BadParameter(f"{text!r} is not NAME=HOST:PORT:PID, as in mine=127.0.0.1:9192:4711")
    if name in ALL_WAYS:
        raise click.BadParameter(f"{name} is the name of a way that is there already")
    return Given(name=name, address=(parts[0], int(parts[1])), pid=int(parts[2]), relays=relays)


def choose(wanted: str | None, known: Sequence[str], what: str) -> list[str]:
    """The names of a comma-separated list, in the known order; all where none is given. Raises BadParameter."""
    names = [name.strip() for name in wanted.split(",")] if wanted else list(known)
    if strange := [name for name in names if name not in known]:
        raise click.BadParameter(f"no {what} {', '.join(strange)}; there are {', '.join(known)}")
    return [name for name in known if name in names]


def start_sink(stack: contextlib.ExitStack) -> str:
    """A receiver of traces on the work's core; its address."""
    sink = Program("the receiver of traces", [sys.executable, "-u", "-m", "benchmarks.bench.otlp_sink"])
    stack.callback(sink.close)
    return f"http://127.0.0.1:{sink.wait_for_output(chr(10), SINK_START_S).strip()}"


def make_way(
    name: str, peers: Mapping[str, Peer], cores: Cores, told: Callable[[str], None], python: Interpreter = THIS
) -> Way:
    """The way of that name; ``told`` is told what takes long. Raises WayUnavailableError."""
    if name in peers:
        return peers[name]
    match name:
        case ways.DIRECT:
            return Direct()
        case ways.HAPROXY:
            return Haproxy(name, cores)
        case ways.HAPROXY_SPLICE:
            return Haproxy(name, cores, splice=True)
        case ways.KROXYLICIOUS:
            return Kroxylicious(cores)
    return headrace_way(name, cores, start_sink, told, python)


def make_peers(given: Sequence[Given], first_port: int) -> dict[str, Peer]:
    """By name; `given` has the relays first, for which the broker listens at `first_port` + 1 and so on."""
    return {
        each.name: Peer(name=each.name, address=each.address, pid=each.pid, relays=each.relays, fixed_port=port)
        for port, each in enumerate(given, first_port + 1)
    }


def make_broker(made: Sequence[Way], peers_port: int) -> BenchBroker:
    """With the listeners that these ways need."""
    fixed = {way.name: way.fixed_port for way in made if isinstance(way, Peer) and way.relays}
    if any(isinstance(way, Peer) for way in made):
        fixed["peers that speak Kafka"] = peers_port
    relays = {way.name: way.relay_address for way in made if way.relay_address is not None}
    return BenchBroker(relays, fixed)


def about(plan: Plan, cores: Cores, python: Interpreter = THIS) -> dict[str, Any]:
    """How the run is made, for those who read its figures later."""
    return {
        "ways": ", ".join(way.name for way in plan.ways),
        "rounds": plan.rounds,
        "sizes": asdict(plan.sizes),
        "cores": f"broker and clients on {cores.work}, the proxy on {cores.proxy}",
        "system": f"Linux {platform.release()}",
        "Headrace's Python": python.version,
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


class Screen:
    """Lines as things happen, and below them, on a terminal, how far it is."""

    def __init__(self, total: int) -> None:
        self._console = Console(stderr=True, highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self.progress = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self._console)
        self._task = self.progress.add_task("measured runs", total=total)

    def told(self, line: str) -> None:
        """Print a line."""
        self._console.print(line, markup=False, soft_wrap=True)

    def advanced(self) -> None:
        """One more run is done."""
        self.progress.advance(self._task)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line asks for."""

    way_names: Sequence[str]
    works: Sequence[Work]
    rounds: int
    scale: float
    peers: Mapping[str, Peer]
    peers_port: int
    python: Interpreter
    output: Path


def measure(asked: Asked) -> str:
    """Do it; the Markdown of what came out, written also when the run is broken off. Raises BenchError."""
    cores = take_cores()
    screen = Screen(asked.rounds * len(asked.works) * len(asked.way_names))
    made = []
    for name in asked.way_names:
        try:
            made.append(make_way(name, asked.peers, cores, screen.told, asked.python))
        except WayUnavailableError as error:
            screen.told(f"without {name}: {error}")
    for way in made:
        if isinstance(way, Peer):
            pin_process(way.pid, cores.proxy)
    plan = Plan(ways=made, works=asked.works, rounds=asked.rounds, sizes=scaled(asked.scale))
    runner = Runner(plan=plan, told=screen.told, advanced=screen.advanced)
    described = about(plan, cores, asked.python)
    text = "nothing was measured: none of these works is done by any of these ways\n"
    try:
        with screen.progress, make_broker(made, asked.peers_port) as broker:
            runner.run(broker)
    finally:
        described["load after"] = f"{os.getloadavg()[0]:.2f}"
        if runner.samples:
            text = write(asked.output, Results(runner.samples), described)
    return text


@click.command(context_settings={"max_content_width": 120})
@click.option("--rounds", default=5, show_default=True, help="How often each work is done each way.")
@click.option("--work", "work_names", help=f"Some of {','.join(work.name for work in WORKS)}. All unless given.")
@click.option("--way", "way_names", help=f"Some of {','.join(ALL_WAYS)} and the peers. All but {ways.HAPROXY_SPLICE}.")
@click.option("--scale", default=1.0, show_default=True, help="Times how much is done in a run.")
@click.option("--quick", is_flag=True, help=f"A smoke run: one round, --scale {QUICK_SCALE}. Its figures mean little.")
@click.option("--peer", "peers", multiple=True, help="NAME=HOST:PORT:PID of a running proxy that speaks Kafka.")
@click.option("--relay", "relays", multiple=True, help="The same for one that relays bytes and rewrites no addresses.")
@click.option(
    "--peers-port",
    default=PEERS_PORT,
    show_default=True,
    help="Where the broker listens for the peers; for the first of them that is a relay 1 above, and so on.",
)
@click.option(
    "--python",
    default=sys.executable,
    help="The Python that runs Headrace, of this one's version. This one unless given.",
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
    way_names: str | None,
    scale: float,
    quick: bool,
    peers: tuple[str, ...],
    relays: tuple[str, ...],
    peers_port: int,
    python: str,
    output: Path,
) -> None:
    """Do the same work through each way in turn, and say what each cost."""
    given = [read_peer(text, relays=True) for text in relays] + [read_peer(text, relays=False) for text in peers]
    theirs = [each.name for each in given]
    wanted = choose(work_names, [work.name for work in WORKS], "work")
    try:
        chosen = THIS if python == sys.executable else interpreter(python)
    except BenchError as error:
        raise click.ClickException(str(error)) from error
    asked = Asked(
        way_names=choose(way_names, [*ALL_WAYS, *theirs], "way") if way_names else [*WAYS, *theirs],
        works=[work for work in WORKS if work.name in wanted],
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
