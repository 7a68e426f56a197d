"""Files that other users can see or have put in the way, and disks that are full: a real proxy's state and usage."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Final

import pytest
from structlog.testing import capture_logs

from headrace.plugins.usage_records.files import FileSink
from headrace.plugins.usage_records.options import UsageOptions
from headrace.plugins.usage_records.plugin import open_sink
from headrace.proxy.errors import StartupError
from headrace.proxy.server.bucket_state_file import BucketStateFile
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.kinds import RateBucket
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.options import read_options
from testbed.errors import TestbedError
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import eventually, unique
from tests.faults import messages
from tests.faults.raw_client import RawClient

if TYPE_CHECKING:
    from pathlib import Path

    from tests.shared_cluster import FirstBroker

SOMEBODY: Final = 12345
"""A user and group of this number need not exist."""
QUOTA: Final = '[[quotas]]\nentity = { client-id = "<default>" }\nrequest_percentage = 1000.0\n'


def config_of(folder: Path) -> str:
    """A configuration whose state and usage files are in ``folder``."""
    return (
        f'[quota.state]\nfile = "{folder}/state.sqlite"\ninterval = "1s"\n'
        f'[plugins.options.usage_records]\nfolder = "{folder}/usage"\n{QUOTA}'
    )


def sink_of(folder: Path) -> FileSink:
    return FileSink(str(folder), "proxy-1", rotate_s=60, rotate_bytes=10_000, keep_bytes=100_000)


def no_buckets() -> ClientQuotas:
    return ClientQuotas(
        windows=dict.fromkeys(QuotaKey, Window()), metric_tags=lambda *_: None, quota_limit=lambda *_: None
    )


async def opened(path: Path) -> BucketStateFile:
    return await BucketStateFile.open(str(path), no_buckets(), 0)


def modes_in(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in sorted(folder.rglob("*"))}


def use(proxy: ProxyProcess) -> None:
    """One request, which is charged to a bucket and recorded."""
    with RawClient(proxy.port, client_id=unique("user")) as client:
        client.call(messages.METADATA, 1, messages.NO_TOPICS)


def test_no_other_user_can_read_what_a_proxy_writes(kafka: FirstBroker, tmp_path: Path) -> None:
    with ProxyProcess(
        kafka.bootstrap_servers, config=config_of(tmp_path), command_prefix=("sh", "-c", 'umask 0; exec "$@"', "sh")
    ) as proxy:
        use(proxy)
        eventually(lambda: any(name.endswith(".part") for name in modes_in(tmp_path)), "a usage file")
        running = modes_in(tmp_path)
        assert proxy.stop() == 0
    ended = modes_in(tmp_path)
    assert {"state.sqlite", "state.sqlite-wal", "usage"} <= running.keys()
    assert any(name.endswith(".jsonl") for name in ended)
    assert {name for name, mode in (running | ended).items() if mode & 0o077} == set()


def test_a_proxy_does_not_follow_a_link_in_the_place_of_its_state(kafka: FirstBroker, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"")
    (tmp_path / "state.sqlite").symlink_to(target)
    with pytest.raises(TestbedError, match=r"cannot use .*is a symbolic link, which is not followed"):
        ProxyProcess(kafka.bootstrap_servers, config=config_of(tmp_path))
    assert target.read_bytes() == b""


@pytest.mark.parametrize("end", ["-wal", "-journal", "-shm"])
async def test_nor_a_link_in_the_place_of_a_file_beside_it(tmp_path: Path, end: str) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"")
    (tmp_path / f"state.sqlite{end}").symlink_to(target)
    with pytest.raises(StartupError, match=r"cannot use .*is a symbolic link, which is not followed"):
        await opened(tmp_path / "state.sqlite")
    assert target.read_bytes() == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
async def test_the_state_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    path.touch()
    os.chown(path, SOMEBODY, SOMEBODY)
    with pytest.raises(StartupError, match=f"belongs to another user, {SOMEBODY}"):
        await opened(path)


async def test_a_state_file_of_an_earlier_version_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    path.touch(mode=0o644)
    file = await opened(path)
    await file.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_state_file_with_a_second_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    path.touch()
    (tmp_path / "other").hardlink_to(path)
    with pytest.raises(StartupError, match="has a second name"):
        await opened(path)


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_others_have_put_among_the_usage_files_is_left_alone(tmp_path: Path, kind: str) -> None:
    """The file of a process that has ended is cut after its last line: not so the target of a link with such a name."""
    folder = tmp_path / "usage"
    folder.mkdir()
    target = tmp_path / "precious"
    target.write_text("one line\nand half a line")
    trap = folder / ".usage-dead-1-000000000000.part"
    match kind:
        case "link":
            trap.symlink_to(target)
        case "fifo":
            os.mkfifo(trap)
        case _:
            trap.mkdir()
    sink = sink_of(folder)
    sink.write([b"{}"], [], 0, 0.0)
    sink.close()
    assert target.read_text() == "one line\nand half a line"
    assert trap.is_symlink() or trap.is_fifo() or trap.is_dir()
    assert [path.name for path in folder.glob("*.jsonl")] == ["usage-proxy-1-000000000000-000000000000.jsonl"]


def test_a_link_in_the_place_of_the_next_usage_file_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "usage"
    sink = sink_of(folder)
    target = tmp_path / "precious"
    target.write_text("text\n")
    (folder / ".usage-proxy-1-000000000000.part").symlink_to(target)
    with pytest.raises(OSError, match="is a symbolic link, which is not followed"):
        sink.write([b"{}"], [], 0, 0.0)
    assert target.read_text() == "text\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is a member of every group")
def test_one_group_may_read_usage_files_if_it_is_set(tmp_path: Path) -> None:
    folder = tmp_path / "usage"
    options = UsageOptions.model_validate({"folder": str(folder), "group": str(SOMEBODY)})
    sink = open_sink(options, "proxy-1")
    sink.write([b"{}"], [], 0, 0.0)
    sink.close()
    (file,) = folder.glob("*.jsonl")
    for path, mode in ((file, 0o640), (folder, 0o750)):
        assert (path.stat().st_gid, stat.S_IMODE(path.stat().st_mode)) == (SOMEBODY, mode)


def test_a_group_that_does_not_exist_is_an_error_of_its_option() -> None:
    rule = r"plugins\.options\.usage_records\.group = \"no such\": there is no group 'no such'"
    with pytest.raises(ValueError, match=rule):
        read_options(UsageOptions, {"folder": "usage", "group": "no such"}, "usage_records")


async def test_a_folder_in_which_all_may_replace_files_is_warned_about(tmp_path: Path) -> None:
    reason = f"every user may replace files in {tmp_path}, which has mode 0777: run chmod o-w {tmp_path}"
    for mode, warned in ((0o777, [reason, reason]), (0o1777, []), (0o755, [])):
        tmp_path.chmod(mode)  # noqa: ASYNC240 -- nothing else runs
        with capture_logs() as lines:
            file = await opened(tmp_path / "state.sqlite")
            await file.close()
            sink_of(tmp_path).close()
        assert [line["reason"] for line in lines if "is not safe" in line["event"]] == warned


# --- a full disk ---


def test_a_full_disk_is_named_and_what_was_lost_is_recorded_once_there_is_room(
    kafka: FirstBroker, small_disk: Path
) -> None:
    """State is saved again and usage is recorded again as soon as there is room; the lost records are counted."""
    with ProxyProcess(kafka.bootstrap_servers, config=config_of(small_disk)) as proxy:
        filler = small_disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        eventually(lambda: use(proxy) or "cannot be saved" in proxy.log, "a state that cannot be saved")
        assert "database or disk is full (SQLITE_FULL)" in proxy.wait_for_log("bucket state cannot be saved")
        assert "No space left on device" in proxy.wait_for_log("usage records are being lost")
        filler.unlink()
        proxy.wait_for_log("bucket state is saved again")
        use(proxy)
        eventually(lambda: recorded(small_disk, '"kind":"lost"'), "the loss in the files")
        assert proxy.stop() == 0
        assert "cannot rollback" not in proxy.log
    assert recorded(small_disk, "No space left on device")
    assert recorded(small_disk, '"kind":"end"')


def recorded(folder: Path, text: str) -> bool:
    return any(text in path.read_text() for path in (folder / "usage").iterdir())


async def test_a_write_that_fails_is_reported_by_its_cause(tmp_path: Path) -> None:
    """Without a small disk: a limit of the database has the same effect, since SQLite rolls back by itself."""
    file = await opened(tmp_path / "state.sqlite")
    database = file._database
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages}")
    table = no_buckets()
    for number in range(100):
        bucket = table.named((QuotaKey.PRODUCER_BYTE_RATE, (("user", f"{number:02000}"),)))
        assert isinstance(bucket, RateBucket)
        bucket.charge(1.0, 0)
    with capture_logs() as lines:
        await file.save(table, 0)
        database.execute("PRAGMA max_page_count = 100000")
        await file.save(table, 1)
    assert [line["event"] for line in lines] == [
        "bucket state cannot be saved; a restart would reset it",
        "bucket state is saved again",
    ]
    assert "full" in lines[0]["error"]
    assert database.execute("SELECT count(*) FROM bucket_state").fetchone() == (100,)
    await file.close()
