"""Teams files, and topics with teams: what they contain, and the error messages for faults."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from headrace.pipeline.analysis.teams import parse_messages, read_teams
from headrace.pipeline.errors import InputError
from headrace.pipeline.lake.stores import read_text

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_a_teams_file() -> None:
    text = '\ufeffuser,client_id,team\r\nalice,,payments\r\n,"a, b",search\n\nbob,app-1, search \nbob,app-1,search\n'
    rows = read_teams(text, "teams.csv")
    assert rows == [
        ("alice", None, None, "payments"), (None, "a, b", None, "search"), ("bob", "app-1", None, "search"),
    ]  # fmt: skip


def test_a_teams_file_with_topics() -> None:
    text = "user,client_id,topic,team\nalice,,,payments\n,,orders,shop\n,,orders,shop\n,,clicks,web\n"
    assert read_teams(text, "teams.csv") == [
        ("alice", None, None, "payments"), (None, None, "orders", "shop"), (None, None, "clicks", "web"),
    ]  # fmt: skip


def test_a_file_is_read_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    """Also with the character that stands for bytes that are not UTF-8."""
    text = "\ufeffuser,client_id,team\r\nBj\ufffdrn,,x\n\n"
    (tmp_path / "teams.csv").write_bytes(text.encode())
    assert read_text(spark, str(tmp_path / "teams.csv")) == text


def test_a_teams_file_that_is_not_csv_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.csv does not exist"):
        read_text(spark, str(tmp_path / "nowhere.csv"))
    with pytest.raises(InputError, match=r" is a folder; expected a file"):
        read_text(spark, str(tmp_path))
    (tmp_path / "teams.csv").write_bytes("user,client_id,team\nBjörn,,x\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"teams\.csv is not UTF-8"):
        read_text(spark, str(tmp_path / "teams.csv"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "teams.csv:1: expected the columns user,client_id,topic,team or user,client_id,team; got nothing"),
        ("user,team\nalice,payments\n", "user,client_id,topic,team or user,client_id,team; got user,team"),
        ("user,client_id,team\nalice,payments\n", "teams.csv:2: 2 columns; expected 3: user,client_id,team"),
        ("user,client_id,team\nalice,,\n", "teams.csv:2: no team"),
        (
            "user,client_id,team\n,,payments\n",
            "teams.csv:2: team payments without user, client_id and topic; expected a user, a client_id or both, or a",
        ),
        ("user,client_id,team\na,,x\na,,y\n", "teams.csv:3: team y, but line 2 gives the same sender team x"),
        (
            "user,client_id,topic,team\n,,orders,x\n,,orders,y\n",
            "teams.csv:3: team y, but line 2 gives the same topic team x",
        ),
        (
            "user,client_id,topic,team\na,,orders,x\n",
            "teams.csv:2: team x with topic orders and a user or client_id; expected the topic alone, or no topic",
        ),
        ("user,client_id,topic,team\na,,x\n", "teams.csv:2: 3 columns; expected 4: user,client_id,topic,team"),
        ("user,client_id,team\na,,(none)\n", "teams.csv:2: team (none): this name is reserved"),
        ('user,client_id,team\n"a"b,,x\n', "teams.csv:2: not CSV: "),
    ],
)
def test_a_wrong_teams_file_is_an_error_with_its_line(text: str, expected: str) -> None:
    with pytest.raises(InputError) as error:
        read_teams(text, "teams.csv")
    assert expected in str(error.value)


def test_of_many_wrong_lines_the_first_are_listed() -> None:
    with pytest.raises(InputError) as error:
        read_teams("user,client_id,team\n" + "a,,\n" * 25, "teams.csv")
    lines = str(error.value).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "teams.csv: and 5 more"


# --- topics ---


def test_messages_of_a_topic() -> None:
    messages = [
        ("partition 0, offset 1", '{"user": "alice", "team": "payments"}'),
        ("partition 0, offset 3", '{"user": null, "client_id": "", "topic": " orders ", "team": "shop"}'),
        ("partition 1, offset 0", '{"client_id": "app-1", "user": "bob", "team": "search"}'),
    ]
    assert parse_messages(messages, "teams") == [
        ("alice", None, None, "payments"), (None, None, "orders", "shop"), ("bob", "app-1", None, "search"),
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["", "[]", "7", "{", '{"user": 1, "team": "x"}', '{"user": "a", "teams": "x"}'])
def test_a_message_that_is_no_row_is_an_error_with_its_place(value: str) -> None:
    messages = [("partition 0, offset 7", value), ("partition 2, offset 1", json.dumps({"user": "a"}))]
    with pytest.raises(InputError) as error:
        parse_messages(messages, "teams")
    first, second = str(error.value).splitlines()
    assert first.startswith("--teams-topic teams: partition 0, offset 7: expected a JSON object with texts or null as ")
    assert second == "--teams-topic teams: partition 2, offset 1: no team"


def test_messages_that_give_a_sender_two_teams_are_an_error() -> None:
    messages = [(f"partition 0, offset {n}", json.dumps({"user": "a", "team": f"t{n}"})) for n in range(2)]
    with pytest.raises(InputError, match="offset 1: team t1, but partition 0, offset 0 gives the same sender team t0"):
        parse_messages(messages, "teams")
