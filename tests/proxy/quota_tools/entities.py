"""Random quotas, with names that are hard to write, for property tests."""

from __future__ import annotations

import re

from hypothesis import strategies as st

from headrace.quota_callbacks.entities import CLIENT_ID, DEFAULT, USER, QuotaEntity, QuotaKey

HOSTILE = (
    *(
        "<default>",
        "<>",
        "a, client-id=b}",
        '"',
        "\\",
        "\\,",
        "a\nb",
        "\x1b[2J",
        "\x7f",
        "\x85",
        "\u202e",
        " a ",
        "=",
        "{}",
    ),
    *("CN=alice,OU=x", "DOMAIN\\alice", "ü", "\U0001f600", "\U000e0001", "null", "a\\nb", "\ufeff"),
)
NAMES = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12))
ENTITY_NAMES = st.one_of(st.just(DEFAULT), NAMES)

CLIENT_ENTITIES = st.dictionaries(st.sampled_from([USER, CLIENT_ID]), ENTITY_NAMES, min_size=1).map(QuotaEntity.of)
BYTE_RATES = st.integers(1, 2**53).map(float)
RATES = st.floats(min_value=1e-300, allow_nan=False, allow_infinity=False)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        QuotaKey.PRODUCER_BYTE_RATE.value: BYTE_RATES,
        QuotaKey.CONSUMER_BYTE_RATE.value: BYTE_RATES,
        QuotaKey.REQUEST_PERCENTAGE.value: RATES,
        QuotaKey.CONTROLLER_MUTATION_RATE.value: RATES,
    },
).filter(bool)
QUOTAS = st.dictionaries(CLIENT_ENTITIES, VALUES, max_size=6)


def list_element(text: str) -> str:
    """Return ``text`` as one element of a list, with its commas and backslashes escaped."""
    return re.sub(r"[\\,]", r"\\\g<0>", text)
