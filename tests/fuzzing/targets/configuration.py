"""Targets: the configuration as TOML, environment variables and flags; price sheets, budgets and cost files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.config.check import summary
from headrace.config.keys import keys
from headrace.config.loading import loads
from headrace.config.overrides import FLAGS, variable_of
from headrace.config.problems import ConfigError
from headrace.config.reload import diff
from headrace.config.schema import Config
from headrace.pipeline.analysis.prices import read_prices
from headrace.pipeline.analysis.quota_files import as_toml
from headrace.pipeline.errors import InputError
from headrace.pipeline.finops.budget_files import read_budgets
from headrace.quota_callbacks.builtin.cost_files import load_costs
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from tests.fuzzing.choices import Choices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LEAVES: Final = tuple(keys(Config))
VALUES: Final = (
    '"127.0.0.1:9092"', '["127.0.0.1:9092"]', "1", "true", '"10s"', '"1MiB"', "0.5", '"off"', "-1", "0", '""', "[]",
    "{}",
    "1e400", "nan", "inf", '"0-31"', '"<default>"', '{ user = "u" }', '{ client-id = "<default>" }', "9" * 30,
    "1979-05-27T07:32:00Z", "[[[]]]", '"\\u0000"', '"\\u001b[2J"', "'''\n'''", '{ num = 2, size = "1s" }', "0x10",
    '"host"',
    '":9092"', '"[::1]:1"', '"1-0"', '"65535"', '"1e3"', '"1kB"', '"1d"', "9" * 5000,
)  # fmt: skip
HEADERS: Final = (
    "[upstream]", "[listen]", "[limits]", "[[quotas]]", "[quota]", "[quota.window]", "[plugins]",
    "[plugins.options.usage_records]",
    "[admin]", "[log]", "[shutdown]", "[enforcement]", "[plugins.options]", "[[plugins.options.tracing]]",
    "[controller.quota.window]",
)  # fmt: skip
REQUIRED: Final = 'upstream.bootstrap_servers = ["127.0.0.1:9092"]\nlisten.address = "127.0.0.1:9192"\n'
PLUGINS: Final = ("usage_records", "tracing", "request_percentage")
LONGEST_LINE: Final = 4000


def _document(choices: Choices) -> str:
    """Return a document made of keys of the schema and values that fit them, or do not."""
    lines = [REQUIRED] if choices.byte() < 200 else []
    for _ in range(choices.byte() % 16):
        what = choices.byte()
        if what < 60:
            lines.append(choices.pick(HEADERS))
        elif what < 120:
            lines.append(f"{'.'.join(choices.pick(LEAVES).path)} = {_value(choices)}")
        elif what < 180:
            lines.append(f"{choices.pick(LEAVES).path[-1]} = {_value(choices)}")
        elif what < 240:
            lines.append(
                f"{choices.pick(('entity', *QuotaKey, 'enforcement', 'costs', 'costs_file'))} = {_value(choices)}"
            )
        else:
            lines.append(choices.take(choices.byte() % 64).decode("utf-8", "replace"))
    return "\n".join(lines)


def _value(choices: Choices) -> str:
    decision = choices.byte()
    if decision < 200:
        return VALUES[decision % len(VALUES)]
    return choices.take(choices.byte() % 32).decode("utf-8", "replace")


def _check_report(error: ConfigError | InputError) -> None:
    assert str(error)
    for line in str(error).splitlines():
        assert len(line) < LONGEST_LINE, line


def _check_config(config: Config) -> None:
    assert summary(config)
    changes = diff(config, config)
    assert not changes, changes


def document(data: bytes) -> None:
    """Load a TOML document: a configuration, or a `ConfigError` with one line for each problem."""
    choices = Choices(data)
    text: str | bytes = choices.rest() if choices.flag() else _document(choices)
    try:
        config = loads(text, plugins=PLUGINS)
    except ConfigError as error:
        _check_report(error)
        return
    _check_config(config)


def environment(data: bytes) -> None:
    """Load environment variables and flags, over a document."""
    choices = Choices(data)
    variables: dict[str, str] = {}
    flags: dict[str, object] = {}
    for _ in range(choices.byte() % 8):
        kind = choices.byte()
        if kind < 100:
            variables[variable_of(choices.pick(LEAVES).path)] = _value(choices)
        elif kind < 180:
            flags[choices.pick(FLAGS).key] = _value(choices)
        elif kind < 220:
            variables["HEADRACE_PLUGINS__OPTIONS__" + choices.take(choices.byte() % 20).decode("latin-1")] = _value(
                choices
            )
        else:
            variables["HEADRACE_" + choices.take(choices.byte() % 20).decode("latin-1")] = _value(choices)
    try:
        config = loads(_document(choices), "file", flags, environment=variables)
    except ConfigError as error:
        _check_report(error)
        return
    _check_config(config)


def _written(text: bytes) -> str:
    path = Path(tempfile.gettempdir()) / "headrace-fuzzing.toml"
    path.write_bytes(text)
    return str(path)


def cost_file(data: bytes) -> None:
    """Read the costs of APIs from a file: costs, or a ``ValueError`` that names the option."""
    choices = Choices(data)
    if choices.flag():
        text = choices.rest()
    else:
        rows = [
            f"{choices.byte() % 100} = {{ base_ms = {_value(choices)}, per_kib_ms = {_value(choices)} }}"
            for _ in range(choices.byte() % 4)
        ]
        text = "\n".join(["[costs]", *rows]).encode()
    try:
        costs = load_costs(_written(text))
    except ValueError as error:
        assert str(error).startswith("costs_file = ")  # noqa: PT017
        return
    assert all(cost.base_ms >= 0 and cost.per_kib_ms >= 0 for cost in costs.values())


def price_sheet(data: bytes) -> None:
    """Read a price sheet."""
    names = (
        "currency",
        "per_gib_produced",
        "per_thread_hour",
        "minimum",
        "discount_percent",
        "\n[teams.t]\nminimum",
        "\n[shared.s]\namount",
        "split",
    )
    _read_decimals(data, names, read_prices)


def budget_file(data: bytes) -> None:
    """Read a file of budgets."""
    _read_decimals(data, ("currency", "\n[teams.t]\namount", "amount", "alert_percent", "cluster"), read_budgets)


def _read_decimals(data: bytes, names: Sequence[str], read: Callable[[str], object]) -> None:
    choices = Choices(data)
    if choices.flag():
        text = choices.rest()
    else:
        text = "\n".join(f"{choices.pick(names)} = {_value(choices)}" for _ in range(choices.byte() % 8)).encode()
    try:
        read(_written(text))
    except InputError as error:
        _check_report(error)


def quota_tables(data: bytes) -> None:
    """Write quotas as ``[[quotas]]`` tables, as the pipeline's recommendations: the proxy reads the same back."""
    choices = Choices(data)
    name = choices.take(choices.byte() % 32).decode("utf-8", "replace")
    if not name or (name.startswith("<") and name.endswith(">")):
        return
    entity = QuotaEntity(user=name) if choices.flag() else QuotaEntity(client_id=name)
    key = choices.pick(tuple(QuotaKey))
    value = float(choices.number() + 1)
    try:
        BUILTIN_SCHEMA.check(key, value, entity)
    except ValueError:
        return
    written = as_toml({(entity.user, entity.client_id): {key: (value, "a reason")}})  # type: ignore[dict-item]
    config = loads(REQUIRED + written)
    assert config.entity_quotas()[entity][key].value == value
