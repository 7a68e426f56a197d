"""The section about OAUTHBEARER: its options are the plugin's, and its numbers and metrics those of the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from headrace.plugins.sasl_oauth.access_tokens import RENEWAL_S, RENEWAL_SHARE, RETRY_S
from headrace.plugins.sasl_oauth.client_exchange import OPTIONS
from headrace.plugins.sasl_oauth.http_requests import LONGEST_ANSWER_BYTES, TIMEOUT_S
from headrace.plugins.sasl_oauth.key_refresh import BETWEEN_REQUESTED_S, REPORT_EVERY_S
from headrace.plugins.sasl_oauth.messages import LONGEST_MESSAGE_BYTES
from headrace.plugins.sasl_oauth.options import LONGEST_REFRESH_S, SHORTEST_REFRESH_S, Algorithm, OAuthOptions
from headrace.plugins.sasl_oauth.plugin import FIRST_KEYS_S
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS
from headrace.quota_callbacks.options import read_options

PAGE = (Path(__file__).parents[3] / "docs" / "users.md").read_text(encoding="utf-8")
SECTION = PAGE.split("\n## OAUTHBEARER by the proxy itself\n", 1)[1].split("\n## ", 1)[0]


def test_the_example_is_valid() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)
    table = tomllib.loads(example)["plugins"]["options"]["sasl_oauth"]
    assert read_options(OAuthOptions, table, "sasl_oauth").enabled


def test_the_options_on_the_page_are_the_plugins() -> None:
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| (.*?) \|", SECTION, re.MULTILINE))
    assert rows.keys() == OAuthOptions.model_fields.keys()
    for name in ("jwks_refresh_s", "principal_claim", "scope_claim", "clock_skew_s"):
        assert rows[name].strip("`") == str(OAuthOptions.model_fields[name].default), name
    assert set(re.findall(r"^\| option `([a-z_]+)` \|", SECTION, re.MULTILINE)) == set(OPTIONS)
    assert all(f"`{each.value}`" in SECTION for each in Algorithm)


def test_the_numbers_on_the_page_are_the_codes() -> None:
    text = " ".join(SECTION.split())
    for expected in (
        f"from {SHORTEST_REFRESH_S} to {LONGEST_REFRESH_S}",
        f"at most {MAX_PRINCIPAL_CHARACTERS:,} characters",
        f"at most {LONGEST_MESSAGE_BYTES // 1024} KiB",
        f"waits {FIRST_KEYS_S:g} seconds",
        f"every {BETWEEN_REQUESTED_S:g} seconds",
        f"at most {TIMEOUT_S:g} seconds",
        f"at most {LONGEST_ANSWER_BYTES // 1024} KiB",
    ):
        assert expected in text, expected
    assert (RENEWAL_SHARE, RENEWAL_S, RETRY_S, REPORT_EVERY_S) == (0.2, 60, 1, 60)  # in words
