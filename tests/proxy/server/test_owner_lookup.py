"""The lookup of the owners of delegation tokens: its login, what it reads of the reply, and its errors."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.config import loads
from headrace.config.tables.sasl import LookupMechanism, OwnerLookup
from headrace.proxy.connection.state.token_owners import LookupFailed
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager
from headrace.proxy.kafka_client.delegation_tokens import DelegationToken
from headrace.proxy.network.poller import Poller
from headrace.proxy.network.tls.handshake_turns import TurnsByAddress
from headrace.proxy.server import owner_lookup
from headrace.proxy.server.listeners import create_listeners
from headrace.proxy.server.owner_lookup import ask_for_tokens, create_token_owners, open_with_header
from headrace.proxy.wire.proxy_protocol import write_header
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.requests import Address
from headrace.quota_callbacks.secret_sources import SecretSource
from tests.config.documents import MINIMAL
from tests.proxy.kafka_client.fake_cluster import Act, Answer, Asked, FakeCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from trio.testing import MockClock

DESCRIBE, HANDSHAKE, AUTHENTICATE = (
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
)
PASSWORD = "correct-horse-battery"
TIMEOUT_S = 5.0
LOOKUP = '[upstream.owner_lookup]\nmechanism = "PLAIN"\nuser = "tokens"\npassword = { env = "TOKENS" }\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """What a lookup needs of an upstream."""

    setting: str = "upstream"
    tls: None = None
    bootstrap_servers: tuple[Address, ...] = (Address(host="one", port=9092), Address(host="two", port=9092))


def rows(*tokens: tuple[str, str]) -> dict[str, Any]:
    """A reply with tokens, each with its id and owner."""
    return {
        "tokens": [
            {
                "principal_type": "User",
                "principal_name": owner,
                "expiry_timestamp": 1000,
                "max_timestamp": 2000,
                "token_id": token_id,
                "hmac": b"secret-of-the-token",
                "renewers": [{"principal_type": "User", "principal_name": "renewer"}],
            }
            for token_id, owner in tokens
        ]
    }


@asynccontextmanager
async def asking(
    answer: Callable[[Asked], Answer], password: SecretSource
) -> AsyncIterator[tuple[FakeCluster, Callable[[], Any]]]:
    """Yield a cluster that answers the request so, and the function that asks it."""
    answers = {
        HANDSHAKE: lambda _: {"mechanisms": ["PLAIN"]},
        AUTHENTICATE: lambda asked: {
            "error_code": 0 if asked.message["auth_bytes"] == f"\0tokens\0{PASSWORD}".encode() else 58
        },
        DESCRIBE: answer,
    }
    table = OwnerLookup.model_construct(mechanism=LookupMechanism.PLAIN, user="tokens", password=password)
    async with trio.open_nursery() as nursery:
        cluster = FakeCluster(nursery=nursery, answers=answers)
        yield cluster, lambda: ask_for_tokens(Brokers(), table, cluster.open, TIMEOUT_S)  # type: ignore[arg-type]
        nursery.cancel_scope.cancel()


@pytest.fixture
def password(tmp_path: Path) -> SecretSource:
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    return SecretSource(file=str(file))


async def test_all_tokens_are_asked_for_as_the_user_of_the_table(password: SecretSource) -> None:
    async with asking(lambda _: rows(("a", "alice"), ("b", "bob")), password) as (cluster, ask):
        tokens = await ask()
        assert tokens == {name[0]: DelegationToken(owner=name, expires_ms=1000) for name in ("alice", "bob")}
        assert "secret" not in repr(tokens)
        [asked] = cluster.requests(DESCRIBE)
        assert asked.message == {"owners": None}
        await trio.testing.wait_all_tasks_blocked()
        assert cluster.open_connections == 0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"error_code": 64}, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: .*by a password or a client certificate"),
        ({"error_code": 61}, "DELEGATION_TOKEN_AUTH_DISABLED: .*delegation.token.secret.key is not set at the broker"),
        (b"\0\0\0\5\0\0\0\3!", "malformed"),
    ],
)
async def test_an_error_names_the_cause_and_the_table(password: SecretSource, answer: Answer, reason: str) -> None:
    def answered(asked: Asked) -> Answer:
        return answer if isinstance(answer, dict) else answer[:4] + asked.correlation_id.to_bytes(4, "big") + b"!"

    async with asking(answered, password) as (_, ask):
        with pytest.raises(LookupFailed, match=f"{reason}.*; see upstream.owner_lookup"):
            await ask()


async def test_a_long_list_is_an_error(password: SecretSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_lookup, "MAX_REPLY_ROWS", 10)
    monkeypatch.setattr(owner_lookup, "MAX_REPLY_BYTES", 4000)
    async with asking(lambda _: rows(*((str(each), "alice") for each in range(20))), password) as (_, ask):
        with pytest.raises(LookupFailed, match="max_reply_rows = 10"):
            await ask()
    async with asking(lambda _: rows(*((str(each), "alice" * 100) for each in range(10))), password) as (_, ask):
        with pytest.raises(LookupFailed, match=r"sent a reply of \d+ bytes; the limit is 4000"):
            await ask()


async def test_a_token_with_many_renewers_hides_no_other(
    password: SecretSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user can make one by a single request."""
    monkeypatch.setattr(owner_lookup, "MAX_REPLY_ROWS", 10)
    reply = rows(("a", "alice"), ("b", "bob"))
    reply["tokens"][1]["renewers"] = [{"principal_type": "User", "principal_name": "r"}] * 5000
    async with asking(lambda _: reply, password) as (_, ask):
        assert {token_id: token.owner for token_id, token in (await ask()).items()} == {"a": "alice", "b": "bob"}


@pytest.mark.parametrize("lost", [Address(host="one", port=9092), Address(host="two", port=9092)])
async def test_a_broker_that_is_lost_is_not_waited_for_to_the_end(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, lost: Address
) -> None:
    """There is time left to ask another one. Which one is asked first is chosen at random."""

    async def call(read: Callable[[], str], **_: Any) -> str:
        return read()

    monkeypatch.setenv("TOKENS", PASSWORD)
    monkeypatch.setattr("trio.to_thread.run_sync", call)  # the clock would jump while a thread runs
    monkeypatch.setattr("random.random", lambda: 0.5)  # the first

    def answered(asked: Asked) -> Answer:
        return Act.SAY_NOTHING if asked.address == lost else rows(("a", "alice"))

    async with asking(answered, SecretSource(env="TOKENS")) as (cluster, ask):
        assert list(await ask()) == ["a"]
        assert cluster.requests(DESCRIBE)[-1].address != lost


async def test_a_broker_that_does_not_answer(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENS", PASSWORD)
    async with asking(lambda _: Act.SAY_NOTHING, SecretSource(env="TOKENS")) as (cluster, ask):
        began_s = trio.current_time()
        with pytest.raises(LookupFailed, match=r"did not answer|timed out|no answer of a broker"):
            await ask()
        assert trio.current_time() - began_s == pytest.approx(TIMEOUT_S, abs=0.1)
        await trio.testing.wait_all_tasks_blocked()
        assert cluster.open_connections == 0


async def test_a_wrong_password_and_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENS", "wrong-staple")
    async with asking(lambda _: rows(), SecretSource(env="TOKENS")) as (_, ask):
        with pytest.raises(LookupFailed, match="user 'tokens' by PLAIN: SASL_AUTHENTICATION_FAILED") as caught:
            await ask()
        assert "wrong-staple" not in str(caught.value)
        monkeypatch.delenv("TOKENS")
        with pytest.raises(LookupFailed, match=r"upstream\.owner_lookup\.password: the variable TOKENS: the variable"):
            await ask()


def test_listeners_with_the_same_brokers_share_a_lookup() -> None:
    further = '[listeners.internal]\naddress = "127.0.0.1:29192"\nadvertised_host = "k"\n'
    other = (
        '[listeners.other]\naddress = "127.0.0.1:39392"\nadvertised_host = "k"\n'
        '[listeners.other.upstream]\nbootstrap_servers = ["127.0.0.1:9093"]\n'
    )
    own = LOOKUP.replace("[upstream.", "[listeners.other.upstream.")
    hooks = HookCalls(new_plugin_manager())
    for text, expected in (
        (further + other, []),
        (LOOKUP + further + other, ["upstream"]),
        (LOOKUP + further + other + own, ["upstream", "listeners.other.upstream"]),
    ):
        config = loads(MINIMAL + text)
        listeners, _ = create_listeners(config, hooks, Poller(), TurnsByAddress(1))
        assert list(create_token_owners(config, listeners)) == expected


async def test_the_header_of_the_proxy_protocol_comes_first() -> None:
    """Where connections to brokers begin with it."""
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        received = bytearray()
        over = trio.Event()

        async def serve(stream: trio.SocketStream) -> None:
            async with stream:
                async for some in stream:
                    received.extend(some)
            over.set()

        nursery.start_soon(trio.serve_listeners, serve, [listener])
        port: int = listener.socket.getsockname()[1]
        with trio.fail_after(20):
            async with await open_with_header(Address(host="127.0.0.1", port=port)) as stream:
                await stream.send_all(b"request")
            await over.wait()
        assert received == write_header(None, None) + b"request"
        nursery.cancel_scope.cancel()
