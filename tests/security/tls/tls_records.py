"""A TLS client that writes any record, encrypted as its own: those that no library writes.

Python's ``ssl`` does the handshake and reads. The keys of this side come from its log of keys, and records are
encrypted here, so that ``ssl`` must not write itself. TLS 1.3 (RFC 8446, section 5.2) and TLS 1.2 (RFC 5288) with
AES-GCM.
"""

from __future__ import annotations

import hmac
import socket
import ssl
import struct
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Self

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

if TYPE_CHECKING:
    from pathlib import Path

CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, DATA = 20, 21, 22, 23
"""Types of records."""
WARNING, FATAL = 1, 2
CLOSE_NOTIFY: Final = bytes([WARNING, 0])
USER_CANCELED: Final = bytes([WARNING, 90])
NO_RENEGOTIATION: Final = bytes([WARNING, 100])

KEY_UPDATE: Final = bytes([24, 0, 0, 1, 0])
"""This side changes its key; the last byte does not ask the other side for the same."""
KEY_UPDATE_FOR_BOTH: Final = bytes([24, 0, 0, 1, 1])

_RANDOM_BYTES: Final = 32
_KEY_BYTES: Final = 16
"""The size of the keys of TLS 1.2."""


class RecordClient:
    """A connection to a port of 127.0.0.1 after its handshake. A context manager.

    `folder` gets a file with its keys. `version` is that of TLS. The cipher suite
    is the one that OpenSSL prefers: AES-256-GCM with SHA-384 in TLS 1.3, AES-128-GCM with SHA-256 in TLS 1.2.
    """

    def __init__(
        self, port: int, context: ssl.SSLContext, folder: Path, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    ) -> None:
        self._is_1_3 = version is ssl.TLSVersion.TLSv1_3
        keys = folder / f"keys-{id(self)}"
        context.keylog_filename = str(keys)
        context.minimum_version = context.maximum_version = version
        if not self._is_1_3:
            context.set_ciphers("ECDHE+AESGCM:!AES256")
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, outgoing, server_hostname="localhost")
        self._sequence = 0
        sent, received = self._shake_hands(outgoing)
        logged = dict(line.split(" ", 1) for line in keys.read_text("ascii").splitlines() if line[0] != "#")
        if self._is_1_3:
            assert self._tls.cipher() == ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256), "OpenSSL's choice"
            self._secret = bytes.fromhex(logged["CLIENT_TRAFFIC_SECRET_0"].split()[1])
            self._set_keys_1_3()
        else:
            self._set_keys_1_2(bytes.fromhex(logged["CLIENT_RANDOM"].split()[1]), _random(sent), _random(received))

    def _shake_hands(self, outgoing: ssl.MemoryBIO) -> tuple[bytes, bytes]:
        """Return the first record of each side."""
        sent, received = bytearray(), bytearray()
        while True:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            data = outgoing.read()
            sent += data
            self.sock.sendall(data)
            if done:
                return bytes(sent), bytes(received)
            data = self.sock.recv(65536)
            received += data
            self._incoming.write(data)

    # --- records ---

    def record(self, kind: int, content: bytes, *, padding: int = 0) -> bytes:
        """Return the next record. Records have to be sent in the order in which they are made."""
        if self._is_1_3:
            inner = content + bytes([kind]) + bytes(padding)
            nonce = bytes(a ^ b for a, b in zip(self._iv, struct.pack(">4xQ", self._sequence), strict=True))
            header = struct.pack(">BHH", DATA, 0x0303, len(inner) + 16)
            sealed = header + self._cipher.encrypt(nonce, inner, header)
        else:
            explicit = struct.pack(">Q", self._sequence)
            checked = explicit + struct.pack(">BHH", kind, 0x0303, len(content))
            body = explicit + self._cipher.encrypt(self._iv + explicit, content, checked)
            sealed = struct.pack(">BHH", kind, 0x0303, len(body)) + body
        self._sequence += 1
        return sealed

    def key_update(self, *, for_both: bool = False) -> bytes:
        """Return the record of a KeyUpdate; later ones are encrypted by the new key. TLS 1.3 only."""
        made = self.record(HANDSHAKE, KEY_UPDATE_FOR_BOTH if for_both else KEY_UPDATE)
        self._secret = self._expand("traffic upd", SHA384.digest_size)
        self._set_keys_1_3()
        return made

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def receive(self, count: int) -> bytes:
        """Return the next ``count`` bytes of data. Raises ``EOFError`` at the end, and what TLS or the system raise."""
        found = bytearray()
        while len(found) < count:
            try:
                some = self._tls.read(count - len(found))
            except ssl.SSLWantReadError:
                data = self.sock.recv(65536)
                if not data:
                    raise EOFError from None
                self._incoming.write(data)
                continue
            if not some:
                raise EOFError
            found += some
        return bytes(found)

    # --- keys ---

    def _set_keys_1_3(self) -> None:
        self._cipher = AESGCM(self._expand("key", 32))
        self._iv = self._expand("iv", 12)
        self._sequence = 0

    def _expand(self, label: str, size: int) -> bytes:
        """HKDF-Expand-Label (RFC 8446, section 7.1)."""
        name = b"tls13 " + label.encode()
        info = struct.pack(">HB", size, len(name)) + name + b"\0"
        return HKDFExpand(SHA384(), size, info).derive(self._secret)

    def _set_keys_1_2(self, master: bytes, client_random: bytes, server_random: bytes) -> None:
        """The key block (RFC 5246, section 6.3): two keys, then two salts."""
        seed = b"key expansion" + server_random + client_random
        block, step = b"", seed
        while len(block) < 2 * _KEY_BYTES + 8:
            step = hmac.digest(master, step, sha256)
            block += hmac.digest(master, step + seed, sha256)
        self._cipher = AESGCM(block[:_KEY_BYTES])
        self._iv = block[2 * _KEY_BYTES :][:4]
        self._sequence = 1  # Finished was the first

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _random(first_record: bytes) -> bytes:
    """Return the random number in the hello that begins these bytes."""
    return first_record[11 : 11 + _RANDOM_BYTES]
