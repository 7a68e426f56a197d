"""What the operator asked for: the table ``[plugins.options.usage_records]``. Pure; called at start."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from quota_callbacks.usage_records import DEFAULT_TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_MAX_ROWS: Final = 10_000
"""Of one second: about 6 MiB, and 0.1 s of a core to write."""
LARGEST_MAX_ROWS: Final = 1_000_000
DEFAULT_ROTATE_S: Final = 60
LONGEST_ROTATE_S: Final = 86_400
DEFAULT_ROTATE_BYTES: Final = 64 * 1024 * 1024
DEFAULT_KEEP_BYTES: Final = 1024 * 1024 * 1024
LEAST_BYTES: Final = 64 * 1024
MOST_BYTES: Final = 2**50

_PATH: Final = "plugins.options.usage_records"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageOptions:
    """The options as they take effect."""

    folder: str | None = None
    """Where the files are; ``None``: to a topic, or nowhere."""
    topic: str | None = None
    bootstrap_servers: str | None = None
    client: Mapping[str, str]
    """Further settings of librdkafka, such as for TLS and SASL."""
    name: str
    """Of this proxy, the first part of ``instance``."""
    topics: bool = False
    """Whether the bytes of a Produce are told by topic."""
    max_rows: int = DEFAULT_MAX_ROWS
    rotate_s: int = DEFAULT_ROTATE_S
    rotate_bytes: int = DEFAULT_ROTATE_BYTES
    keep_bytes: int = DEFAULT_KEEP_BYTES
    """All files of the folder together: the oldest finished ones are removed beyond it, counted and logged."""

    @property
    def enabled(self) -> bool:
        """Whether there is somewhere to write to."""
        return self.folder is not None or self.topic is not None


_FILES_ALONE: Final = ("rotate_s", "rotate_bytes", "keep_bytes")
_KAFKA_ALONE: Final = ("bootstrap_servers", "client")
_KNOWN: Final = ("folder", "topic", *_KAFKA_ALONE, "name", "topics", "max_rows", *_FILES_ALONE)


def read_options(table: Mapping[str, object]) -> UsageOptions:
    """The options of ``table``, or ``ValueError`` with a sentence that names the option, its value and the rule."""
    for name in table:
        if name not in _KNOWN:
            raise ValueError(f"{_PATH}.{name}: there is no such option; there are {', '.join(_KNOWN)}")
    folder, topic, servers = (_text(table, name) for name in ("folder", "topic", "bootstrap_servers"))
    if folder is not None and (topic is not None or servers is not None):
        raise ValueError(f"{_PATH} has both folder and {'topic' if topic else 'bootstrap_servers'}; expected one place")
    if servers is not None and topic is None:
        topic = DEFAULT_TOPIC
    if topic is not None and servers is None:
        raise ValueError(f'{_PATH}.topic is {topic!r} without bootstrap_servers, such as "broker-0:9092"')
    for name in _FILES_ALONE if folder is None else _KAFKA_ALONE:
        if name in table and (folder or topic):
            raise ValueError(f"{_PATH}.{name} is for {'files (folder)' if folder is None else 'a topic'} alone")
    topics = table.get("topics", False)
    if not isinstance(topics, bool):
        raise ValueError(f"{_PATH}.topics is {topics!r}; expected true or false")  # noqa: TRY004
    rotate_bytes = _whole(table, "rotate_bytes", DEFAULT_ROTATE_BYTES, LEAST_BYTES, MOST_BYTES, "bytes")
    keep_bytes = _whole(table, "keep_bytes", max(DEFAULT_KEEP_BYTES, rotate_bytes), LEAST_BYTES, MOST_BYTES, "bytes")
    if keep_bytes < rotate_bytes:
        raise ValueError(f"{_PATH}.keep_bytes is {keep_bytes}; expected at least rotate_bytes, {rotate_bytes}")
    return UsageOptions(
        folder=folder,
        topic=topic,
        bootstrap_servers=servers,
        client=_client(table),
        name=_text(table, "name") or socket.gethostname(),
        topics=topics,
        max_rows=_whole(table, "max_rows", DEFAULT_MAX_ROWS, 1, LARGEST_MAX_ROWS, "rows"),
        rotate_s=_whole(table, "rotate_s", DEFAULT_ROTATE_S, 1, LONGEST_ROTATE_S, "seconds"),
        rotate_bytes=rotate_bytes,
        keep_bytes=keep_bytes,
    )


def _text(table: Mapping[str, object], name: str) -> str | None:
    value = table.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"{_PATH}.{name} is {value!r}; expected a text that is not empty")
    return value


def _whole(table: Mapping[str, object], name: str, default: int, least: int, most: int, what: str) -> int:
    value = table.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{_PATH}.{name} is {value!r}; expected a whole number of {what} from {least} to {most}")
    return value


def _client(table: Mapping[str, object]) -> dict[str, str]:
    value = table.get("client", {})
    if not isinstance(value, dict) or not all(isinstance(each, str | int | bool | float) for each in value.values()):
        raise ValueError(
            f"{_PATH}.client is {value!r}; expected a table of librdkafka's settings, each key in quotes, such as"
            ' "security.protocol" = "ssl"'
        )
    return {name: str(each).lower() if isinstance(each, bool) else str(each) for name, each in value.items()}
