"""Files that cannot be read, are not TOML, or have several problems."""

import sys
from pathlib import Path

import pytest

from headrace.config import (
    Config,
    ConfigError,
    ConfigFileError,
    ConfigSyntaxError,
    ConfigValueError,
    Listen,
    Problem,
    Upstream,
    load,
    loads,
)
from headrace.config.loading import MAX_FILE_BYTES
from headrace.quota_callbacks.requests import Address
from headrace.quota_callbacks.value_texts import dotted, toml_text
from tests.config.documents import MINIMAL


def problems(text: str | bytes) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loads(text, "headrace.toml")
    assert [str(problem) for problem in caught.value.problems] == str(caught.value).split("\n")
    return str(caught.value).split("\n")


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(MINIMAL)
    expected = Config(
        upstream=Upstream(bootstrap_servers=["127.0.0.1:9092"]),
        listen=Listen(address="127.0.0.1:19192", advertised_host="kafka.example.com"),
    )
    assert load(file) == load(str(file)) == loads(MINIMAL) == loads(MINIMAL.encode()) == expected


def test_line_ends_and_the_mark_of_windows_are_taken() -> None:
    assert loads(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode()) == loads(MINIMAL)
    (message,) = problems(f"{MINIMAL}[log]\nlevel = 1\n".replace("\n", "\r\n").encode())
    assert message.startswith("headrace.toml:5: log.level = 1: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1\nb =\n", ":2:4: not valid TOML: invalid value"),
        ("a = 1\na = 2\n", ":2:6: not valid TOML: this key is set already"),
        ("[a]\n[b]\n[a]\n", ":3:3: not valid TOML: the table [a] is declared twice"),
        ("['a.b'.c]\n['a.b'.c]\n", ':2:9: not valid TOML: the table ["a.b".c] is declared twice'),
        ("a = [1,\n", ":2:1: not valid TOML: invalid value, at the end of the file"),
        ("a = 'x", ':1:7: not valid TOML: expected "\'", at the end of the file'),
        ("a = 1 b = 2", ":1:7: not valid TOML: expected newline or end of document after a statement"),
        ("a: 1", ":1:2: not valid TOML: expected '=' after a key in a key/value pair"),
        (f"a = {'9' * 5000}", ": not valid TOML: a whole number has too many digits"),
        (f"a = {'[' * 100_000}", ": not valid TOML: values are nested too deeply"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_toml(text: str, message: str) -> None:
    with pytest.raises(ConfigSyntaxError) as caught:
        loads(text, "headrace.toml")
    if sys.version_info[:2] == (3, 11) or "declared" in message or "digits" in message:  # tomllib's messages vary
        assert str(caught.value) == f"headrace.toml{message}"
    assert "not valid TOML" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_long_line_of_wrong_syntax_is_shortened() -> None:
    (message,) = problems(f"a = {'x' * 1000}")
    assert len(message) < 200


def test_what_is_not_utf_8() -> None:
    assert problems(b"a = 1\nb = '\xff'") == ["headrace.toml:2: not UTF-8: byte 0xff; save the file as UTF-8"]
    assert problems("a = 1".encode("utf-16"))[0].startswith("headrace.toml:1: not UTF-8")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing, directory, large = tmp_path / "missing.toml", tmp_path, tmp_path / "large.toml"
    large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    for path, why in (
        (missing, "no such file or directory"),
        (directory, "is a directory"),
        (large, f"longer than {MAX_FILE_BYTES} bytes, the maximum for a configuration"),
    ):
        with pytest.raises(ConfigFileError) as caught:
            load(path)
        assert str(caught.value) == f"{path}: cannot be read: {why}"
    with pytest.raises(ConfigFileError, match=r"^'a\\x00b': cannot be read: .*embedded null \w+"):
        load("a\0b")


def test_a_file_may_be_as_long_as_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(MINIMAL + "#" * (MAX_FILE_BYTES - len(MINIMAL)))
    assert load(file) == loads(MINIMAL)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.stat", forbidden)  # root may read every file
    with pytest.raises(ConfigFileError) as caught:
        load("headrace.toml")
    assert str(caught.value) == "headrace.toml: cannot be read: permission denied"
    assert isinstance(caught.value.__cause__, PermissionError)


def test_all_problems_are_reported_at_once_from_top_to_bottom() -> None:
    text = """\
[shutdown]
drain_timeout = "soon"
[upstream]
bootstrap_servers = [
    "kafka-1:9092",
    "kafka-2",
]
[listen]
address = "127.0.0.1:65530"
node_id = "0-2"
[limit]
max_connections = 5
[log]
format = "yaml"
level = "info"
admin = 1
[enforcement]
enabled = "yes"
exempt_users = ["a", 1]
"""
    messages = [line.partition(";")[0] for line in problems(text)]
    assert messages == [
        (
            'headrace.toml:2: shutdown.drain_timeout = "soon": expected a duration such as "10s" (ms, s, m, h, d) '
            "or a number of seconds, from 0s to 1d"
        ),
        (
            'headrace.toml:6: upstream.bootstrap_servers[1] = "kafka-2": expected host:port, such as "kafka-1:9192", '
            '"127.0.0.1:9192" or "[::1]:9192", port 1-65535'
        ),
        (
            'headrace.toml:9: listen.address = "127.0.0.1:65530": broker 31 would be at port 65562 '
            "(this port + 1 + id), above 65535"
        ),
        "headrace.toml:10: listen.node_id: unknown key",
        "headrace.toml:11: limit: unknown key",
        'headrace.toml:14: log.format = "yaml": expected "text" or "json"',
        "headrace.toml:16: log.admin: unknown key",
        'headrace.toml:18: enforcement.enabled = "yes": expected true or false',
        "headrace.toml:19: enforcement.exempt_users[1] = 1: expected a user",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limit.max_connections = 5", "limit: unknown key; did you mean limits?"),
        ("[limits]\nmax_connection = 5", "limits.max_connection: unknown key; did you mean limits.max_connections?"),
        ("[limits]\nidle-timeout = 5", "limits.idle-timeout: unknown key; did you mean limits.idle_timeout?"),
        ("[limits]\nIDLE_TIMEOUT = 5", "limits.IDLE_TIMEOUT: unknown key; did you mean limits.idle_timeout?"),
        ("drain_timeout = 5", "drain_timeout: unknown key; did you mean shutdown.drain_timeout?"),
        ("[log]\nbootstrap_server = 5", "log.bootstrap_server: unknown key; did you mean upstream.bootstrap_servers?"),
        (
            "quota.window.size.second = 5",
            "quota.window.size.second: unknown key; did you mean quota.window.size.seconds?",
        ),
        ("quota.windows.num = 5", "quota.windows: unknown key; did you mean quota.window?"),
        (
            "[log]\nx = 5",
            "log.x: unknown key; known here: level, format, lines_per_minute, max_queued_lines, max_queued_bytes",
        ),
        (
            '"a b" = 5',
            (
                '"a b": unknown key; known here: upstream, listen, listeners, data_plane, data_plane_threads, workers, '
                "limits, shutdown, admin, log, enforcement, quota, controller, producer, quotas, "
                "client_quotas, plugins"
            ),
        ),
        ("limits = 5", "limits = 5: expected a table: [limits] and keys below it"),
        ("[[limits]]", "limits = [{}]: expected a table: [limits] and keys below it"),
        ("quota.window = 11", "quota.window = 11: expected a table: [quota.window] and keys below it"),
        ("[log]\nlevel.x = 1", 'log.level = { x = 1 }: expected "debug", "info", "warning" or "error"'),
        ("[plugins.options]\nx = 1", "plugins.options.x = 1: expected a table, headed [plugins.options.x]"),
    ],
)
def test_keys_that_are_not_there(text: str, message: str) -> None:
    line = MINIMAL.count("\n") + (2 if text.startswith("[") and "\n" in text else 1)
    assert problems(f"{MINIMAL}{text}\n") == [f"headrace.toml:{line}: {message}"]


def test_a_section_that_is_no_table_does_not_make_its_keys_missing() -> None:
    assert problems('listen = "127.0.0.1:9192"\nupstream.bootstrap_servers = ["a:1"]\n') == [
        "headrace.toml:1: listen = ***: expected a table: [listen] and keys below it"
    ]


def test_required_keys_are_missed_in_their_table_or_nowhere() -> None:
    set_it = "set it here or with"
    assert problems("[log]\nlevel = 'info'\n[upstream]\n") == [
        (
            "headrace.toml:3: upstream.bootstrap_servers: required; expected a list of one or more host:port, such as "
            f'["kafka-1:9092"]; {set_it} --bootstrap-servers'
        ),
        (
            'headrace.toml: listen.address: required; expected host:port, such as "0.0.0.0:9192", "127.0.0.1:9192" or '
            f'"[::1]:9192", port 1-65535; {set_it} --listen'
        ),
    ]


def test_problems_are_data() -> None:
    with pytest.raises(ConfigValueError) as caught:
        loads(f"{MINIMAL}[log]\n level = 'loud'\n", "headrace.toml")
    assert caught.value.problems == (
        Problem(
            rule='expected "debug", "info", "warning" or "error"',
            key="log.level",
            found='"loud"',
            source="headrace.toml",
            line=5,
            column=2,
        ),
    )


def test_values_are_shown_on_one_line_and_shortened() -> None:
    (message,) = problems(f'{MINIMAL}[log]\nlevel = """\n{"x" * 500}"""\n')
    shown = message.partition(" = ")[2].partition(": expected")[0]
    assert shown == '"' + "x" * 76 + "..."
    assert toml_text({"a b": [1, 1.5, True, {}], "c": "d\ne"}) == '{ "a b" = [1, 1.5, true, {}], c = "d\\ne" }'
    assert toml_text("y" * 78) == '"' + "y" * 78 + '"'
    assert len(toml_text("y" * 79)) == 80
    assert toml_text(16**100).startswith("0x1000")
    assert dotted(("quotas", 2, "entity", "client-id")) == "quotas[2].entity.client-id"
    assert dotted(("plugins", "options", "a b")) == 'plugins.options."a b"'


def test_a_value_is_shortened_in_the_rule_that_names_it() -> None:
    (message,) = problems(f'{MINIMAL}listen.node_ids = "{"9" * 5000}"\n')
    assert '"' + "9" * 76 + "... is neither an id nor a range" in message
    assert len(message) < 400


def test_the_advertised_port_is_the_listening_port_unless_another_is_given() -> None:
    listen = loads(MINIMAL + "listen.advertised_port = 29192\n").listen
    assert listen.advertised == Address(host="kafka.example.com", port=29192)
    assert loads(MINIMAL).listen.advertised == Address(host="kafka.example.com", port=19192)
