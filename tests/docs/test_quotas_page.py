"""The page about quotas: its configuration is taken, and its tables name what there is."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.config import ConfiguredQuota, loads
from headrace.config.keys import keys
from headrace.quota_callbacks.builtin.controller_mutation import STRICT_FROM
from headrace.quota_callbacks.entities import QuotaKey

PAGE = (Path(__file__).parents[2] / "docs" / "quotas.md").read_text(encoding="utf-8")


def test_its_configuration_is_taken() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    quotas = loads(text).entity_quotas()
    assert {key for of_entity in quotas.values() for key in of_entity} == set(QuotaKey)


def test_every_key_stands_there() -> None:
    for leaf in keys(ConfiguredQuota):
        if not leaf.required:
            assert re.search(rf"^\| `{leaf.key}[ `=]", PAGE, re.MULTILINE), leaf.key


def test_the_versions_are_those_of_the_code() -> None:
    versions = [int(version) for version in re.findall(r"^\| .* \| from v(\d)", PAGE, re.MULTILINE)]
    assert versions == list(STRICT_FROM.values())
