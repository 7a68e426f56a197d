"""Messages between the supervisor and a worker, and what happens to them when one of the two is slow or has exited."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
import trio

from headrace.proxy.workers.pipe import MAX_WAITING_MESSAGES, Message, Pipe, WorkerPipe, WorkerSilentError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LARGE = bytes(range(256)) * 20_000
DEADLINE_S = 30.0


def pair() -> tuple[WorkerPipe, Pipe]:
    ours, theirs = socket.socketpair()
    return WorkerPipe(ours), Pipe(theirs)


async def echo(worker_pipe: Pipe) -> None:
    """Run a worker that answers ``echo`` requests with their content, and no other requests."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker_pipe.run)
        while (message := await worker_pipe.receive()) is not None:
            if message.head["do"] == "echo":
                worker_pipe.send({"re": message.head["number"], "text": message.head["text"]}, message.body)
            elif message.head["do"] == "end":
                break
        worker_pipe.end()


async def with_worker(
    ask: Callable[[WorkerPipe], Awaitable[None]], worker: Callable[[Pipe], Awaitable[None]] = echo
) -> list[Message]:
    """Run ``ask`` with a worker, and return the events that were received meanwhile."""
    pipe, worker_pipe = pair()
    events: list[Message] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker, worker_pipe)
            nursery.start_soon(pipe.run, events.append)
            await ask(pipe)
            worker_pipe.close()
    return events


async def test_requests_of_all_sizes_are_answered_in_any_order() -> None:
    async def one(pipe: WorkerPipe, text: int, body: bytes) -> None:
        answer = await pipe.ask("echo", {"text": text}, body, timeout_s=DEADLINE_S)
        assert (answer.head["text"], answer.body) == (text, body)

    async def ask(pipe: WorkerPipe) -> None:
        async with trio.open_nursery() as nursery:
            for number, body in enumerate((b"", LARGE, b"small", LARGE[:65536])):
                nursery.start_soon(one, pipe, number, body)

    assert await with_worker(ask) == []


async def test_a_missing_answer_is_an_error_and_the_next_request_is_answered() -> None:
    async def ask(pipe: WorkerPipe) -> None:
        with pytest.raises(WorkerSilentError, match=r"no answer within 0\.01 s"):
            await pipe.ask("be silent", {}, LARGE, timeout_s=0.01)
        answer = await pipe.ask("echo", {"text": "x"}, timeout_s=DEADLINE_S)
        assert answer.head["text"] == "x"

    await with_worker(ask)


async def test_a_request_to_a_worker_that_exits_fails_at_once() -> None:
    async def ask(pipe: WorkerPipe) -> None:
        with pytest.raises(WorkerSilentError, match="it has exited"):
            await pipe.ask("end", {}, timeout_s=DEADLINE_S)
        with pytest.raises(WorkerSilentError, match="it has exited"):
            await pipe.ask("echo", {}, timeout_s=DEADLINE_S)

    async def ending(worker_pipe: Pipe) -> None:
        await echo(worker_pipe)
        worker_pipe.close()

    await with_worker(ask, ending)


async def test_events_arrive_in_order_and_all_that_were_sent_before_the_end() -> None:
    async def sending(worker_pipe: Pipe) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker_pipe.run)
            for number in range(5):
                worker_pipe.send({"event": "counted", "number": number}, LARGE)
            worker_pipe.end()
        worker_pipe.close()

    pipe, worker_pipe = pair()
    events: list[Message] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sending, worker_pipe)
            await pipe.run(events.append)
    assert [message.head["number"] for message in events] == list(range(5))
    assert {message.body for message in events} == {LARGE}


async def test_messages_to_a_worker_that_does_not_read_are_limited() -> None:
    pipe, worker_pipe = pair()
    for _ in range(MAX_WAITING_MESSAGES):
        pipe.send("echo", {"text": ""})
    with pytest.raises(WorkerSilentError, match="have not been read"):
        pipe.send("echo", {"text": ""})
    worker_pipe.close()
    with trio.fail_after(DEADLINE_S):
        await pipe.run(lambda _: None)
    pipe.send("echo", {"text": "after the end"})
