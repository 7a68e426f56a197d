"""The summary of a run: the measured rates, and the limits that did not hold. Pure; every number is from the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from examples.demo.scenario import MIB, WINDOW_S

if TYPE_CHECKING:
    from collections.abc import Sequence

TOLERATED: Final = 1.10
"""Tolerated multiple of a limit, for the requests that exceed it (see `scenario`) and for Kafka's arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOutcome:
    """The measurements of one client."""

    client_id: str
    library: str
    verb: str
    limit: float | None
    """Bytes per second; `None` for no quota."""
    rate: float
    """Bytes per second over the evaluated span."""
    muted_share: float
    """Muted share of the evaluated span, over all its connections."""
    throttled_requests: int
    longest_throttle_s: float
    throttle_times: int | None
    """Throttle times that the client received; `None` if its library does not report them."""
    most_in_flight: int
    ignores_throttling: bool
    lost_connections: int
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The measurements of a run."""

    smoothing_s: float
    """Time over which means over Kafka's window were averaged; the evaluated span is this and the window."""
    clients: Sequence[ClientOutcome]
    throttled_requests: int
    proxy_errors: int
    enforcing: bool = True


def faults(outcome: Outcome) -> list[str]:
    """Return a clause for each failure; empty if there is none."""
    found = []
    for client in outcome.clients:
        if client.problem is not None:
            found.append(f"{client.client_id} {client.problem}")
        if client.limit is not None and _overshot(client):
            over = client.rate / client.limit - 1
            found.append(f"{client.client_id} was {over:.0%} above its limit of {mib(client.limit)} MiB/s")
        if client.rate <= 0:
            found.append(f"{client.client_id} {client.verb} nothing")
        if client.lost_connections:
            found.append(f"{_count(client.lost_connections, 'connection')} of {client.client_id} were closed")
    if not outcome.enforcing:
        found.append("the enforcement of quotas was switched off")
    if outcome.proxy_errors:
        found.append(f"the proxy counted {_count(outcome.proxy_errors, 'connection error')}")
    return found


def paragraph(outcome: Outcome) -> str:
    """Return the summary of a run."""
    span_s = WINDOW_S + outcome.smoothing_s
    measured = f"means over Kafka's {WINDOW_S} s window, averaged over {outcome.smoothing_s:.0f} s"
    sentences = [f"This is what came through Headrace in the last {span_s:.0f} s ({measured})."]
    sentences += [_sentence(client) for client in outcome.clients]
    disconnected = sum(client.lost_connections for client in outcome.clients)
    lost = f"{_count(disconnected, 'connection')} ended" if disconnected else "no client was disconnected"
    sentences.append(f"{_count(outcome.throttled_requests, 'request')} were throttled in all; {lost}.")
    found = faults(outcome)
    if found:
        sentences.append(f"FAILED: {'; '.join(found)}.")
    else:
        sentences.append("Every limit held, and no client reported an error.")
    return " ".join(sentences)


def mib(rate: float) -> str:
    """Return bytes as MiB, with a suitable number of digits: 78, 2.03, 2."""
    value = rate / MIB
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}".removesuffix(".00")


def _sentence(client: ClientOutcome) -> str:
    name = f"{client.client_id} ({client.library})"
    if client.limit is None:
        return f"{name} had no limit and {client.verb} {mib(client.rate)} MiB/s."
    text = f"{name} was allowed {mib(client.limit)} MiB/s and {client.verb} {mib(client.rate)} MiB/s"
    if not client.throttled_requests:
        return f"{text}, without ever reaching its limit."
    text += (
        f"; its connections were muted {client.muted_share:.0%} of the time,"
        f" for up to {client.longest_throttle_s:.1f} s at once."
    )
    if client.throttle_times is None or not client.throttle_times:
        return text
    received = f" It received {_count(client.throttle_times, 'throttle time')}"
    if not client.ignores_throttling:
        return f"{text}{received} and complied with them."
    flight = f", with up to {client.most_in_flight:,} requests in flight" if client.most_in_flight else ""
    held = ", but stayed within its limit" if not _overshot(client) else ""
    return f"{text}{received} and ignored them{flight}{held}."


def _overshot(client: ClientOutcome) -> bool:
    return client.limit is not None and client.rate > TOLERATED * client.limit


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
