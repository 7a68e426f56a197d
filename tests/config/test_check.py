from functools import partial
from pathlib import Path

import pytest

from headrace.config import CheckReport, Config, check, load
from headrace.quota_callbacks.options import Fault
from tests.config.documents import MINIMAL


def checked(tmp_path: Path, text: str) -> CheckReport:
    file = tmp_path / "headrace.toml"
    file.write_text(MINIMAL + text)
    return check(partial(load, file))


def test_a_good_file(tmp_path: Path) -> None:
    report = checked(tmp_path, "")
    assert report.config is not None
    assert report.lines == (
        "ok: listening at 127.0.0.1:19192, advertised as kafka.example.com:19192",
        "ok: brokers 0-31 at ports 19193-19224",
        "ok: upstream 127.0.0.1:9092",
        "ok: no admin server",
        "ok: no quotas, enforcement on",
    )
    assert str(report) == "\n".join(report.lines)


def test_a_file_with_everything(tmp_path: Path) -> None:
    report = checked(
        tmp_path,
        """\
listen.advertised_port = 29192
listen.node_ids = "0-2,7"
admin.listen = "127.0.0.1:9190"
enforcement.enabled = false
[[quotas]]
entity = { user = "alice" }
producer_byte_rate = 1
consumer_byte_rate = 1
[[quotas]]
entity = { user = "<default>" }
request_percentage = 1
""",
    )
    assert report.lines == (
        "ok: listening at 127.0.0.1:19192, advertised as kafka.example.com:29192",
        "ok: brokers 0-2,7 at ports 19193-19195,19200, advertised as 29193-29195,29200",
        "ok: upstream 127.0.0.1:9092",
        "ok: admin server at 127.0.0.1:9190",
        "ok: 3 quotas for 2 entities, enforcement off",
    )


def test_one_quota(tmp_path: Path) -> None:
    report = checked(tmp_path, '[[quotas]]\nentity = { user = "alice" }\nproducer_byte_rate = 1\n')
    assert report.lines[-1] == "ok: 1 quota for 1 entity, enforcement on"


@pytest.mark.parametrize("key", ["workers", "data_plane_threads"])
@pytest.mark.parametrize(
    ("threads", "expected"),
    [("1", []), ("2", ["ok: 2 native threads"]), ('"auto"', ["ok: a native thread for each core"])],
)
def test_several_threads(tmp_path: Path, key: str, threads: str, expected: list[str]) -> None:
    lines = checked(tmp_path, f"{key} = {threads}\n").lines
    assert [line for line in lines if "thread" in line] == expected
    lines = checked(tmp_path, f'{key} = {threads}\ndata_plane = "python"\n').lines
    assert not any("thread" in line for line in lines)


def test_problems(tmp_path: Path) -> None:
    report = checked(tmp_path, "[log]\nlevel = 1\nformat = 2\n")
    path = tmp_path / "headrace.toml"
    assert report.config is None
    assert report.lines == (
        f'{path}:5: log.level = 1: expected "debug", "info", "warning" or "error"',
        f'{path}:6: log.format = 2: expected "text" or "json"',
        "2 problems",
    )


def test_plugins_are_asked_about_their_options_unless_these_are_no_table(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(MINIMAL + "[plugins.options]\ntracing = 5\nmetrics = { idle_s = -1 }\n")
    asked = []

    def plugin_faults(config: Config) -> tuple[Fault, ...]:
        asked.append(config.plugins.options)
        return (Fault(path=("plugins", "options", "metrics", "idle_s"), found=-1, rule="expected a time"),)

    assert check(partial(load, file, plugin_faults=plugin_faults)).lines == (
        f"{file}:5: plugins.options.tracing = 5: expected a table, headed [plugins.options.tracing]",
        f"{file}:6: plugins.options.metrics.idle_s = -1: expected a time",
        "2 problems",
    )
    assert asked == [{"metrics": {"idle_s": -1}}]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    assert check(partial(load, path)).lines == (f"{path}: cannot be read: no such file or directory", "1 problem")


def test_flags_alone() -> None:
    flags = {"upstream.bootstrap_servers": "a:1", "listen.address": "[::1]:1000", "listen.advertised_host": "::1"}
    report = check(partial(load, None, flags))
    assert report.config is not None
    assert report.lines[0] == "ok: listening at [::1]:1000, advertised as [::1]:1000"
