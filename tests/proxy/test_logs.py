"""Lines of text for people: whatever an error's text is, it looks like no line of its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import structlog

from headrace.config.schema import Log, LogFormat
from headrace.proxy.logs import configure_logs

if TYPE_CHECKING:
    from collections.abc import Iterator

FORGED = "x\n2026-11-22T00:00:00Z [info] all is well\x1b[2J\r"


@pytest.fixture(autouse=True)
def restore_configuration() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def fail() -> None:
    raise KeyError(FORGED) from ValueError(FORGED)


@pytest.mark.parametrize("log_format", LogFormat)
def test_the_text_of_an_error_forges_no_line(log_format: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(Log(format=log_format))
    with pytest.raises(KeyError) as caught:
        fail()
    structlog.get_logger().error("it failed", client_id=FORGED, exc_info=caught.value)
    written = capsys.readouterr().err
    assert "test_logs.py" in written
    assert written.replace("\n", "").isprintable()
    own = [line for line in written.splitlines() if re.match(r"\S", line)]
    assert len(own) == 1, own
