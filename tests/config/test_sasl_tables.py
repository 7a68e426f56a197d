"""The tables ``[[upstream.sasl.identities]]``: where a mistake is, and that no secret is shown."""

from __future__ import annotations

import pytest

from headrace.config import ConfigValueError, loads
from headrace.config.tables.sasl import MOST_IDENTITIES
from headrace.proxy.server.preflight import warnings_of
from tests.config.documents import MINIMAL

MECHANISM = 'upstream.sasl.mechanism = "PLAIN"\n'
TABLE = "[[upstream.sasl.identities]]\n"
ALICE = 'client = "alice"\nuser = "a"\n'
TERMINATE = '[listen.sasl]\nmode = "terminate"\n'


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (f"{TABLE}{ALICE}{TABLE}{ALICE}", "upstream.sasl.identities[1].client"),
        (f'{TABLE}client = "alice"\n', "user: required; expected the name of a user"),
        (f'{TABLE}{ALICE}clients = "x"\n', "did you mean upstream.sasl.identities[0].client?"),
        (f'{TABLE}{ALICE}password = "hunter2"\n', "a secret is not written into the configuration"),
        (f'{TABLE}{ALICE}mechanism = "plain"\n', "expected the name of a SASL mechanism"),
        ('upstream.sasl.identities = { alice = "hunter2" }\n', "expected tables, each headed"),
        ('upstream.sasl.identities = ["hunter2"]\n', "expected tables, each headed"),
        (
            "".join(f'{TABLE}client = "{number}"\nuser = "a"\n' for number in range(MOST_IDENTITIES + 1)),
            f"expected at most {MOST_IDENTITIES} tables",
        ),
    ],
)
def test_a_mistake_is_named(tables: str, message: str) -> None:
    with pytest.raises(ConfigValueError) as caught:
        loads(MINIMAL + MECHANISM + tables)
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "other",
    [
        f"{TABLE}{ALICE}",
        '[upstream.sasl]\nuser = "headrace"\n',
        '[upstream.sasl]\npassword = { env = "PASSWORD" }\n',
        '[upstream.sasl.options]\nscope = "kafka"\n',
    ],
)
def test_a_mechanism_is_required(other: str) -> None:
    with pytest.raises(ConfigValueError, match=r"upstream\.sasl\.mechanism: required"):
        loads(MINIMAL + other)


def test_clients_that_cannot_prove_their_user_are_warned_of() -> None:
    tables = f"{MINIMAL}{MECHANISM}{TABLE}{ALICE}"
    assert any("all clients are refused" in each for each in warnings_of(loads(tables)))
    assert not any("are refused" in each for each in warnings_of(loads(tables + TERMINATE)))


LOOKUP = '[upstream.owner_lookup]\nmechanism = "PLAIN"\nuser = "tokens"\npassword = { env = "TOKENS" }\n'


@pytest.mark.parametrize("key", ["mechanism", "user", "password"])
def test_a_lookup_of_owners_needs_a_login(key: str) -> None:
    incomplete = "".join(line + "\n" for line in LOOKUP.splitlines() if not line.startswith(key))
    with pytest.raises(ConfigValueError, match=rf"upstream\.owner_lookup\.{key}: required, since other keys of"):
        loads(MINIMAL + incomplete)


def test_a_lookup_for_clients_that_have_no_tokens_is_warned_of() -> None:
    assert not any("no effect" in each for each in warnings_of(loads(MINIMAL + LOOKUP)))
    for other in (TERMINATE, f"[upstream.sasl]\n{MECHANISM.partition('sasl.')[2]}"):
        assert any(
            "upstream.owner_lookup has no effect" in each for each in warnings_of(loads(MINIMAL + LOOKUP + other))
        )


UPSTREAM_TLS = "[upstream.tls]\nenabled = true\n"
PLAIN_LOGIN = '[upstream.sasl]\nmechanism = "PLAIN"\nuser = "u"\npassword = { env = "P" }\n'


@pytest.mark.parametrize(
    ("tables", "settings"),
    [
        (PLAIN_LOGIN, ["upstream.sasl"]),
        (PLAIN_LOGIN.replace("PLAIN", "OAUTHBEARER"), ["upstream.sasl"]),
        (PLAIN_LOGIN.replace("PLAIN", "SCRAM-SHA-256"), []),
        (f'{PLAIN_LOGIN.replace("PLAIN", "SCRAM-SHA-256")}{TABLE}{ALICE}mechanism = "PLAIN"\n', ["upstream.sasl"]),
        (LOOKUP, ["upstream.owner_lookup"]),
        (LOOKUP.replace("PLAIN", "SCRAM-SHA-512"), []),
    ],
)
def test_secrets_that_are_sent_to_brokers_without_tls_are_warned_of(tables: str, settings: list[str]) -> None:
    def found(text: str) -> list[str]:
        return [each.partition(":")[0] for each in warnings_of(loads(MINIMAL + text)) if "others may read" in each]

    assert found(tables) == settings
    assert found(tables + UPSTREAM_TLS) == []


def test_listeners_with_the_same_brokers_have_one_warning() -> None:
    further = '[listeners.internal]\naddress = "127.0.0.1:29192"\nadvertised_host = "k"\n'
    found = [each for each in warnings_of(loads(MINIMAL + PLAIN_LOGIN + further)) if "others may read" in each]
    assert len(found) == 1
