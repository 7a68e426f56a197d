"""The typed configuration: declaration of all keys, loading, validation, and comparison at a reload.

Used by the command line, by the proxy, and by the pipeline for quotas. Blocks while it reads files, and opens no
sockets. Of the project it imports only `quota_callbacks`, whose `options` all tables are declared with.

    schema           `Config`: every key with its type, default, description, and whether a change needs a restart
    quotas           the `[[quotas]]` tables
    quota_names      checking the names of quota keys and entity types, once plugins have defined theirs
    tables           further tables, a module for each
    keys             the base class of sections, and the list of all keys
    values           addresses, broker ids and numbers of threads
    loading          reading a file, flags and environment variables into a `Config`
    overrides        the flags and environment variables that set keys
    rules            constraints between keys
    positions        the positions of keys in a TOML document
    problems         errors with their positions; `ConfigError`
    reload           the difference between two configurations
    check            the report of `headrace check-config`
    editing          the commented sample file, and the JSON Schema for editors
"""

from headrace.config.check import CheckReport, check
from headrace.config.editing import json_schema, json_schema_text, sample_text
from headrace.config.loading import load, loads
from headrace.config.overrides import FLAGS, Flag
from headrace.config.problems import ConfigError, ConfigFileError, ConfigSyntaxError, ConfigValueError, Problem
from headrace.config.quota_names import check_quota_names
from headrace.config.quotas import ConfiguredQuota
from headrace.config.reload import ConfigDiff, QuotaChange, SettingChange, diff
from headrace.config.schema import (
    Config,
    Enforcement,
    Log,
    LogFormat,
    LogLevel,
    Shutdown,
)
from headrace.config.tables.admin import Admin, UnixPath
from headrace.config.tables.limits import Limits
from headrace.config.tables.listeners import Listen, Upstream
from headrace.config.tables.plugins import OnError, Plugins
from headrace.config.tables.windows import QuotaWindow
from headrace.config.values import NodeIds

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
    "UnixPath",
    "Upstream",
    "check",
    "check_quota_names",
    "diff",
    "json_schema",
    "json_schema_text",
    "load",
    "loads",
    "sample_text",
]
