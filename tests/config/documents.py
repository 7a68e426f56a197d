"""Making small configuration files for tests."""

import json

from headrace.config.keys import Leaf, keys
from headrace.config.schema import Config

REQUIRED = {
    "upstream.bootstrap_servers": '["127.0.0.1:9092"]',
    "listen.address": '"127.0.0.1:19192"',
    "listen.advertised_host": '"kafka.example.com"',
}
"""The required keys, with values that clash with no test's."""

MINIMAL = "".join(f"{key} = {value}\n" for key, value in REQUIRED.items())
"""The shortest file that loads. Dotted keys, so that a test can go on with tables."""


def with_key(key: str, toml: str) -> str:
    """A file that sets ``key`` in its line 2 and is otherwise complete."""
    others = "".join(f"{name} = {value}\n" for name, value in REQUIRED.items() if name != key)
    return f"# line 1\n{key} = {toml}\n{others}"


def in_toml(value: object) -> str:
    """Write a value as TOML, in one line; JSON's texts and numbers are TOML's."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {in_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(in_toml, value)) + "]"
    return json.dumps(value)


def leaf(key: str) -> Leaf:
    """The declared key."""
    return next(leaf for leaf in keys(Config) if leaf.key == key)
