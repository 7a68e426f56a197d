"""What the supervisor and a worker say to each other, and what becomes of it when one of them is slow or gone."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
import trio

from headrace.proxy.workers.pipe import MAX_WAITING_MESSAGES, AskedWorker, Channel, Message, WorkerSilentError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LARGE = bytes(range(256)) * 20_000
DEADLINE_S = 30.0


def pair() -> tuple[AskedWorker, Channel]:
    ours, theirs = socket.socketpair()
    return AskedWorker(ours), Channel(theirs)


async def echo(channel: Channel) -> None:
    """A worker that answers "echo" with what it got, and nothing else."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run)
        while (message := await channel.receive()) is not None:
            if message.head["do"] == "echo":
                channel.send({"re": message.head["number"], "said": message.head["said"]}, message.body)
            elif message.head["do"] == "end":
                break
        channel.end()


async def with_worker(
    ask: Callable[[AskedWorker], Awaitable[None]], worker: Callable[[Channel], Awaitable[None]] = echo
) -> list[Message]:
    """Ask; the events that were told meanwhile."""
    asked, channel = pair()
    heard: list[Message] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker, channel)
            nursery.start_soon(asked.run, heard.append)
            await ask(asked)
            channel.close()
    return heard


async def test_questions_are_answered_whatever_their_size_and_order() -> None:
    async def one(asked: AskedWorker, said: int, body: bytes) -> None:
        answer = await asked.ask("echo", {"said": said}, body, timeout_s=DEADLINE_S)
        assert (answer.head["said"], answer.body) == (said, body)

    async def ask(asked: AskedWorker) -> None:
        async with trio.open_nursery() as nursery:
            for number, body in enumerate((b"", LARGE, b"small", LARGE[:65536])):
                nursery.start_soon(one, asked, number, body)

    assert await with_worker(ask) == []


async def test_who_gets_no_answer_in_time_is_told_and_the_next_question_is_answered() -> None:
    async def ask(asked: AskedWorker) -> None:
        with pytest.raises(WorkerSilentError, match=r"no answer within 0\.01 s"):
            await asked.ask("be silent", {}, LARGE, timeout_s=0.01)
        answer = await asked.ask("echo", {"said": "x"}, timeout_s=DEADLINE_S)
        assert answer.head["said"] == "x"

    await with_worker(ask)


async def test_who_asks_a_worker_that_goes_is_told_at_once() -> None:
    async def ask(asked: AskedWorker) -> None:
        with pytest.raises(WorkerSilentError, match="it is gone"):
            await asked.ask("end", {}, timeout_s=DEADLINE_S)
        with pytest.raises(WorkerSilentError, match="it is gone"):
            await asked.ask("echo", {}, timeout_s=DEADLINE_S)

    async def ending(channel: Channel) -> None:
        await echo(channel)
        channel.close()

    await with_worker(ask, ending)


async def test_events_come_in_order_and_what_was_sent_before_the_end_arrives() -> None:
    async def telling(channel: Channel) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.run)
            for number in range(5):
                channel.send({"event": "counted", "number": number}, LARGE)
            channel.end()
        channel.close()

    asked, channel = pair()
    heard: list[Message] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(telling, channel)
            await asked.run(heard.append)
    assert [message.head["number"] for message in heard] == list(range(5))
    assert {message.body for message in heard} == {LARGE}


async def test_a_worker_that_takes_nothing_does_not_fill_the_memory() -> None:
    asked, channel = pair()
    for _ in range(MAX_WAITING_MESSAGES):
        asked.tell("echo", {"said": ""})
    with pytest.raises(WorkerSilentError, match="messages wait for it"):
        asked.tell("echo", {"said": ""})
    channel.close()
    with trio.fail_after(DEADLINE_S):
        await asked.run(lambda _: None)
    asked.tell("echo", {"said": "to nobody"})
