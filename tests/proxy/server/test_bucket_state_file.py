"""Bucket state survives a restart, and problems with its file are reported."""

from __future__ import annotations

import sqlite3
from time import time_ns
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.proxy.errors import StartupError
from headrace.proxy.server import bucket_state_file
from headrace.proxy.server.bucket_state_file import BucketStateFile
from headrace.quota_callbacks.buckets.bucket_table import MAX_OWNED
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.kinds import MutationBucket, ProducerIdBucket, RateBucket
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.builtin.default_quotas import DefaultQuotaCallback
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey, quota_key
from headrace.quota_callbacks.policies import KAFKA_POLICY, EnforcementMode, QuotaPolicy

if TYPE_CHECKING:
    from pathlib import Path

USER = QuotaEntity(user="alice")
LIMITS = {
    QuotaKey.PRODUCER_BYTE_RATE: 1000,
    QuotaKey.CONSUMER_BYTE_RATE: 1000,
    QuotaKey.CONTROLLER_MUTATION_RATE: 1,
    QuotaKey.PRODUCER_IDS_RATE: 2,
}


def quotas(window: Window | None = None, max_owned: int = MAX_OWNED) -> ClientQuotas:
    callback = DefaultQuotaCallback()
    paced = QuotaPolicy(mode=EnforcementMode.PACED)
    for key, limit in LIMITS.items():
        callback.update_quota(key, USER, limit, paced if key is QuotaKey.CONSUMER_BYTE_RATE else KAFKA_POLICY)
    return ClientQuotas(
        windows=dict.fromkeys(QuotaKey, window or Window(samples=11, seconds=100)),
        metric_tags=callback.quota_metric_tags,
        quota_limit=callback.quota_limit,
        max_owned=max_owned,
    )


def use(table: ClientQuotas, now_ms: int) -> list[int]:
    """Charge a little to every bucket, and return the throttle times."""
    throttles = []
    for key in LIMITS:
        bucket = table.bucket(key, "alice", "c")
        if isinstance(bucket, RateBucket) and bucket.paced:
            verdict = bucket.reserve(1, now_ms)
        elif isinstance(bucket, RateBucket):
            verdict = bucket.charge(1, now_ms)
        elif isinstance(bucket, MutationBucket):
            verdict = bucket.admit(1, now_ms)
        else:
            assert isinstance(bucket, ProducerIdBucket)
            assert bucket.charge(7, now_ms) is None, "the id is known"
            verdict = bucket.charge(now_ms, now_ms)
        throttles.append(0 if verdict is None else verdict.throttle_ms)
    return throttles


def overdraw(table: ClientQuotas, now_ms: int) -> None:
    for key in LIMITS:
        bucket = table.bucket(key, "alice", "c")
        if isinstance(bucket, RateBucket) and bucket.paced:
            bucket.reserve(5_000_000, now_ms)
        elif isinstance(bucket, RateBucket):
            bucket.charge(5_000_000, now_ms)
        elif isinstance(bucket, MutationBucket):
            bucket.charge(5_000, now_ms)
        else:
            assert isinstance(bucket, ProducerIdBucket)
            for producer_id in range(7, 15):
                bucket.charge(producer_id, now_ms)


@pytest.fixture
def down(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Milliseconds of wall-clock time that pass while no proxy runs; set its only element. None pass besides."""
    passed, wall_ns = [0], time_ns()
    monkeypatch.setattr(bucket_state_file, "time_ns", lambda: wall_ns + passed[0] * 1_000_000)
    return passed


async def saved(path: Path, now_ms: int) -> list[int]:
    """Exceed the quotas, save, and return the throttle times that follow a moment later."""
    table = quotas()
    file = await BucketStateFile.open(str(path), table, now_ms)
    overdraw(table, now_ms)
    await file.save(table, now_ms)
    await file.close()
    return use(table, now_ms + 5000)


async def test_a_restart_resets_no_quota(tmp_path: Path, down: list[int]) -> None:
    """The monotonic clock of the next process may begin at any time; here it is at 3 s after a pause of 5 s."""
    path = tmp_path / "buckets.sqlite"
    before = await saved(path, 10**9)
    assert all(before)
    down[0] = 5000
    table = quotas()
    file = await BucketStateFile.open(str(path), table, 3000)
    assert use(table, 3000) == pytest.approx(before, abs=50)
    await file.close()


async def test_expired_states_are_not_restored(tmp_path: Path, down: list[int]) -> None:
    path = tmp_path / "buckets.sqlite"
    await saved(path, 10**9)
    down[0] = 3_600_000
    table = quotas()
    await (await BucketStateFile.open(str(path), table, 0)).close()
    assert len(table) == 0


async def test_states_of_another_window_are_not_restored(tmp_path: Path, down: list[int]) -> None:
    path = tmp_path / "buckets.sqlite"
    await saved(path, 10**9)
    table = quotas(Window(samples=3, seconds=1))
    await (await BucketStateFile.open(str(path), table, 0)).close()
    assert len(table) == 0


async def test_only_buckets_used_since_the_last_save_are_written(tmp_path: Path, down: list[int]) -> None:
    path = tmp_path / "buckets.sqlite"
    table = quotas()
    file = await BucketStateFile.open(str(path), table, 0)
    overdraw(table, 0)
    await file.save(table, 1000)
    bucket = table.bucket(QuotaKey.PRODUCER_BYTE_RATE, "alice", "c")
    assert isinstance(bucket, RateBucket)
    bucket.charge(1, 2000)
    down[0] = 1000
    await file.save(table, 3000)
    await file.close()
    with sqlite3.connect(path) as database:
        rows = dict(database.execute("SELECT bucket, saved_ms FROM bucket_state").fetchall())
    database.close()
    newest = [name for name, at in rows.items() if at == max(rows.values())]
    assert len(rows) == 4
    assert "producer_byte_rate" in newest[0]


async def test_restored_buckets_count_for_their_owner(tmp_path: Path, down: list[int]) -> None:
    """Otherwise a client could bring up its maximum of buckets after each restart."""
    path, owner, key = tmp_path / "buckets.sqlite", ("alice", "192.0.2.1"), quota_key(QuotaKey.PRODUCER_BYTE_RATE)
    names = [(key, (("user", "alice"), ("client-id", name))) for name in "abc"]
    for most in (2, 1):
        table = quotas(max_owned=most)
        file = await BucketStateFile.open(str(path), table, 0)
        restored = {bucket.name for bucket in table if bucket.owner == owner}
        assert len(restored) == (0 if most == 2 else 1), "further ones are not restored into the bucket that they share"
        for name in names:
            bucket = table.named(name, owner)
            assert isinstance(bucket, RateBucket)
            bucket.charge(1, 0)
        assert len([bucket for bucket in table if bucket.owner == owner]) == most
        assert len([bucket for bucket in table if bucket.overflow]) == 1
        await file.save(table, 0)
        await file.close()


async def test_two_proxies_cannot_open_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "buckets.sqlite"
    first = await BucketStateFile.open(str(path), quotas(), 0)
    with pytest.raises(StartupError, match=r"quota\.state\.file: .*another process has it"):
        await BucketStateFile.open(str(path), quotas(), 0)
    await first.close()


async def test_a_missing_directory_is_a_startup_error(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"quota\.state\.file: cannot use .*no such file or directory"):
        await BucketStateFile.open(str(tmp_path / "no" / "buckets.sqlite"), quotas(), 0)


async def test_a_database_of_another_program_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE theirs (x)")
    database.close()
    with pytest.raises(StartupError, match="not a bucket state file"):
        await BucketStateFile.open(str(path), quotas(), 0)
    assert path.exists()


async def test_a_damaged_file_is_renamed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "buckets.sqlite"
    path.write_bytes(b"no database at all, but long enough to be looked at" * 100)
    table = quotas()
    file = await BucketStateFile.open(str(path), table, 0)
    overdraw(table, 0)
    await file.save(table, 0)
    await file.close()
    assert (tmp_path / "buckets.sqlite.damaged").exists()
    assert "bucket state file damaged" in capsys.readouterr().out


@pytest.mark.parametrize("state", ["{", "[]", '{"rate": [["x"]]}', '{"tokens": {"a": 1}}', '{"tokens": ["x", 1]}'])
async def test_an_invalid_row_is_skipped(tmp_path: Path, state: str) -> None:
    path = tmp_path / "buckets.sqlite"
    await saved(path, 0)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE bucket_state SET state = ? WHERE bucket LIKE '%mutation%'", (state,))
    database.close()
    table = quotas()
    await (await BucketStateFile.open(str(path), table, 0)).close()
    assert len([bucket for bucket in table if bucket.last_used_ms >= 0]) <= 4
    assert use(table, 5000)[0] > 0, "the other rows are restored"


@pytest.mark.parametrize(
    "damage",
    [
        "saved_ms = 'yesterday'",
        "saved_ms = 9e999",
        "bucket = CAST(x'fe' || bucket AS TEXT)",
        "bucket = 'a name\twith\nother ends' || bucket",
        "state = '{\"timeline\": [null, 0, 5]}'",
    ],
)
async def test_damaged_rows_are_skipped_and_logged_in_one_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "bucket-state.sqlite"
    await saved(path, 0)
    with sqlite3.connect(path) as database:
        database.execute(f"UPDATE bucket_state SET {damage} WHERE bucket NOT LIKE '%mutation%'")  # noqa: S608
    database.close()
    with capture_logs() as lines:
        await (await BucketStateFile.open(str(path), quotas(), 0)).close()
    skipped, restored = lines
    assert (skipped["event"], skipped["rows"]) == ("rows of the bucket state file were skipped", 3)
    assert skipped["error"]
    assert (restored["buckets"], restored["of"]) == (1, 4)


@pytest.mark.parametrize(
    "state", ['{"timeline": [null, 0, 5]}', '{"timeline": [5, 0, "5"]}', '{"rate": [[0, 0, null]]}']
)
async def test_the_bucket_of_a_damaged_row_limits_from_now_on(tmp_path: Path, state: str) -> None:
    path = tmp_path / "bucket-state.sqlite"
    await saved(path, 0)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE bucket_state SET state = ?", (state,))
    database.close()
    table = quotas()
    await (await BucketStateFile.open(str(path), table, 0)).close()
    bucket = table.bucket(QuotaKey.CONSUMER_BYTE_RATE, "alice", "c")
    assert isinstance(bucket, RateBucket)
    assert bucket.reserve(1500, 1000) is None
    assert bucket.reserve(500, 1000) is not None


async def test_the_table_of_an_old_file_is_renamed(tmp_path: Path) -> None:
    path = tmp_path / "bucket-state.sqlite"
    await saved(path, 0)
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE bucket_state RENAME TO usage")
        database.execute("PRAGMA user_version = 1")
    database.close()
    table = quotas()
    await (await BucketStateFile.open(str(path), table, 0)).close()
    assert len([*table]) == 4
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("bucket_state",)]
        assert database.execute("PRAGMA user_version").fetchone() == (2,)
    database.close()


async def test_a_failing_disk_is_logged_once_and_saving_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = quotas()
    file = await BucketStateFile.open(str(tmp_path / "buckets.sqlite"), table, 0)
    overdraw(table, 0)
    with monkeypatch.context() as broken:

        def fail(*_: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        broken.setattr(bucket_state_file, "_write", fail)
        await file.save(table, 1)
        await file.save(table, 2)
    await file.save(table, 3)
    await file.close()
    logged = capsys.readouterr().out
    assert logged.count("bucket state cannot be saved") == 1
    assert logged.count("bucket state is saved again") == 1
    again = quotas()
    await (await BucketStateFile.open(str(tmp_path / "buckets.sqlite"), again, 0)).close()
    assert len(again) == 4
