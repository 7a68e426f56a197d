"""The typed configuration: what can be set, how it is read, and what a change of it means.

Blocks while it reads a file, opens no sockets, and knows of the project only the value types of `quota_callbacks` and
its `options`, with which all tables are declared.

    schema           every key: its type, default, meaning, and whether a change needs a restart; `Config`
    quotas           the `[[quotas]]` tables
    keys             what `schema` is made of, and the list of all keys
    values           addresses, broker ids, durations and sizes
    loading          from a file, flags and variables to a `Config`, or to all problems at once
    overrides        the flags and environment variables that set keys
    rules            what must hold between keys
    positions        the lines of a TOML document's keys
    problems         what is wrong, and where; `ConfigError`
    reload           the difference between two configurations
    check            the answer to `headrace check-config`
    editing          the commented sample file, and the schema for editors
"""

from headrace.config.check import CheckReport, check
from headrace.config.editing import json_schema, json_schema_text, sample_text
from headrace.config.loading import load, loads
from headrace.config.overrides import FLAGS, Flag
from headrace.config.problems import ConfigError, ConfigFileError, ConfigSyntaxError, ConfigValueError, Problem
from headrace.config.quotas import ConfiguredQuota
from headrace.config.reload import ConfigDiff, QuotaChange, SettingChange, diff
from headrace.config.schema import (
    Admin,
    Config,
    Enforcement,
    Limits,
    Listen,
    Log,
    LogFormat,
    LogLevel,
    OnError,
    Plugins,
    QuotaWindow,
    Shutdown,
    UnknownNodeIdError,
    Upstream,
)
from headrace.config.values import HostPort, NodeIds

__all__ = [
    "FLAGS",
    "Admin",
    "CheckReport",
    "Config",
    "ConfigDiff",
    "ConfigError",
    "ConfigFileError",
    "ConfigSyntaxError",
    "ConfigValueError",
    "ConfiguredQuota",
    "Enforcement",
    "Flag",
    "HostPort",
    "Limits",
    "Listen",
    "Log",
    "LogFormat",
    "LogLevel",
    "NodeIds",
    "OnError",
    "Plugins",
    "Problem",
    "QuotaChange",
    "QuotaWindow",
    "SettingChange",
    "Shutdown",
    "UnknownNodeIdError",
    "Upstream",
    "check",
    "diff",
    "json_schema",
    "json_schema_text",
    "load",
    "loads",
    "sample_text",
]
