from tests.pipeline.records import NOON, record, usage
from headrace.quota_callbacks.entities import QuotaKey
from typing import Any
from collections.abc import Mapping

PRODUCER, CONSUMER, PERCENTAGE, MUTATIONS, IDS = QuotaKey
NO_LEAST = dict.fromkeys(QuotaKey, 0.001) | {PRODUCER: 1, CONSUMER: 1}
INIT_PRODUCER_ID = 22


def silent(second: int, **members: Any) -> dict[str, Any]:
    """Return a record without usage except for ``members``."""
    return record(NOON + second, **{"api_key": 3, "request_bytes": 0, "response_bytes": 0, "thread_ms": 0.0} | members)


def produced(user: str, amounts: Mapping[int, int], **members: Any) -> list[dict[str, Any]]:
    return [silent(second, user=user, api_key=0, request_bytes=size, **members) for second, size in amounts.items()]


SCENARIOS = [
    *produced("gaps", {0: 110, 5: 220, 10: 330, 11: 440, 30: 550}),
    *produced("steady", dict.fromkeys(range(100), 1_100_000)),
    *produced("bursty", dict.fromkeys(range(0, 2000, 20), 11_000) | {3000: 22_000_000}),
    *produced("throttled", dict.fromkeys(range(99), 1_100_000)),
    *produced("throttled", {99: 1_100_000}, throttled={"producer_byte_rate": 3, "request_percentage": 1},
              refused={"producer_byte_rate": 1}),
    *produced("brief", {0: 1000}),
    *produced("several", {0: 600}, client_id="app-1", topic="a"),
    *produced("several", {0: 400, 1: 100}, client_id="app-2", topic="b"),
    *(silent(second, user="fetcher", api_key=api_key, response_bytes=5500) for second, api_key in ((0, 1), (1, 78))),
    *(silent(second, user="cpu", thread_ms=ms) for second, ms in ((0, 550.0), (20, 1100.0))),
    *(silent(second, user="admin", mutations=count) for second, count in ((0, 12), (3, 5))),
    *(silent(second, user="ids", producer_ids=count) for second, count in ((0, 5), (1800, 7), (3600, 11), (7300, 2))),
    silent(0, user="ids", api_key=INIT_PRODUCER_ID, requests=500),
    silent(0, user="initialized", api_key=INIT_PRODUCER_ID, requests=30, errors=10),
    silent(9, user="initialized"),
    *produced("", {0: 1000, 1: 1000}),
    *produced("<default>", {0: 1000, 1: 1000}),
    record(user=None, client_id=None),
]  # fmt: skip
