"""A fake broker that holds its replies back for as long as a test wants, which a real one does not."""

from __future__ import annotations

import contextlib
import queue
import select
from typing import TYPE_CHECKING

from tests.faults.fake_broker import HEARTBEAT_REPLY, FakeBroker

if TYPE_CHECKING:
    from tests.faults.fake_broker import Asked, Conversation

TURN_MS = 10


class HoldingBroker:
    """A fake broker that reads the requests of the client "held", and answers as many as it is allowed to."""

    def __init__(self) -> None:
        self.read = 0
        self._allowed: queue.Queue[None] = queue.Queue()
        self.fake = FakeBroker({"held": self._hold, "large": self._answer_at_length})

    def allow(self, count: int) -> None:
        for _ in range(count):
            self._allowed.put(None)

    def _hold(self, conversation: Conversation, asked: Asked) -> None:
        """Reading and answering take turns, so that one thread does both."""
        waiting = [asked]
        self.read += 1
        poll = select.poll()
        poll.register(conversation.sock, select.POLLIN)
        while not self.fake.stopping.is_set():
            with contextlib.suppress(queue.Empty):
                while waiting:
                    self._allowed.get_nowait()
                    conversation.reply(waiting.pop(0), HEARTBEAT_REPLY)
            if poll.poll(TURN_MS):
                waiting.append(conversation.next())
                self.read += 1

    def _answer_at_length(self, conversation: Conversation, asked: Asked) -> None:
        conversation.reply(asked, bytes(5000))
