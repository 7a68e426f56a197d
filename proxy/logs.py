"""Configuration of logging: one line per event on standard error, as text or as JSON.

Called by the command line, by each worker at its start, and on reload.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_logs(*, level: str, json_lines: bool, worker: int | None = None) -> None:
    """Set the level and the format of all loggers; with ``worker``, add its number to every line."""
    render: Sequence[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(sort_keys=False)]
        if json_lines
        else [_drop_unset, _text_renderer()]
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(() if worker is None else (_add_worker(worker),)),
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )


def set_log_level(level: str) -> None:
    """Change the level of all loggers and keep the format."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]))


def _add_worker(worker: int) -> Any:
    def name(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event.setdefault("worker", worker)
        return event

    return name


def _text_renderer() -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(),
        pad_event_to=0,
        sort_keys=False,
        exception_formatter=structlog.dev.plain_traceback,  # without values of local variables, which may be passwords
    )


def _drop_unset(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Remove fields without a value from a line of text."""
    return {key: _on_one_line(value) for key, value in event.items() if value is not None}


def _on_one_line(value: object) -> object:
    """Escape text that is not printable: a client id could otherwise forge log lines."""
    if not isinstance(value, str) or value.isprintable():
        return value
    return value.encode("unicode_escape").decode("ascii")
