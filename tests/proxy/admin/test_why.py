"""``headrace why``: output grouped by entity and quota, with units, and without control characters of clients."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.proxy.admin.client import AdminUnreachableError
from headrace.proxy.admin.why import LINES_PER_GROUP, duration, format_page, in_units, printable, watch

MIB = 2.0**20
DEFAULT_CLIENT = "client-id=<default>"


def decision(**fields: Any) -> dict[str, Any]:
    usual = {
        "kind": "throttled",
        "quota": "producer_byte_rate",
        "entity": DEFAULT_CLIENT,
        "observed": 2.2 * MIB,
        "limit": 2 * MIB,
        "rate": None,
        "window_s": 1,
        "throttle_ms": 1500,
        "request": "Produce v9",
        "correlation_id": 1,
        "user": "ANONYMOUS",
        "client_id": "c",
        "peer": "198.51.100.7:5000",
        "age_s": 3.0,
    }
    return usual | fields


def waiting(**fields: Any) -> dict[str, Any]:
    usual = {
        "peer": "198.51.100.7:5000",
        "user": "ANONYMOUS",
        "client_id": "c",
        "quota": "producer_byte_rate",
        "entity": DEFAULT_CLIENT,
        "remaining_ms": 800,
    }
    return usual | fields


def page(*decisions: dict[str, Any], waits: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"waiting": list(waits), "decisions": list(decisions)}


@pytest.mark.parametrize("state", [{}, {"enforcement": True}])
def test_enforcement_that_is_on_is_not_mentioned(state: dict[str, bool]) -> None:
    assert list(format_page(page() | state)) == ["no request was throttled or refused"]


def test_enforcement_that_is_off_comes_first() -> None:
    off, *others = format_page(page(decision()) | {"enforcement": False})
    assert off == "enforcement is off: no request is throttled or refused until it is on again"
    assert others == list(format_page(page(decision())))


def test_by_entity_and_quota() -> None:
    found = list(
        format_page(
            page(
                decision(
                    quota="request_percentage", entity="user=bob", user="bob", observed=55.0, limit=50.0, age_s=0.5
                ),
                decision(),
                decision(age_s=63.0),
                decision(age_s=200.0, kind="refused", client_id="d"),
                waits=(waiting(), waiting(peer="198.51.100.8:1", remaining_ms=9000)),
            )
        )
    )
    assert found == [
        f"{DEFAULT_CLIENT}, producer_byte_rate: 2.20 MiB/s of 2.00 MiB/s",
        "  waiting now: user ANONYMOUS, client id c at 198.51.100.8:1, 9.0 s more",
        "  waiting now: user ANONYMOUS, client id c at 198.51.100.7:5000, 800 ms more",
        "  throttled 2 times, last 3.0 s ago for 1.5 s: Produce v9 of user ANONYMOUS, client id c at 198.51.100.7:5000",
        "  refused once 3 min ago for 1.5 s: Produce v9 of user ANONYMOUS, client id d at 198.51.100.7:5000",
        "user=bob, request_percentage: 55 % of a thread of 50 %",
        "  throttled once 500 ms ago for 1.5 s: Produce v9 of user bob, client id c at 198.51.100.7:5000",
    ]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"observed": 2.2 * MIB, "limit": 2 * MIB}, "2.20 MiB/s of 2.00 MiB/s"),
        ({"observed": 2000.0, "limit": 100.0}, "1.95 KiB/s of 100 B/s"),
        ({"observed": 3 * 2.0**50, "limit": 2.0**30}, "3072.00 TiB/s of 1.00 GiB/s"),
        ({"quota": "consumer_byte_rate", "observed": 0.0, "limit": 1023.0}, "0 B/s of 1023 B/s"),
        ({"quota": "request_percentage", "observed": 55.04, "limit": 50.0}, "55 % of a thread of 50 %"),
        (
            {"quota": "controller_mutation_rate", "observed": -3.0, "rate": 1.4, "limit": 1.0},
            "1.4 partitions/s of 1, 3 tokens overdrawn",
        ),
        (
            {"quota": "producer_ids_rate", "observed": -2.0, "rate": 12.0, "limit": 10.0, "window_s": 3600},
            "12 new producer ids an hour of 10, 2 tokens overdrawn",
        ),
        (
            {"quota": "producer_ids_rate", "observed": 1.0, "rate": 9.0, "limit": 10.0, "window_s": 300},
            "9 new producer ids in 300 s of 10, 1 tokens left",
        ),
        ({"quota": "topic_rate", "observed": 1.5, "limit": 1.0}, "1.5 of 1"),
        ({"quota": "request_rate", "observed": 1.5, "limit": 1.0, "unit": "requests/s"}, "1.5 of 1 requests/s"),
        (
            {"quota": "copy_rate", "observed": 2.2 * MIB, "limit": 2 * MIB, "unit": "bytes/s"},
            "2.20 MiB/s of 2.00 MiB/s",
        ),
    ],
)
def test_units(fields: dict[str, Any], words: str) -> None:
    assert in_units(decision(**fields)) == words


def test_a_proxy_that_is_older_than_the_command() -> None:
    row = decision(quota="controller_mutation_rate", observed=-3.0, limit=1.0)
    del row["rate"], row["window_s"]
    assert in_units(row) == "limit 1 partitions/s, 3 tokens overdrawn"
    wait = waiting()
    del wait["entity"]
    assert next(iter(format_page(page(waits=(wait,))))) == "producer_byte_rate"


def test_only_the_first_connections_and_clients_are_listed() -> None:
    many = LINES_PER_GROUP + 7
    waits = tuple(waiting(peer=f"h:{number}", remaining_ms=1000 + number) for number in range(many))
    found = list(format_page(page(*(decision(client_id=f"c{number}") for number in range(many)), waits=waits)))
    assert len(found) == 1 + 2 * (LINES_PER_GROUP + 1)
    assert f"at h:{many - 1}, 1.0 s more" in found[1]
    assert found[1 + LINES_PER_GROUP] == "  and 7 more connections"
    assert found[-1] == "  and 7 more clients"


def test_a_throttle_of_the_broker_has_no_entity() -> None:
    assert next(iter(format_page(page(waits=(waiting(entity="", quota="the broker's own"),))))) == "the broker's own"


def test_no_decisions() -> None:
    assert list(format_page(page())) == ["no request was throttled or refused"]


@pytest.mark.parametrize("text", ["a\nheadrace is fine\r", "a\x1b[2Jb", "a\u2028b", "a\x9bb", "\ud800"])
def test_control_characters_of_client_ids_and_users_are_escaped(text: str) -> None:
    lines = list(
        format_page(
            page(
                decision(client_id=text, user=text, entity=f"client-id={text}", request=text, peer=text),
                waits=(waiting(client_id=text, user=text, entity=f"client-id={text}", quota=text),),
            )
        )
    )
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)


def test_what_is_printable_stays() -> None:
    assert printable("Zoë 数据 \\ 'x'") == "Zoë 数据 \\ 'x'"
    assert printable("a\x1b\nb") == "a\\x1b\\nb"


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [(850, "850 ms"), (8000, "8.0 s"), (119_000, "119.0 s"), (720_000, "12 min"), (1.26e7, "3.5 h")],
)
def test_durations(milliseconds: float, words: str) -> None:
    assert duration(milliseconds) == words


# --- refreshing ---


class Turns:
    """A page or an error for each fetch; raises ``KeyboardInterrupt`` in the sleep after the last one."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.answers = list(answers)

    def fetch(self) -> dict[str, Any]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(self, seconds: float) -> None:
        assert seconds == 1.0
        if not self.answers:
            raise KeyboardInterrupt


def test_snapshots_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    turns = Turns(page(), AdminUnreachableError("cannot reach it"), page(decision()))
    watch(turns.fetch, as_json=False, sleep=turns.sleep)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in lines if line.startswith("---")] == ["--- "] * 3
    assert lines[1] == "no request was throttled or refused"
    assert lines[3] == "cannot reach it"
    assert lines[5] == f"{DEFAULT_CLIENT}, producer_byte_rate: 2.20 MiB/s of 2.00 MiB/s"
    assert "\x1b" not in "".join(lines)


def test_one_line_of_json_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    turns = Turns(page(), AdminUnreachableError("gone"), page(decision()))
    watch(turns.fetch, as_json=True, sleep=turns.sleep)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [page(), page(decision())]


def test_the_first_page_must_be_fetched() -> None:
    turns = Turns(AdminUnreachableError("cannot reach it"))
    with pytest.raises(AdminUnreachableError):
        watch(turns.fetch, as_json=False, sleep=turns.sleep)


def test_a_denial_is_shown_with_its_rule() -> None:
    fields = {"kind": "denied", "quota": "authorization", "entity": "Write on Topic orders", "throttle_ms": 0}
    row = decision(**fields, observed=1, limit=0, rule="rule 2 denies Write on Topic orders to bob\n")
    lines = list(format_page({"waiting": [], "decisions": [row]}))
    assert lines[0] == "Write on Topic orders, authorization: rule 2 denies Write on Topic orders to bob\\n"
    assert lines[1].startswith("  denied once 3.0 s ago: Produce v9 of user ANONYMOUS")
