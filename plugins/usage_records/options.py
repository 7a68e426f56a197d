"""The options of the plugin: the table ``[plugins.options.usage_records]``. Read at start."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from pydantic import Field, SecretStr, model_validator

from headrace.quota_callbacks.files import group_id_of
from headrace.quota_callbacks.options import TRUE_OR_FALSE, Fault, Table, choice, text, validation_error, whole
from headrace.quota_callbacks.records.usage_records import DEFAULT_TOPIC
from headrace.quota_callbacks.secret_sources import secrets_of
from headrace.quota_callbacks.units import size

DEFAULT_MAX_ROWS: Final = 10_000
"""Rows of one second: about 6 MiB, and 0.1 s of CPU time to write."""
LARGEST_MAX_ROWS: Final = 1_000_000
DEFAULT_ROTATE_S: Final = 60
LONGEST_ROTATE_S: Final = 86_400
DEFAULT_ROTATE_BYTES: Final = 64 * 1024 * 1024
DEFAULT_KEEP_BYTES: Final = 1024 * 1024 * 1024
LEAST: Final = "64KiB"
MOST: Final = "1048576GiB"

_TEXT: Final = text("a text that is not empty")
_FILES_ALONE: Final = ("format", "group", "rotate_s", "rotate_bytes", "keep_bytes")
_KAFKA_ALONE: Final = ("bootstrap_servers", "client")


class FileFormat(StrEnum):
    """The formats of finished files."""

    JSONL = "jsonl"
    """JSON lines."""
    PARQUET = "parquet"


class UsageOptions(Table):
    """The options of ``usage_records``."""

    folder: Annotated[str | None, _TEXT] = None
    """The folder of the files; ``None``: records go to a topic, or nowhere."""
    format: Annotated[FileFormat, choice(FileFormat)] = FileFormat.JSONL
    group: Annotated[str | None, text("the name or number of a group")] = None
    """The group that may read the files; ``None``: only the proxy's user may."""
    topic: Annotated[str | None, _TEXT] = None
    bootstrap_servers: Annotated[str | None, _TEXT] = None
    client: Annotated[
        Mapping[str, SecretStr],
        secrets_of(
            'a table of librdkafka\'s settings, each key in quotes, such as "security.protocol" = "ssl" or '
            '"sasl.password" = { file = "/run/secrets/password" }'
        ),
    ] = {}
    """Further settings of librdkafka, such as for TLS and SASL."""
    name: Annotated[str, _TEXT] = Field(default_factory=socket.gethostname)
    """The name of this proxy, the first part of ``instance``."""
    topics: Annotated[bool, TRUE_OR_FALSE] = False
    """Whether to record the bytes of Produce requests by topic."""
    max_rows: Annotated[int, whole(1, LARGEST_MAX_ROWS, "rows")] = DEFAULT_MAX_ROWS
    rotate_s: Annotated[int, whole(1, LONGEST_ROTATE_S, "seconds")] = DEFAULT_ROTATE_S
    rotate_bytes: Annotated[int, size(LEAST, MOST)] = DEFAULT_ROTATE_BYTES
    keep_bytes: Annotated[int, size(LEAST, MOST)] = Field(
        default_factory=lambda given: max(DEFAULT_KEEP_BYTES, given.get("rotate_bytes", 0))
    )
    """Maximum size of all files in the folder; beyond it the oldest completed files are removed, counted and logged."""

    @model_validator(mode="before")
    @classmethod
    def _write_to_the_usual_topic(cls, table: Any) -> Any:
        return {"topic": DEFAULT_TOPIC, **table} if "bootstrap_servers" in table else table

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Reject two destinations, an incomplete one, and options of the other destination."""
        faults: list[Fault] = []
        if self.folder is not None and self.topic is not None:
            faults.append(Fault(path=("folder",), rule="expected either a folder or a topic, not both"))
        elif self.topic is not None and self.bootstrap_servers is None:
            rule = 'expected bootstrap_servers, too, such as "broker-0:9092"'
            faults.append(Fault(path=("topic",), found=self.topic, rule=rule))
        elif self.enabled:
            files = self.folder is not None
            destination = "a topic" if files else "files (folder)"
            faults += (
                Fault(path=(name,), rule=f"only applies to {destination}")
                for name in (_KAFKA_ALONE if files else _FILES_ALONE)
                if name in self.model_fields_set
            )
        if self.keep_bytes < self.rotate_bytes:
            rule = f"expected at least rotate_bytes, {self.rotate_bytes}"
            faults.append(Fault(path=("keep_bytes",), found=self.keep_bytes, rule=rule))
        try:
            self.group_id()
        except ValueError as error:
            faults.append(Fault(path=("group",), found=self.group, rule=str(error)))
        if faults:
            raise validation_error(faults)
        return self

    def group_id(self) -> int | None:
        """Return the id of `group`. Raises `ValueError` if there is no such group."""
        return None if self.group is None else group_id_of(self.group)

    @property
    def enabled(self) -> bool:
        """Whether a destination is set."""
        return self.folder is not None or self.topic is not None
