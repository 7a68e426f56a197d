"""Configuration of logging: one line per event on standard error, as text or as JSON.

Called by the command line, and on reload. In `headrace.proxy.output_queue.queued_output`, logging never waits, and
lines for which the queue has no room are not even formatted.
"""

from __future__ import annotations

import logging
import sys
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, TextIO

import structlog

from headrace.proxy.output_queue import error_queue
from headrace.proxy.repeated_lines import RepeatedLines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.config.schema import Log

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_logs(settings: Log) -> None:
    """Set the level and the format of all loggers."""
    render: Sequence[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(sort_keys=False)]
        if settings.format.value == "json"
        else [_drop_unset, _text_renderer()]
    )
    structlog.configure(
        processors=[
            _drop_if_full,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *render,
        ],
        logger_factory=_StandardError,
        cache_logger_on_first_use=False,
    )
    apply_log_settings(settings)


def apply_log_settings(settings: Log) -> None:
    """Set what can change while the proxy runs: the level of all loggers, and the limit of repeated lines."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[settings.level.value]))
    RepeatedLines.lines_per_minute = settings.lines_per_minute


class _StandardError:
    """The logger that structlog calls with each formatted line: writes it to what ``sys.stderr`` is at that time."""

    def __init__(self, *_: object) -> None: ...

    def msg(self, line: str) -> None:
        if sys.stderr is not None:  # it is, if the process was started without a standard error
            sys.stderr.write(line + "\n")

    debug = info = warning = error = critical = msg


def _drop_if_full(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    queue = error_queue()
    if queue is not None and queue.full:
        queue.drop()
        raise structlog.DropEvent
    return event


def _text_renderer() -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(
        colors=sys.stderr is not None and sys.stderr.isatty(),
        pad_event_to=0,
        sort_keys=False,
        exception_formatter=_write_traceback,
    )


def _write_traceback(target: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    """Write a traceback without the values of local variables, which may be passwords.

    Its lines are indented, and what is not printable is escaped: the text of an error may be a client's.
    """
    text = StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    target.writelines(f"\n    {_on_one_line(line)}" for line in text.getvalue().strip("\n").split("\n"))


def _drop_unset(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Remove fields without a value from a line of text."""
    return {key: _on_one_line(value) for key, value in event.items() if value is not None}


def _on_one_line(value: object) -> object:
    """Escape text that is not printable: a client id could otherwise forge log lines."""
    if not isinstance(value, str) or value.isprintable():
        return value
    return value.encode("unicode_escape").decode("ascii")
