"""Running inputs: the checks around a target, the corpus, and new inputs without coverage.

A corpus file has one input per line: its kind and name, and the bytes in hexadecimal. ``seed`` inputs are messages of
real clients and brokers, or typical texts; ``found`` ones showed a mistake, which the name describes.
"""

from __future__ import annotations

import logging
import random
import signal
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from tests.faults.protocol.mutations import MUTATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from random import Random
    from types import FrameType

    from tests.fuzzing.targets import Target

CORPUS: Final = Path(__file__).with_name("corpus")
CACHE: Final = Path(__file__).parents[2] / ".cache" / "fuzzing"
"""Inputs that reached new code in former runs, and the results of the last one."""
FOUND: Final = CACHE / "found"
LOGS: Final = CACHE / "logs"
LONGEST_S: Final = 1.0
"""Processor time that an input may take."""
USUAL_LENGTH: Final = 2048
"""Limit in bytes for most new inputs."""
LONGEST_WIRE_INPUT: Final = 64 * 1024
"""Limit in bytes for some new inputs of targets that read what a network connection brings."""
WIRE_TARGETS: Final = frozenset(
    (
        *("frames", "request_heads", "reply_heads", "produce_walk", "fetch_walk", "fetched_topics_walk"),
        *("produce_reply", "codec", "rewriting", "offered_versions", "mutations", "lookups", "refusals", "tokens"),
        *("alterations", "quota_filters", "sasl_names", "sasl_observers", "relays", "logins", "admin_http"),
        *("proxy_header", "server_names", "certificates", "oauth_messages", "oauth_tokens"),
        *("sasl_servers", "sasl_clients", "native_requests", "native_replies"),
    )
)


_began_s = 0.0
"""The thread's processor time when the present input began, in seconds."""


class SlowInputError(BaseException):
    """An input took longer than `LONGEST_S`. Not an ``Exception``, so that no target catches it."""


@contextmanager
def checks() -> Iterator[None]:
    """Limit the processor time of inputs, and switch logging off, while targets run in this thread."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    handler = signal.signal(signal.SIGPROF, _too_slow)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        structlog.configure(**before)


def _too_slow(_signal: int, _frame: FrameType | None) -> None:
    """Raise if this thread used the time, and not others, such as those of a JVM that earlier tests have started."""
    if time.thread_time() - _began_s >= LONGEST_S:
        raise SlowInputError(f"more than {LONGEST_S} s of processor time")


def run_input(target: Target, data: bytes) -> None:
    """Run one input, inside `checks`. The exception of a finding has the input as a note.

    A slow input runs once more: on a virtual machine, time of other machines may count as the thread's.
    """
    try:
        _run_once(target, data)
    except SlowInputError:
        _run_once(target, data)


def _run_once(target: Target, data: bytes) -> None:
    global _began_s
    _began_s = time.thread_time()
    # Repeated, since an exception that is raised in a callback of the garbage collector is lost.
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S, LONGEST_S)
    try:
        target(data)
    except BaseException as error:
        error.add_note(f"input of {target.__name__}: {data.hex()}")
        raise
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def corpus(name: str) -> dict[str, bytes]:
    """Return the inputs of a target by their kind and name."""
    path = CORPUS / f"{name}.txt"
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    inputs: dict[str, bytes] = {}
    for line in lines:
        kind, label, *text = line.split(" ")
        inputs[f"{kind} {label}"] = bytes.fromhex("".join(text))
    return inputs


def write_corpus(name: str, inputs: dict[str, bytes]) -> None:
    """Write the inputs of a target, each once."""
    by_content = {content: label for label, content in reversed(inputs.items())}
    lines = [f"{label} {content.hex()}".rstrip() + "\n" for content, label in by_content.items()]
    (CORPUS / f"{name}.txt").write_text("".join(sorted(lines)), encoding="ascii")


def longest_input(name: str) -> int:
    """Return the limit in bytes for new inputs of a target."""
    return LONGEST_WIRE_INPUT if name in WIRE_TARGETS else USUAL_LENGTH


def new_input(source: Random, known: Sequence[bytes], longest: int = USUAL_LENGTH) -> bytes:
    """Return random bytes, or an input of the corpus with some mutations; one in twenty is up to ``longest`` bytes."""
    if not known or source.random() < 0.3:
        return source.randbytes(source.choice((8, 32, 128, 512)))
    data = bytearray(source.choice(known))
    if longest > USUAL_LENGTH and source.random() < 0.05:
        while len(data) < longest and source.random() < 0.98:
            data += source.choice(known) or source.randbytes(512)
    else:
        longest = USUAL_LENGTH
    for _ in range(source.choice((1, 1, 2, 4, 8))):
        if not data:
            data += source.randbytes(8)
        source.choice(MUTATIONS)(source, data)
    return bytes(data[:longest])


def run_new_inputs(name: str, target: Target, seed: int, *, seconds: float) -> int:
    """Run new inputs for some seconds of processor time; return how many there were."""
    source, known, longest = random.Random(seed), list(corpus(name).values()), longest_input(name)  # noqa: S311
    end_s = time.thread_time() + seconds
    done = 0
    with checks():
        while time.thread_time() < end_s:
            run_input(target, new_input(source, known, longest))
            done += 1
    return done
