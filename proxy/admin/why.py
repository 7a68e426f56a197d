"""The output of ``headrace why``: ``/decisions`` grouped by entity and quota, with units, once or every second.

Called by the command line. Client ids and users are chosen by clients, so control characters in them are escaped.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.proxy.admin.client import AdminUnreachableError
from headrace.proxy.hooks.decisions import Kind
from headrace.quota_callbacks.definitions import BYTES_PER_SECOND
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.escaping import json_text, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Page = Mapping[str, Any]
    Row = Mapping[str, Any]

REFRESH_S: Final = 1.0
LINES_PER_GROUP: Final = 5
"""Muted connections, and clients, that are listed for each entity and quota; any others are only counted."""

_BYTE_RATES: Final = (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE)
_BINARY_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")
_WINDOWS: Final = {1: "a second", 60: "a minute", 3600: "an hour", 86400: "a day"}
_VERBS: Final = {
    Kind.THROTTLED: "throttled",
    Kind.HELD: "held",
    Kind.REFUSED: "refused",
    Kind.OBSERVED: "would have been throttled",
    Kind.DENIED: "denied",
}
_CLEAR: Final = "\x1b[H\x1b[2J"


def format_page(page: Page) -> Iterator[str]:
    """Yield the lines for a page: that enforcement is off, if so, and the groups of entity and quota.

    The groups are sorted by the number of muted connections and the age of the last decision.
    """
    if page.get("enforcement") is False:  # missing if the proxy is older than the command
        yield "enforcement is off: no request is throttled or refused until it is on again"
    groups: dict[tuple[str, str], _Group] = {}
    for row in page["waiting"]:
        _group_of(groups, row).waiting.append(row)
    for row in page["decisions"]:
        _group_of(groups, row).decisions.append(row)
    if not groups:
        yield "no request was throttled or refused"
    for (entity, quota), group in sorted(groups.items(), key=lambda each: each[1].order()):
        yield from group.lines(entity, quota)


def _group_of(groups: dict[tuple[str, str], _Group], row: Row) -> _Group:
    return groups.setdefault((row.get("entity", ""), row["quota"]), _Group())


class _Group:
    """The muted connections and the decisions for one entity and quota; decisions newest first."""

    def __init__(self) -> None:
        self.waiting: list[Row] = []
        self.decisions: list[Row] = []

    def order(self) -> tuple[int, float]:
        """Return the sort key of the group."""
        return -len(self.waiting), self.decisions[0]["age_s"] if self.decisions else 0.0

    def lines(self, entity: str, quota: str) -> Iterator[str]:
        """Yield the group's lines: the quota, the muted connections and the clients."""
        head = ", ".join(printable(each) for each in (entity, quota) if each)
        yield f"{head}: {in_units(self.decisions[0])}" if self.decisions else head
        yield from _first(self._waiting(), "connections")
        yield from _first(self._clients(), "clients")

    def _waiting(self) -> Iterator[str]:
        for row in sorted(self.waiting, key=lambda row: -row["remaining_ms"]):
            yield f"waiting now: {_client(row)}, {duration(row['remaining_ms'])} more"

    def _clients(self) -> Iterator[str]:
        by_client: dict[tuple[str, str, str], list[Row]] = {}
        for row in self.decisions:
            by_client.setdefault((row["kind"], row["user"], row["client_id"]), []).append(row)
        for rows in by_client.values():
            last = rows[0]
            times = "once" if len(rows) == 1 else f"{len(rows)} times, last"
            throttled = "" if last["kind"] == Kind.DENIED else f" for {duration(last['throttle_ms'])}"
            yield (
                f"{_VERBS[Kind(last['kind'])]} {times} {duration(last['age_s'] * 1000)} ago"
                f"{throttled}: {printable(last['request'])} of {_client(last)}"
            )


def _first(lines: Iterable[str], what: str) -> Iterator[str]:
    found = list(lines)
    for line in found[:LINES_PER_GROUP]:
        yield f"  {line}"
    if len(found) > LINES_PER_GROUP:
        yield f"  and {len(found) - LINES_PER_GROUP} more {what}"


def _client(row: Row) -> str:
    client_id = printable(row["client_id"]) or "(none)"
    return f"user {printable(row['user'])}, client id {client_id} at {printable(row['peer'])}"


# --- units ---


def in_units(row: Row) -> str:
    """Return the observed value and the limit of a decision, in the quota's unit; of a denial the rule."""
    quota, observed, limit = row["quota"], row["observed"], row["limit"]
    if row["kind"] == Kind.DENIED:
        return printable(row.get("rule") or "")
    unit = row.get("unit", "")  # missing, like others below, if the proxy is older than the command
    if unit == BYTES_PER_SECOND or quota in _BYTE_RATES:
        return f"{_bytes(observed)}/s of {_bytes(limit)}/s"
    if quota == QuotaKey.REQUEST_PERCENTAGE:
        return f"{observed:.3g} % of a thread of {limit:.6g} %"
    if quota == QuotaKey.CONTROLLER_MUTATION_RATE:
        return f"{_of(row, 'partitions/s')}, {_tokens(observed)}"
    if quota == QuotaKey.PRODUCER_IDS_RATE:
        window_s = row.get("window_s", 1)
        window = _WINDOWS.get(window_s, f"in {window_s} s")
        return f"{_of(row, f'new producer ids {window}')}, {_tokens(observed)}"
    return f"{observed:.6g} of {limit:.6g} {printable(unit)}".rstrip()


def _of(row: Row, unit: str) -> str:
    rate = row.get("rate")
    return f"limit {row['limit']:.6g} {unit}" if rate is None else f"{rate:.3g} {unit} of {row['limit']:.6g}"


def _tokens(count: float) -> str:
    return f"{-count:.3g} tokens overdrawn" if count < 0 else f"{count:.3g} tokens left"


def _bytes(count: float) -> str:
    if count < 1024:
        return f"{count:.6g} B"
    power = min(int(math.log2(count)) // 10, len(_BINARY_UNITS))
    return f"{count / 1024**power:.2f} {_BINARY_UNITS[power - 1]}"


def duration(milliseconds: float) -> str:
    """Return a time in a readable unit: ``850 ms``, ``8.0 s``, ``12 min``, ``3.5 h``."""
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# --- refreshing ---


def watch(fetch: Callable[[], Page], *, as_json: bool, sleep: Callable[[float], None] = time.sleep) -> None:
    """Print the page that ``fetch`` returns every second until Ctrl-C.

    A terminal is refreshed in place; any other output receives snapshots. With ``as_json``, each page is one line.
    Raises `AdminUnreachableError` if the first page cannot be fetched. A later failure, such as during a restart of the
    proxy, is printed instead of the page, or with ``as_json`` nothing is.
    """
    page: Page | None = fetch()
    problem = ""
    try:
        while True:
            if as_json and page is not None:
                click.echo(json_text(page))
            elif not as_json:
                _show([problem] if page is None else list(format_page(page)))
            sys.stdout.flush()
            sleep(REFRESH_S)
            try:
                page = fetch()
            except AdminUnreachableError as error:
                page, problem = None, str(error)
    except KeyboardInterrupt:
        return


def _show(lines: list[str]) -> None:
    now = time.strftime("%H:%M:%S")
    if not sys.stdout.isatty():
        click.echo("\n".join([f"--- {now}", *lines]))
        return
    height = max(1, shutil.get_terminal_size().lines - 3)
    if len(lines) > height:
        lines = [*lines[:height], f"and {len(lines) - height} more lines"]
    click.echo("\n".join([f"{_CLEAR}{now}, every {REFRESH_S:g} s until Ctrl-C", *lines]))
