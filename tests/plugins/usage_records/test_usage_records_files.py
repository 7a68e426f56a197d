"""Usage records in files: rotated, removed, completed for processes that have ended, and whole lines alone."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import subprocess
import threading
from pathlib import Path

import pytest

from headrace.plugins.usage_records.files import FileSink
from headrace.plugins.usage_records.folder import finished_files


def sink(folder: Path, instance: str = "a-1", **limits: int) -> FileSink:
    return FileSink(str(folder), instance, **({"rotate_s": 60, "rotate_bytes": 10_000, "keep_bytes": 100_000} | limits))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_has_its_name_when_it_is_complete(tmp_path: Path) -> None:
    files = sink(tmp_path / "made")
    files.write([b"{0}", b"{1}"], [], 0, 100.0)
    assert names(tmp_path / "made") == [".usage-a-1-000000000000.part"]
    files.write([b"{2}"], [], 2, 130.0)
    files.tick(159.9)
    assert names(tmp_path / "made") == [".usage-a-1-000000000000.part"]
    files.tick(160.0)
    (path,) = (tmp_path / "made").iterdir()
    assert path.name == "usage-a-1-000000000000-000000000002.jsonl"
    assert path.read_bytes() == b"{0}\n{1}\n{2}\n"
    files.write([b"{3}"], [], 3, 161.0)
    files.close()
    assert names(tmp_path / "made")[1] == "usage-a-1-000000000003-000000000003.jsonl"


def test_a_large_file_is_finished_at_once(tmp_path: Path) -> None:
    files = sink(tmp_path, rotate_bytes=8)
    files.write([b"12345678"], [], 0, 0.0)
    files.tick(0.0)
    assert names(tmp_path) == ["usage-a-1-000000000000-000000000000.jsonl"]


def test_what_a_dead_writer_left_is_finished_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    living = sink(tmp_path, "alive-1")
    living.write([b"{0}"], [], 0, 0.0)
    (tmp_path / ".usage-dead-1-000000000005.part").write_bytes(b'{"a":5}\n{"a":6}\n{"a')
    (tmp_path / ".usage-dead-1-000000000009.part").write_bytes(b'{"a')
    sink(tmp_path, "next-1")
    assert names(tmp_path) == [".usage-alive-1-000000000000.part", "usage-dead-1-000000000005-000000000006.jsonl"]
    assert (tmp_path / names(tmp_path)[1]).read_bytes() == b'{"a":5}\n{"a":6}\n'
    living.close()


def finished(folder: Path, count: int, size: int = 100) -> None:
    """Files of somebody's, the oldest first."""
    for number in range(count):
        path = folder / f"usage-old-1-{number:012}-{number:012}.jsonl"
        path.write_bytes(b"x" * size)
        os.utime(path, (number, number))


def test_the_oldest_files_are_removed_and_that_is_no_loss(tmp_path: Path) -> None:
    finished(tmp_path, 4)
    files = sink(tmp_path, keep_bytes=250)
    assert files.tick(0.0) == ()
    assert files.removed == 2
    assert names(tmp_path) == [f"usage-old-1-{number:012}-{number:012}.jsonl" for number in (2, 3)]


def test_what_others_have_removed_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look into the folder and the removal, another proxy removes the oldest two, and stats fail."""
    finished(tmp_path, 5)
    files = sink(tmp_path, keep_bytes=200)
    looked = finished_files(tmp_path)

    def looked_and_overtaken(folder: Path) -> list[tuple[int, str, int]]:
        for _, path, _ in looked[:2]:
            Path(path).unlink()
        return looked

    monkeypatch.setattr("headrace.plugins.usage_records.files.finished_files", looked_and_overtaken)
    files.tick(0.0)
    assert files.removed == 1
    assert len(names(tmp_path)) == 2


def test_two_proxies_of_a_folder_remove_and_count_each_file_once(tmp_path: Path) -> None:
    finished(tmp_path, 300)
    proxies = [sink(tmp_path, f"p{number}-1", keep_bytes=100) for number in range(2)]
    begin = threading.Barrier(2)
    errors: list[BaseException] = []

    def look(files: FileSink) -> None:
        begin.wait()
        try:
            files.tick(0.0)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=look, args=(files,)) for files in proxies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sum(files.removed for files in proxies) == 299
    assert len(names(tmp_path)) == 1


def test_the_folder_is_looked_at_after_a_file_was_finished_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sink(tmp_path, rotate_s=60)
    files.tick(0.0)
    looks: list[Path] = []
    monkeypatch.setattr(
        "headrace.plugins.usage_records.files.finished_files", lambda folder: looks.append(folder) or []
    )
    monkeypatch.setattr("headrace.plugins.usage_records.files.journals", lambda folder: looks.append(folder) or [])
    files.write([b"{0}"], [], 0, 0.0)
    for second in range(60):
        files.tick(float(second))
    assert looks == []
    for second in range(60, 120):
        files.tick(float(second))
    assert looks == [tmp_path, tmp_path]


def test_a_living_proxy_takes_up_what_another_left_when_it_finishes_a_file(tmp_path: Path) -> None:
    files = sink(tmp_path)
    files.write([b"{0}"], [], 0, 0.0)
    (tmp_path / ".usage-dead-1-000000000005.part").write_bytes(b'{"a":5}\n{"a')
    files.tick(60.0)
    assert "usage-dead-1-000000000005-000000000005.jsonl" in names(tmp_path)


def test_a_file_that_was_taken_for_a_dead_writers_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a writer's open and its lock, another process that starts in the folder removes the empty file."""
    files, real = sink(tmp_path), fcntl.flock

    def overtaken(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        sink(tmp_path, "starts-1")
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", overtaken)
    files.write([b"{0}"], [], 0, 0.0)
    files.close()
    assert names(tmp_path) == ["usage-a-1-000000000000-000000000000.jsonl"]


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = sink(tmp_path)
    files.write([b"{0}"], [], 0, 0.0)
    real = os.write

    def full(descriptor: int, data: memoryview) -> int:
        if len(data) < 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[:5])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        files.write([b"{1234567}"], [], 1, 0.0)
    monkeypatch.undo()
    files.write([b"{2}"], [], 1, 0.0)
    files.close()
    (path,) = tmp_path.iterdir()
    assert path.read_bytes() == b"{0}\n{2}\n"


def test_the_pages_way_to_name_what_a_killed_proxy_left(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "usage-records.md").read_text(encoding="utf-8")
    ((first, rest),) = re.findall(r"```sh\n(cd .*?)\n(.*?)```", page, re.DOTALL)
    assert first == "cd /var/lib/headrace/usage"
    (tmp_path / ".usage-dead-1-000000000005.part").write_bytes(b'{"a":5}\n{"a')
    subprocess.run(["sh", "-ec", rest], cwd=tmp_path, check=True)
    assert names(tmp_path) == ["usage-dead-1-000000000005-killed.jsonl"]
    assert [path for _, path, _ in finished_files(tmp_path)] == [str(path) for path in tmp_path.iterdir()]
