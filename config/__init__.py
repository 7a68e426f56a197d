"""The typed configuration: what can be set, how it is read, and what a change of it means.

Blocks while it reads a file, opens no sockets, and knows of the project only the value types of `quota_callbacks`.

    schema           every key: its type, default, meaning, and whether a change needs a restart; `Config`
    keys             what `schema` is made of, and how tables are read by it
    kinds            kinds of values: durations, sizes, choices, lists
    address_kinds    those that name hosts, ports and brokers; `addresses` has the values
    quotas           the `[[quotas]]` tables
    usage            the keys of windows and of `quota.state`
    workers          how many processes
    plugin_options   the free tables of the plugins
    units            durations and sizes with their units
    loading          from a file and flags to a `Config`, or to all problems at once
    positions        the lines of a TOML document's keys
    problems         what is wrong, and where; `ConfigError`
    rules            what must hold between keys
    flags            the command-line flags that set keys
    reload           the difference between two configurations
    check            the answer to `headrace check-config`
    json_schema      the schema for editors
    sample           the commented sample file
"""

from config.addresses import HostPort, NodeIds
from config.check import CheckReport, check
from config.flags import FLAGS, Flag
from config.json_schema import json_schema, json_schema_text
from config.loading import load, loads
from config.problems import ConfigError, ConfigFileError, ConfigSyntaxError, ConfigValueError, Problem
from config.quotas import ConfiguredQuota
from config.reload import ConfigDiff, QuotaChange, SettingChange, diff
from config.sample import sample_text
from config.schema import (
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
    Shutdown,
    UnknownNodeIdError,
    Upstream,
)
from config.usage import ProducerIdQuota, QuotaWindow

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
    "ProducerIdQuota",
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
