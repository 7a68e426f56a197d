"""Reasons for throttling: decisions that are kept and logged, and the output of ``headrace why``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.proxy.admin.operations import muted_client
from headrace.proxy.admin.why import format_page
from headrace.proxy.hooks.decisions import KEPT_DECISIONS, Kind
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, QuotaKey
from headrace.quota_callbacks.policies import EnforcementMode, Quota, QuotaPolicy
from tests.proxy.playbook import Book, open_book, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

PRODUCE = ApiKey.PRODUCE
BYTES = QuotaKey.PRODUCER_BYTE_RATE


def quota(limit: float, **policy: Any) -> list[tuple[QuotaKey, QuotaEntity, Quota]]:
    return [(BYTES, QuotaEntity(client_id=DEFAULT), Quota(value=limit, policy=QuotaPolicy(**policy)))]


async def produce(book: Book, number: int, padding: int = 20_000) -> None:
    await book.round_trip(request(PRODUCE, 9, number, acks=1, padding=padding), reply(PRODUCE, 9, number))


async def test_a_throttle_names_quota_entity_observed_value_and_duration(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_book(quotas=quota(1000)) as book:
        await produce(book, 1)
        (decision,) = book.shared.decisions
        assert (decision.kind, decision.quota, decision.entity) == (Kind.THROTTLED, BYTES.value, "client-id=<default>")
        assert decision.observed == pytest.approx(2000, rel=0.01)
        assert (decision.limit, decision.client_id, decision.user) == (1000, "c", "ANONYMOUS")
        assert decision.throttle_ms == pytest.approx(10_000, rel=0.01)
        await trio.sleep(2)
        page = {
            "waiting": [muted_client(book.connection, trio.current_time())],
            "decisions": book.shared.decisions.page(2.0),
        }
        head, waiting, why = format_page(page)
        assert head == "client-id=<default>, producer_byte_rate: 1.96 KiB/s of 1000 B/s"
        assert waiting.startswith("  waiting now: user ANONYMOUS, client id c at 198.51.100.7:5000, 8.")
        assert why.startswith(
            "  throttled once 2.0 s ago for 10.0 s: Produce v9 of user ANONYMOUS, client id c at 198.51"
        )
    line = next(line for line in capsys.readouterr().out.splitlines() if "request throttled" in line)
    for part in ("quota=producer_byte_rate", "entity='client-id=<default>'", "limit=1000", "request='Produce v9'"):
        assert part in line


async def test_one_cause_is_logged_once_a_minute_and_kept_each_time(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_book(quotas=quota(1000)) as book:
        for number in range(4):
            await produce(book, number)
        assert len(list(book.shared.decisions)) == 4
    assert capsys.readouterr().out.count("request throttled") == 1


async def test_the_page_is_by_user_and_client_and_newest_first(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(1000)) as book:
        await produce(book, 1)
        await produce(book, 2)
        decisions = book.shared.decisions
        now_s = trio.current_time()
        assert [each["correlation_id"] for each in decisions.page(now_s)] == [2, 1]
        assert [each["correlation_id"] for each in decisions.page(now_s, newest=1)] == [2]
        assert len(decisions.page(now_s, user="ANONYMOUS", client_id="c")) == 2
        assert decisions.page(now_s, user="alice") == decisions.page(now_s, client_id="d") == []


@pytest.mark.parametrize(
    ("policy", "kind", "words"),
    [
        ({"observe": True}, Kind.OBSERVED, "  would have been throttled once 0 ms ago"),
        ({"mode": EnforcementMode.PACED, "burst_s": 0.0}, Kind.HELD, "  held once 12.0 s ago for 12.0 s"),
        ({"longest_throttle_ms": 50}, Kind.THROTTLED, "  throttled once 0 ms ago for 50 ms"),
    ],
)
async def test_a_decision_names_the_kind_of_enforcement(
    policy: dict[str, Any], kind: Kind, words: str, autojump_clock: MockClock
) -> None:
    async with open_book(quotas=quota(1000, **policy)) as book:
        for number in range(2):
            await produce(book, number, 12_000)
        decision = list(book.shared.decisions)[-1]
        assert decision.kind is kind
        _, line = format_page({"waiting": [], "decisions": book.shared.decisions.page(trio.current_time(), newest=1)})
        assert words in line


async def test_so_many_are_kept(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(1000, observe=True)) as book:
        for number in range(KEPT_DECISIONS + 10):
            await produce(book, number)
        kept = list(book.shared.decisions)
        assert len(kept) == KEPT_DECISIONS
        assert kept[-1].correlation_id == KEPT_DECISIONS + 9
