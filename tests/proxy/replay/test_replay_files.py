"""``headrace replay``: files, pipes and terminals, and traces larger than memory."""

from __future__ import annotations

import functools
import io
import json
import os
import pty
import re
import select
import subprocess
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from headrace.proxy.cli import main
from headrace.proxy.replay.replay import replay
from headrace.quota_callbacks.buckets.client_quotas import IDLE_EXPIRY_MS, ClientQuotas
from headrace.quota_callbacks.records.replay import Replay, Usage
from headrace.quota_callbacks.records.trace_lines import parse, read, read_windows

if TYPE_CHECKING:
    from collections.abc import Iterator

from tests.proxy.replay.replay_traces import (
    GOOD,
    HEADRACE,
    Entry,
    alter,
    error_of,
    run,
    text,
    throttles,
    use,
    window,
)


def test_output_is_replaced_in_one_step_and_keeps_its_mode(tmp_path: Path) -> None:
    trace, output, link = tmp_path / "trace.jsonl", tmp_path / "out.jsonl", tmp_path / "link"
    output.write_text("old")
    output.chmod(0o640)
    link.symlink_to(output)
    inode = output.stat().st_ino
    trace.write_text(text(window(), GOOD))
    result = CliRunner().invoke(main, ["replay", str(trace), "--output", str(link)])
    assert (result.exit_code, result.stdout) == (0, "")
    assert json.loads(output.read_text()) == {**GOOD, "throttle_time_ms": 0, "accepted": True}
    assert output.stat().st_ino != inode
    assert output.stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "out.jsonl", "trace.jsonl"]
    assert link.is_symlink()


def test_a_new_output_has_the_mode_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    run(text(window(), GOOD), "--output", str(tmp_path / "out"))
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("existed", [True, False])
def test_a_bad_line_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path, *, existed: bool) -> None:
    output = tmp_path / "out.jsonl"
    if existed:
        output.write_text("old")
    lines = [GOOD] * 50_000  # larger than any buffer, so some lines have been written
    result = run(text(window(), *lines, {**GOOD, "t": 4}), "--output", str(output))
    assert result.exit_code == 1
    assert "line 50002: t is 4" in result.stderr
    assert [each.read_text() for each in tmp_path.iterdir()] == (["old"] if existed else [])


def test_nothing_is_on_standard_output_after_a_bad_line_however_late() -> None:
    assert error_of(window(), *[GOOD] * 50_000, "x").startswith("line 50002: not JSON")


def test_a_trace_can_be_its_own_output(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(text(window(), *[GOOD] * 10_000))
    assert CliRunner().invoke(main, ["replay", str(trace), "--output", str(trace)]).exit_code == 0
    assert len(trace.read_text().splitlines()) == 10_000


def test_a_device_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run(text(window(), GOOD), "--output", str(pipe)).exit_code == 0
        assert json.loads(os.read(reader, 1000))["accepted"] is True
    finally:
        os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no-such-file",), "cannot replay no-such-file: No such file or directory"),
        (("-", "--output", "/no/such/directory/out"), "cannot replay -: No such file or directory: /no/such/directory"),
    ],
)
def test_missing_files(arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(main, ["replay", *arguments], input=text(window()))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"headrace: {message}")


# --- as a process ---


def test_a_broken_pipe_is_no_traceback(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(text(window(), *[GOOD] * 5000))
    with subprocess.Popen([HEADRACE, "replay", trace], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        output = process.stderr.read()
        assert process.wait(timeout=60) == 1
    assert output == b""


@pytest.mark.parametrize("piped", [True, False])
def test_a_terminal_gets_a_progress_bar(tmp_path: Path, *, piped: bool) -> None:
    trace = tmp_path / "trace.jsonl"
    content = text(window(), *[GOOD] * 20_000)
    trace.write_text(content)
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [HEADRACE, "replay", "-" if piped else trace, "--output", tmp_path / "out"],
            stdin=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
        )
        os.close(theirs)
        with process:
            process.communicate(content.encode() if piped else b"", timeout=60)
        output = b"".join(_read_all(ours)).decode()
    finally:
        os.close(ours)
    assert process.returncode == 0
    assert "replaying" in output
    assert (str(len(content)) if piped else "100%") in output
    assert "20,001 lines replayed" in output


def _read_all(terminal: int) -> Iterator[bytes]:
    while select.select([terminal], [], [], 10)[0]:
        try:
            yield os.read(terminal, 65_536)
        except OSError:  # the other side is closed and all is read
            return


def test_no_terminal_no_progress_bar() -> None:
    assert "replaying" not in run(text(window(), *[GOOD] * 20_000)).stderr


def test_help_shows_a_trace_that_runs() -> None:
    result = CliRunner().invoke(main, ["replay", "--help"])
    shown = [line.strip() for line in result.stdout.splitlines() if line.strip().startswith("{")]
    assert throttles(*map(json.loads, shown)) == [1000]


PAGE = (Path(__file__).parents[3] / "docs" / "replay.md").read_text(encoding="utf-8")


def test_the_page_shows_what_happens(tmp_path: Path) -> None:
    """The command on the page, run with the page's trace, prints the page's answers and summary."""
    command, trace, answer, summary = re.findall(r"^```[a-z]*\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "trace.jsonl").write_text(trace)
    arguments = [str(tmp_path / each) if each.endswith("jsonl") else each for each in command.split()[1:]]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0
    assert (tmp_path / "decided.jsonl").read_text() == answer
    assert re.sub(r"in [0-9.]+ s;", "in 0.0 s;", result.stderr) == summary


# --- size ---


class _Endless(io.RawIOBase):
    """A trace of ``lines`` usage lines that is generated while it is read."""

    def __init__(self, lines: int) -> None:
        self._lines = self._make(lines)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while len(self._rest) < len(buffer) and (line := next(self._lines, b"")):
            self._rest += line
        part, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    @staticmethod
    def _make(lines: int) -> Iterator[bytes]:
        rates = {"producer_byte_rate": 1000, "controller_mutation_rate": 1, "producer_ids_rate": 5}
        yield text(window(), alter(0, {"user": None}, **rates)).encode()
        for n in range(lines):
            op = ("produce", "controller_mutation", "producer_id")[n % 3]
            yield text(use(n * 50, op, n % 5000, user=f"u{n % 10}", client_id=f"c{n}", strict=False)).encode()


class _Counting(io.RawIOBase):
    written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.written += len(data)
        return len(data)


@pytest.mark.exhaustive
def test_memory_does_not_grow_with_the_trace() -> None:
    """Three times as many lines, each with another client id, use the same ten buckets of their users."""
    peaks = []
    for lines in (15_000, 45_000):
        trace, out = io.BufferedReader(_Endless(lines)), _Counting()
        tracemalloc.start()
        try:
            summary = replay(trace, "endless", out)  # type: ignore[arg-type]
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert summary.lines == lines + 2
        assert out.written > 100 * lines
    assert peaks[1] - peaks[0] < 500_000


def test_buckets_of_unused_names_are_dropped() -> None:
    replaying = Replay(read_windows(window()))
    replaying.alter(_read(alter(0, {"client-id": None}, producer_byte_rate=1000)))
    for n in range(1000):
        replaying.charge(_usage(use(n * 60_000, "produce", 1, client_id=f"c{n}")))
    assert len(replaying.quotas) <= IDLE_EXPIRY_MS // 60_000 + 1
    assert replaying.expired == 1000 - len(replaying.quotas)


def _read(entry: Entry) -> Any:
    return read(parse(json.dumps(entry)))


def _usage(entry: Entry) -> Usage:
    usage = _read(entry)
    assert isinstance(usage, Usage)
    return usage


def test_a_warning_reports_shared_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one bucket, ``v`` and ``w`` share another one, and ``u`` keeps what it owes."""
    monkeypatch.setattr(
        "headrace.quota_callbacks.records.replay.ClientQuotas", functools.partial(ClientQuotas, max_buckets=1)
    )
    quota = alter(0, {"user": None}, producer_byte_rate=1000)
    uses = [use(0, "produce", n, user=user) for user, n in (("u", 10_001), ("v", 10_000), ("w", 1), ("u", 1))]
    result = run(text(window(), quota, *uses))
    assert [json.loads(line)["throttle_time_ms"] for line in result.stdout.splitlines()] == [1, 0, 1, 2]
    assert "warning: 2 clients without a bucket of their own, because there were too many" in result.stderr
