"""A client that does nothing wrong, beside those that do: it must not notice them."""

from __future__ import annotations

import contextlib
import struct
import threading
from typing import TYPE_CHECKING, Self

from tests.faults import messages
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

PAUSE_S = 0.005
"""Between two requests, so that the bystander leaves the processor to those it watches."""


class Bystander:
    """Asks ApiVersions and Metadata in turn over one connection, from a thread of its own, until the block ends."""

    def __init__(self, port: int) -> None:
        self.answers = 0
        self.error: Exception | None = None
        self._client = RawClient(port, client_id="bystander")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bystander")

    def _run(self) -> None:
        try:
            while not self._stop.wait(PAUSE_S):
                versions = self._client.call(messages.API_VERSIONS, 0)
                assert struct.unpack_from(">h", versions) == (0,), "ApiVersions was answered with an error"
                metadata = self._client.call(messages.METADATA, messages.METADATA_VERSION, messages.NO_TOPICS)
                assert struct.unpack_from(">i", metadata)[0] >= 1, "Metadata names no broker"
                self.answers += 2
        except (OSError, AssertionError, struct.error) as error:
            self.error = error

    def wait_for_answers(self, count: int = 4) -> None:
        """Wait until it has got `count` more replies."""
        wanted = self.answers + count
        wait_until(lambda: self.error is not None or self.answers >= wanted, f"{count} more answers for the bystander")
        assert self.error is None, f"the bystander was disturbed: {self.error!r}"

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """A block during and after which it must be served; before it, too, or the block would prove nothing."""
        self.wait_for_answers()
        yield
        self.wait_for_answers()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        self._client.close()
        assert not self._thread.is_alive(), "the bystander's thread did not end"
