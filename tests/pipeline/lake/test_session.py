"""Which settings a session has that is started on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.pipeline.lake.session import LITTLE_DATA, SparkOptions, _settings_of_new_jvm, is_at_most

if TYPE_CHECKING:
    from pathlib import Path


def test_the_size_of_folders(tmp_path: Path) -> None:
    (tmp_path / "lake" / "usage").mkdir(parents=True)
    (tmp_path / "lake" / "usage" / "a.parquet").write_bytes(bytes(600))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "usage-a-1.jsonl").write_bytes(bytes(400))
    folders = (str(tmp_path / "in"), f"file://{tmp_path / 'lake'}", str(tmp_path / "missing"))
    size = 1000 + (tmp_path / "lake" / "usage").stat().st_size
    assert is_at_most(size, *folders)
    assert not is_at_most(size - 1, *folders)
    assert not is_at_most(size, *folders, "s3a://bucket/lake")


@pytest.mark.parametrize("master", ["local[2]", "spark://master:7077"])
@pytest.mark.parametrize("is_little", [False, True])
def test_little_data_has_settings_of_its_own_on_this_machine(master: str, *, is_little: bool) -> None:
    settings = _settings_of_new_jvm(SparkOptions(master=master, conf={}), [], is_little=is_little)
    has_them = settings.items() >= LITTLE_DATA.items()
    assert has_them is (is_little and master.startswith("local"))
    assert ("spark.sql.shuffle.partitions" in settings) is master.startswith("local")
