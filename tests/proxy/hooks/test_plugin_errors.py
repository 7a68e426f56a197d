"""The errors in a plugin's options, as the proxy reports them."""

from __future__ import annotations

from typing import Annotated

import pytest

from headrace.proxy.hooks.plugin_errors import configuration_faults
from headrace.quota_callbacks.options import OptionsError, Table, read_options, whole


class Options(Table):
    """The options of a plugin."""

    pause_ms: Annotated[int, whole(0, 1000)] = 0


@pytest.mark.parametrize("name", ["slow_creations", "slow_creations:SlowCreations"])
def test_the_path_is_that_of_the_plugins_table(name: str) -> None:
    with pytest.raises(OptionsError) as caught:
        read_options(Options, {"pause_ms": -1, "pause_s": 1}, "slow_creations")
    wrong, unknown = configuration_faults(name, caught.value, {})
    assert (wrong.path, unknown.path) == (
        ("plugins", "options", name, "pause_ms"),
        ("plugins", "options", name, "pause_s"),
    )
    table = name if ":" not in name else f'"{name}"'
    assert unknown.rule == f"unknown key; did you mean plugins.options.{table}.pause_ms?"
