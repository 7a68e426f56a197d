"""Authenticating to brokers: Kafka's own servers accept it, and what fails is refused without a secret in the error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from headrace.plugins.sasl_client import SaslClient, exchanges
from headrace.plugins.sasl_client.exchanges import KEYS_KEPT_S, PASSWORD_KEPT_S
from headrace.proxy.sasl.scram import ScramMechanism, scram_keys, scram_verifier
from headrace.proxy.sasl.scram_server import ScramServer, read_client_first
from headrace.quota_callbacks.sasl import SaslRefused, UpstreamSasl
from headrace.quota_callbacks.secret_sources import SecretSource
from tests.clients.fronts import DEADLINE_S
from tests.proxy.sasl.kafka_sasl import plain_server, scram_server

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.proxy.sasl.scram import ScramKeys
    from headrace.quota_callbacks.sasl import ClientExchange

PASSWORD = "hidden-word"
SALT = b"0123456789abcdef"


@pytest.fixture
def password(tmp_path: Path) -> SecretSource:
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    return SecretSource(file=str(tmp_path / "password"))


def exchange(plugin: SaslClient, settings: UpstreamSasl) -> ClientExchange:
    made = plugin.sasl_client_exchange(settings)
    assert made is not None
    return made


def of(mechanism: str, password: SecretSource | None, user: str | None = "proxy") -> UpstreamSasl:
    return UpstreamSasl(mechanism=mechanism, user=user, password=password)


async def logged_in(plugin: SaslClient, settings: UpstreamSasl, password: str = PASSWORD) -> None:
    """Authenticate to our own server side."""
    kind = ScramMechanism(settings.mechanism)
    made = exchange(plugin, settings)
    first = await made.respond(None)
    server = ScramServer(kind, read_client_first(first or b""), scram_verifier(kind, password, SALT, 4096))
    final = await made.respond(server.first)
    assert await made.respond(server.final(final or b"")) is None


async def test_kafkas_plain_server_accepts_it(password: SecretSource) -> None:
    server, made = plain_server({"proxy": PASSWORD}), exchange(SaslClient(), of("PLAIN", password))
    answer = server.evaluate(await made.respond(None) or b"")
    assert await made.respond(answer or b"") is None
    assert server.user == "proxy"


@pytest.mark.parametrize("kind", ScramMechanism)
async def test_kafkas_scram_server_accepts_it(kind: ScramMechanism, password: SecretSource) -> None:
    server = scram_server(kind, {"proxy": scram_verifier(kind, PASSWORD, SALT, 8192)})
    made = exchange(SaslClient(), of(kind.value, password))
    token = await made.respond(None)
    for _ in range(2):
        assert token is not None
        token = await made.respond(server.evaluate(token) or b"")
    assert token is None
    assert server.complete
    assert server.user == "proxy"


def test_other_mechanisms_are_left_to_other_plugins(password: SecretSource) -> None:
    for mechanism in ("OAUTHBEARER", "GSSAPI", "SCRAM-SHA-1", "plain"):
        assert SaslClient().sasl_client_exchange(of(mechanism, password)) is None


async def test_extensions_are_sent(password: SecretSource) -> None:
    settings = UpstreamSasl(mechanism="SCRAM-SHA-256", user="id", password=password, extensions={"tokenauth": "true"})
    first = await exchange(SaslClient(), settings).respond(None)
    assert first is not None
    assert first.endswith(b",tokenauth=true")


# --- what is shared ---


async def test_many_connections_read_the_password_and_compute_the_keys_once(
    password: SecretSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[tuple[object, ...]] = []
    read: list[SecretSource] = []
    read_password = SecretSource.read

    def counted(*arguments: object) -> ScramKeys:
        computed.append(arguments)
        return scram_keys(*arguments)  # type: ignore[arg-type]

    def noted(source: SecretSource) -> str:
        read.append(source)
        return read_password(source)

    monkeypatch.setattr(exchanges, "scram_keys", counted)
    monkeypatch.setattr(SecretSource, "read", noted)
    plugin = SaslClient()
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(logged_in, plugin, of("SCRAM-SHA-512", password))
    assert len(computed) == 1
    assert read == [password]


async def test_a_changed_password_is_used_soon(
    password: SecretSource, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    plugin, settings = SaslClient(), of("SCRAM-SHA-256", password)
    await logged_in(plugin, settings)
    (tmp_path / "password").write_text("changed")
    await logged_in(plugin, settings)
    await trio.sleep(PASSWORD_KEPT_S)
    await logged_in(plugin, settings, "changed")
    assert PASSWORD_KEPT_S < KEYS_KEPT_S


# --- what fails ---


async def refused(made: ClientExchange, challenge: bytes | None = None) -> str:
    with pytest.raises(SaslRefused) as raised:
        await made.respond(challenge)
    assert PASSWORD not in f"{raised.value!r} {raised.value.__cause__!r}"
    return str(raised.value)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_user_and_a_password_are_needed(mechanism: str, password: SecretSource) -> None:
    for settings in (of(mechanism, password, user=None), of(mechanism, None)):
        with pytest.raises(ValueError, match=f"{mechanism} to brokers needs a user and a password"):
            SaslClient().sasl_client_exchange(settings)


async def test_a_password_that_cannot_be_read_is_named_by_its_source(tmp_path: Path) -> None:
    made = exchange(SaslClient(), of("PLAIN", SecretSource(file=f"{tmp_path}/none")))
    assert await refused(made) == (
        f"the password for brokers cannot be read: the file {tmp_path}/none: cannot be read: no such file or directory"
    )


async def test_a_broker_that_does_not_know_the_password_is_refused(password: SecretSource) -> None:
    made = exchange(SaslClient(), of("SCRAM-SHA-256", password))
    first = read_client_first(await made.respond(None) or b"")
    server = ScramServer(ScramMechanism.SHA_256, first, scram_verifier(ScramMechanism.SHA_256, "another", SALT, 4096))
    await made.respond(server.first)
    assert "did not prove that it knows the password" in await refused(made, b"v=" + b"A" * 43 + b"=")


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        (b"", "not valid"),
        (b"e=unknown-user", "refused the authentication: unknown-user"),
        (b"r=other,s=c2FsdA==,i=4096", "does not continue the client's"),
        (b"r=%s+,s=c2FsdA==,i=1", "demands 1 SCRAM iterations"),
        (b"r=%s+,s=c2FsdA==,i=99999999", "demands 99999999 SCRAM iterations"),
    ],
)
async def test_challenges_of_hostile_brokers(challenge: bytes, reason: str, password: SecretSource) -> None:
    made = exchange(SaslClient(), of("SCRAM-SHA-256", password))
    nonce = read_client_first(await made.respond(None) or b"").nonce.encode()
    assert reason in await refused(made, challenge.replace(b"%s", nonce))


async def test_a_challenge_before_the_first_token_is_refused(password: SecretSource) -> None:
    made = exchange(SaslClient(), of("SCRAM-SHA-256", password))
    assert "before the first token" in await refused(made, b"r=x,s=c2FsdA==,i=4096")
