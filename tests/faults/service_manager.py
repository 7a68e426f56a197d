"""The other end of the proxy's notifications to systemd, over a real socket."""

from __future__ import annotations

import socket

WATCHDOG_S = 1.0
"""The proxy sends two messages in it. The socket's queue has room for ten, so a pause of the test is no harm."""


class Receiver:
    """The service manager's end: a socket, and the messages that have arrived with the process ids of their senders."""

    def __init__(self, name: str) -> None:
        self.variables = {
            "NOTIFY_SOCKET": name.replace("\0", "@", 1),
            "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6)),
        }
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(name)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.setblocking(False)
        self._messages: list[str] = []
        self.senders: set[int] = set()

    def messages(self) -> list[str]:
        """All messages so far."""
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(12))
            except BlockingIOError:
                return self._messages
            self._messages.append(data.decode())
            self.senders.add(int.from_bytes(ancillary[0][2][:4], "little"))

    def states(self) -> list[str]:
        """The first line of all messages so far, without those to the watchdog."""
        return [message.split("\n")[0] for message in self.messages() if message != "WATCHDOG=1"]

    def close(self) -> None:
        self._socket.close()
