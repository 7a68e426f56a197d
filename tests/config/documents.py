"""Small configuration files for tests."""

import json

from headrace.config.keys import Leaf, keys
from headrace.config.schema import Config

REQUIRED = {
    "upstream.bootstrap_servers": '["127.0.0.1:9092"]',
    "listen.address": '"127.0.0.1:19192"',
    "listen.advertised_host": '"kafka.example.com"',
}
"""The required keys, with values that do not conflict with those of any test."""

MINIMAL = "".join(f"{key} = {value}\n" for key, value in REQUIRED.items())
"""The shortest valid file. It has dotted keys, so that tests can append tables."""


CERTIFICATE = {"listen.tls.certificate_file": '"proxy.pem"'}
ADMIN_CERTIFICATE = {"admin.tls.certificate_file": '"admin.pem"'}
MECHANISM = {"upstream.sasl.mechanism": '"PLAIN"'}
LOOKUP = {
    "upstream.owner_lookup.mechanism": '"PLAIN"',
    "upstream.owner_lookup.user": '"u"',
    "upstream.owner_lookup.password": '{ env = "P" }',
}
COMPANIONS = {
    "listen.broker_host": CERTIFICATE,
    "listen.tls.key_file": CERTIFICATE,
    "listen.tls.client_certificates": CERTIFICATE | {"listen.tls.client_ca_file": '"ca.pem"'},
    "admin.tls.key_file": ADMIN_CERTIFICATE,
    "admin.tls.client_certificates": ADMIN_CERTIFICATE | {"admin.tls.client_ca_file": '"ca.pem"'},
    "upstream.sasl.user": MECHANISM,
    "upstream.sasl.password": MECHANISM,
    "upstream.sasl.options": MECHANISM,
    "upstream.sasl.identities": MECHANISM,
    **dict.fromkeys(LOOKUP, LOOKUP),
}
"""Keys without which a key is an error."""


def with_key(key: str, toml: str) -> str:
    """Return a complete file that sets ``key`` in line 2."""
    needed = REQUIRED | COMPANIONS.get(key, {})
    others = "".join(f"{name} = {value}\n" for name, value in needed.items() if name != key)
    return f"# line 1\n{key} = {toml}\n{others}"


def in_toml(value: object) -> str:
    """Return a value as TOML on one line. JSON strings and numbers are valid TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {in_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(in_toml, value)) + "]"
    return json.dumps(value)


def leaf(key: str) -> Leaf:
    """Return the declaration of a key."""
    return next(leaf for leaf in keys(Config) if leaf.key == key)
