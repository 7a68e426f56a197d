"""The sample file is valid, and has every key with its default."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from headrace import config
from headrace.config import ConfiguredQuota, json_schema, load, loads, sample_text
from headrace.config.keys import keys
from headrace.config.schema import Config
from headrace.quota_callbacks.options import NOTHING

SAMPLE = sample_text()
UNCOMMENTED = re.sub(r"(?m)^#(?! |$)", "", SAMPLE)
"""The sample with all keys uncommented."""

EXAMPLES = {
    "upstream.tls.ca_file",
    "upstream.tls.ca_password",
    "upstream.tls.certificate_file",
    "upstream.tls.key_file",
    "upstream.tls.key_password",
    "upstream.tls.ciphers",
    "upstream.sasl.mechanism",
    "upstream.sasl.user",
    "upstream.sasl.password",
    "upstream.sasl.identities",
    "upstream.owner_lookup.mechanism",
    "upstream.owner_lookup.user",
    "upstream.owner_lookup.password",
    "listen.broker_host",
    "listen.tls.certificate_file",
    "listen.tls.key_file",
    "listen.tls.key_password",
    "listen.tls.client_ca_file",
    "listen.tls.client_ca_password",
    "listen.tls.ciphers",
    "listen.sasl.session_lifetime",
    "listeners",
    "listen.advertised_host",
    "listen.advertised_port",
    "admin.listen",
    "admin.token_file",
    "admin.token",
    "admin.tls.certificate_file",
    "admin.tls.key_file",
    "admin.tls.key_password",
    "admin.tls.client_ca_file",
    "admin.tls.client_ca_password",
    "admin.tls.ciphers",
    "limits.max_memory",
    "limits.max_connections_per_ip",
    "quota.state.file",
    "client_quotas.file",
    "client_quotas.topic_replication_factor",
    "client_quotas.topic_properties",
    "workers",
    "quotas",
    "plugins.options",
}
"""Keys without a default, for which the sample has an example."""
TABLES = ("quotas", "listeners", "plugins.options", "upstream.sasl.identities")
"""Keys whose values are tables, with their explanations before the first one."""


def written(path: tuple[str, ...]) -> Any:
    found: Any = tomllib.loads(UNCOMMENTED)
    for step in path:
        found = found.get(step, NOTHING) if isinstance(found, dict) else NOTHING
    return found


def test_it_is_packaged() -> None:
    assert Path(config.__file__).with_name("headrace.sample.toml").read_text(encoding="utf-8") == SAMPLE
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    assert "*.toml" in tomllib.loads(pyproject.read_text())["tool"]["setuptools"]["package-data"]["*"]


def test_it_loads_with_all_defaults_in_force(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(SAMPLE, encoding="utf-8")
    loaded = load(file)
    assert loaded == Config(upstream=loaded.upstream, listen=loaded.listen)
    assert loaded.upstream == type(loaded.upstream)(bootstrap_servers=["127.0.0.1:9092"])


def test_it_loads_with_every_key_in_force_and_means_the_same() -> None:
    every = loads(UNCOMMENTED)
    plain = loads(SAMPLE)
    assert every.quotas
    assert every.plugins.options == {
        "tracing": {"enabled": True, "sample_ratio": 0.01},
        "usage_records": {"folder": "usage", "format": "jsonl"},
        "request_percentage": {"costs_file": "/etc/headrace/costs.toml"},
        "sasl_users": {"file": "/var/lib/headrace/users.db"},
        "authorization": {
            "enabled": True,
            "super_users": ["User:admin"],
            "rules": [
                {
                    "principal": "User:alice",
                    "operations": ["Read", "Write"],
                    "resource_type": "topic",
                    "pattern_type": "prefixed",
                    "name": "orders.",
                }
            ],
        },
        "topic_quotas": {"enabled": True},
        "team_quotas": {"teams": {"payments": {"users": ["alice", "svc-payments-*"], "client_ids": ["billing"]}}},
    }
    assert every.limits == plain.limits.model_copy(update={"max_connections_per_ip": 5000, "max_memory": 2**31})
    assert every.listen.advertised == plain.listen.advertised
    assert (every.shutdown, every.log, every.enforcement) == (plain.shutdown, plain.log, plain.enforcement)


@pytest.mark.parametrize("text", [SAMPLE, UNCOMMENTED], ids=["as it is", "with every key"])
def test_editors_take_it(text: str) -> None:
    errors = [error.message for error in Draft202012Validator(json_schema()).iter_errors(tomllib.loads(text))]
    assert errors == []


def test_every_key_stands_there_with_its_default() -> None:
    plain, every = loads(SAMPLE), loads(UNCOMMENTED)
    for leaf in keys(Config):
        raw = written(leaf.path)
        assert raw is not NOTHING, f"{leaf.key} is missing"
        if not leaf.required and leaf.key not in EXAMPLES:
            assert leaf.value_of(every) == leaf.default, leaf.key
            assert raw == leaf.file_value_in(plain), f"{leaf.key} is spelled otherwise than in the JSON Schema"


def test_only_required_keys_are_in_force() -> None:
    table = tomllib.loads(SAMPLE)
    in_force = {
        f"{section}.{key}" for section, inner in table.items() for key in inner if not isinstance(inner[key], dict)
    }
    assert in_force == {leaf.key for leaf in keys(Config) if leaf.required}


def test_every_quota_key_stands_there() -> None:
    written = {key for table in tomllib.loads(UNCOMMENTED)["quotas"] for key in table}
    assert written == {leaf.key for leaf in keys(ConfiguredQuota)}


def comments() -> dict[str, str]:
    """Return the comment above each key, by dotted key."""
    above: dict[str, str] = {}
    header, comment = "", ""
    for line in SAMPLE.splitlines():
        if match := re.fullmatch(r"#?\[+([a-z_.]+)\]+", line):
            header = match[1]
        elif match := re.match(r"#?([a-z_.]+) = ", line):
            above[f"{header}.{match[1]}".lstrip(".")] = comment
        comment = f"{comment}{line[1:]}" if line.startswith("# ") else ""
    return above


def test_every_key_has_an_explanation_that_names_its_flag() -> None:
    above = comments()
    for leaf in keys(Config):
        if leaf.key in TABLES:
            continue
        comment = above[leaf.key]
        assert comment.endswith("."), f"no word about {leaf.key}"
        if leaf.about.flag is not None:
            assert comment.endswith(f"Also {leaf.about.flag}."), leaf.key
        assert ("Required." in comment) == leaf.required, leaf.key
        assert ("Also --" in comment) == (leaf.about.flag is not None), leaf.key


def test_no_line_is_too_long_for_a_terminal_of_120() -> None:
    assert max(map(len, SAMPLE.splitlines())) <= 120
