import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headrace.config import ConfiguredQuota, ConfigValueError, loads
from headrace.config.keys import keys
from headrace.config.quotas import LIMIT_KEYS
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, QuotaKey
from headrace.quota_callbacks.policies import Quota
from tests.config.documents import MINIMAL, in_toml, leaf
from tests.config.quota_cases import ALICE, BAD_QUOTAS, GOOD_ENTITIES, GOOD_LIMITS, BadQuota

BEFORE = MINIMAL.count("\n")


def refused(text: str) -> str:
    with pytest.raises(ConfigValueError) as caught:
        loads(MINIMAL + text, "headrace.toml")
    return str(caught.value)


@pytest.mark.parametrize(("written", "entity"), GOOD_ENTITIES)
def test_entities(written: str, entity: QuotaEntity) -> None:
    config = loads(f"{MINIMAL}[[quotas]]\nentity = {written}\nrequest_percentage = 1\n")
    assert config.quotas == (ConfiguredQuota(entity=entity, request_percentage=1.0),)


@pytest.mark.parametrize(("key", "written", "limit"), GOOD_LIMITS)
def test_limits(key: QuotaKey, written: str, limit: float) -> None:
    config = loads(f'{MINIMAL}[[quotas]]\nentity = {{ user = "alice" }}\n{key} = {written}\n')
    (quota,) = config.quotas
    assert quota.limits() == {key: limit}
    assert type(quota.limits()[key]) is type(limit)
    written = in_toml(leaf("quotas").file_value_in(config))
    assert loads(f"{MINIMAL}quotas = {written}\n") == config


@pytest.mark.parametrize("case", BAD_QUOTAS, ids=lambda case: case.lines)
def test_quotas_that_are_refused(case: BadQuota) -> None:
    assert refused(f"[[quotas]]\n{case.lines}\n") == f"headrace.toml:{BEFORE + case.line}: {case.message}"


def test_the_keys_are_those_of_the_callbacks() -> None:
    policy = ["enforcement", "observe", "burst", "longest_throttle", "new_connections"]
    assert [leaf.key for leaf in keys(ConfiguredQuota)] == ["entity", *LIMIT_KEYS, *policy]
    assert QuotaKey.PRODUCER_BYTE_RATE.value in ConfiguredQuota.model_fields


def test_an_entity_may_be_a_table_of_its_own() -> None:
    config = loads(MINIMAL + '[[quotas]]\nproducer_byte_rate = 1\n[quotas.entity]\nuser = "<default>"\n')
    assert config.entity_quotas() == {QuotaEntity(user=DEFAULT): {QuotaKey.PRODUCER_BYTE_RATE: Quota(value=1)}}


def test_one_entity_in_several_tables_with_different_keys_is_merged() -> None:
    alice = '[[quotas]]\nentity = { user = "alice" }\n'
    config = loads(f"{MINIMAL}{alice}producer_byte_rate = 1\n{alice}request_percentage = 2\n")
    assert config.entity_quotas() == {
        ALICE: {QuotaKey.PRODUCER_BYTE_RATE: Quota(value=1), QuotaKey.REQUEST_PERCENTAGE: Quota(value=2.0)}
    }


def test_the_same_entity_and_key_twice_is_refused_with_both_lines() -> None:
    pair = 'entity = { user = "alice", client-id = "<default>" }'
    swapped = 'entity = { client-id = "<default>", user = "alice" }'
    message = refused(
        f'[[quotas]]\n{pair}\nproducer_byte_rate = 1\n\n[[quotas]]\nproducer_byte_rate = "2MiB"\n{swapped}\n'
    )
    assert message == (
        f"headrace.toml:{BEFORE + 6}: quotas[1].producer_byte_rate: set twice for user=alice, client-id=<default>; "
        f"the first is quotas[0].producer_byte_rate at line {BEFORE + 3}"
    )


def test_every_fault_of_every_table_is_reported() -> None:
    lines = refused('[[quotas]]\nentity = { user = "" }\nproducer_byte_rate = 0\n[[quotas]]\nfetch = 1\n').splitlines()
    assert [line.partition(": ")[2].partition(":")[0] for line in lines] == [
        'quotas[0].entity.user = ""',
        "quotas[0].producer_byte_rate = 0",
        "quotas[1].entity",
        "quotas[1].fetch",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[quotas]\nx = 1", "quotas = { x = 1 }: expected tables, each headed [[quotas]]"),
        ("quotas = 1", "quotas = 1: expected tables, each headed [[quotas]]"),
        ("quotas = [1]", "quotas[0] = 1: expected a table, headed [[quotas]]"),
        ("[[quota]]\nx = 1", "quota = [{ x = 1 }]: expected a table: [quota] and keys below it; did you mean quotas?"),
    ],
)
def test_not_an_array_of_tables(text: str, message: str) -> None:
    assert refused(text) == f"headrace.toml:{BEFORE + 1}: {message}"


NUMBERS = st.floats() | st.integers() | st.integers(2**63 - 3, 2**63 + 3) | st.floats(-1, 3) | st.just(10**400)


@given(st.sampled_from(QuotaKey), NUMBERS)
def test_a_number_is_taken_exactly_if_the_callbacks_would_take_it(key: QuotaKey, number: float) -> None:
    """Apart from a byte rate so small that it is rounded to 0, which no callback takes."""
    table = {"entity": {"user": "alice"}, key.value: number}
    try:
        BUILTIN_SCHEMA.check(key, number)
        is_taken = not BUILTIN_SCHEMA.keys[key].integral or round(number) > 0
    except (ValueError, OverflowError):
        is_taken = False
    if is_taken:
        assert math.isclose(ConfiguredQuota.model_validate(table).limits()[key], number, abs_tol=1e-6)
    else:
        with pytest.raises(ValidationError):
            ConfiguredQuota.model_validate(table)
