"""Requests that are over, and what sums them up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from headrace.plugins.usage_records.encoding import Encoder
from headrace.plugins.usage_records.rows import Seconds
from headrace.plugins.usage_records.writer_thread import Sink, WriterThread
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.requests import Address, Connection, Request
from headrace.quota_callbacks.verdicts import Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PRODUCE, FETCH, CREATE_TOPICS = ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.CREATE_TOPICS
REASON = Reason(quota="producer_byte_rate", entity="user=alice", observed=2.0, limit=1.0)


def request(api_key: int = PRODUCE, user: str = "alice", client_id: str = "app", **members: Any) -> Request:
    connection = Connection(connection_id=1, peer=Address(host="127.0.0.1", port=1), user=user)
    made = Request(connection, api_key, 9, 1, client_id, members.pop("request_bytes", 100), 10.0)
    made.forwarded_s, made.reply_s, made.completed_s, made.response_bytes = 10.0, 10.25, 10.5, 40
    for name, value in members.items():
        setattr(made, name, value)
    return made


def seconds(max_rows: int = 10) -> Seconds:
    return Seconds(max_rows, lambda each: 0.5 * (1 + each.api_key))


def writer_thread(
    sums: Seconds, sink: Sink, run_on_loop: Callable[[Callable[[], Awaitable[None]]], None], second: int = 0
) -> WriterThread:
    return WriterThread(
        sums,
        sink,
        Encoder("a-1"),
        present_second=lambda: second,
        deliver_completed=trio.lowlevel.checkpoint,
        run_on_loop=run_on_loop,
    )


class SecondBySecond:
    """The writer thread's work, without the thread: each `write` is a second of its own."""

    def __init__(self, sums: Seconds, sink: Sink) -> None:
        self.sums = sums
        self.thread = writer_thread(sums, sink, lambda _: None)
        self.second = 0

    def write(self, *requests: Request) -> None:
        for made in requests:
            self.sums.add(made, self.second)
        self.second += 1
        self.thread._note(self.sums.take(self.second))
        self.thread._write_taken()
