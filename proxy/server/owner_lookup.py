"""Asking brokers for the owners of delegation tokens (``[upstream.owner_lookup]``), for `TokenOwners`.

Each request has a connection of its own, authenticated as the user of the table, since there are few: passwords,
certificates and addresses that have changed are in use at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from headrace.config.tables.sasl import UnknownOwner
from headrace.proxy.connection.state.token_owners import LookupFailed, TokenOwners
from headrace.proxy.kafka_client.admin import AdminClient
from headrace.proxy.kafka_client.connection.broker_connection import open_tcp
from headrace.proxy.kafka_client.errors import BrokerError, KafkaClientError
from headrace.proxy.kafka_client.settings import ClientSettings, Credentials, Mechanism
from headrace.proxy.wire.proxy_protocol import write_header
from headrace.quota_callbacks.secret_sources import SecretError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.config.schema import Config
    from headrace.config.tables.sasl import OwnerLookup
    from headrace.proxy.kafka_client.connection.broker_connection import OpenStream
    from headrace.proxy.kafka_client.delegation_tokens import DelegationToken
    from headrace.proxy.network.listener import Dialler, Listener
    from headrace.quota_callbacks.requests import Address

MAX_REPLY_BYTES: Final = 32 * 1024 * 1024
"""The longest list of tokens: of about 200,000, each with the names of its owner and of a renewer. 100,000 take 100 MB
of memory and 0.8 s in a thread while they are read. Any user can make a token with renewers of some megabytes."""
MAX_REPLY_ROWS: Final = 250_000
"""The most tokens in a list."""
MOST_ATTEMPTS: Final = 2
"""Number of brokers that can be tried within ``connect_timeout`` if they do not answer."""


def create_token_owners(config: Config, listeners: tuple[Listener, ...]) -> dict[str, TokenOwners]:
    """Return the lookups that are configured, by the setting of the brokers; listeners may share one."""
    found: dict[str, TokenOwners] = {}
    for tables, listener in zip(config.all_listeners(), listeners, strict=True):
        upstream, setting, table = listener.upstream, tables.upstream_setting, tables.upstream.owner_lookup
        if table.mechanism is None or setting in found:
            continue
        open_stream = open_with_header if tables.upstream.proxy_protocol else open_tcp
        found[setting] = TokenOwners(
            partial(ask_for_tokens, upstream, table, open_stream),
            setting=setting,
            timeout_s=partial(_timeout_of, upstream),
            refuses_unknown=table.unknown_owner is UnknownOwner.REFUSE,
            not_visible=(
                f"no broker shows the token to {setting}.owner_lookup.user = {table.user}, which has to have Describe"
                " on the resource DelegationToken"
            ),
        )
    return found


async def ask_for_tokens(
    upstream: Dialler, table: OwnerLookup, open_stream: OpenStream, timeout_s: float
) -> Mapping[str, DelegationToken]:
    """Return all tokens that the user of the table may see, for `TokenOwners`. Raises `LookupFailed`."""
    setting = f"{upstream.setting}.owner_lookup"
    with trio.move_on_after(timeout_s):
        try:
            settings = await _settings(upstream, table, timeout_s)
            async with AdminClient(settings, open_stream=open_stream) as client:
                return await client.describe_delegation_tokens()
        except SecretError as error:
            raise LookupFailed(f"{setting}.password: {error}", "password") from error
        except KafkaClientError as error:
            raise LookupFailed(f"{error}; see {setting}", _kind_of(error)) from error
    reason = f"no answer of a broker within {upstream.setting}.connect_timeout = {timeout_s:g} s"
    raise LookupFailed(reason, "no answer")


async def open_with_header(address: Address) -> trio.abc.Stream:
    """Connect to a broker behind a load balancer that expects a header of the PROXY protocol. Raises `OSError`."""
    stream = await open_tcp(address)
    try:
        await stream.send_all(write_header(None, None))
    except trio.BrokenResourceError as error:
        await trio.aclose_forcefully(stream)
        raise OSError(str(error)) from error
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return stream


async def _settings(upstream: Dialler, table: OwnerLookup, timeout_s: float) -> ClientSettings:
    """Return the settings of one request. Raises `SecretError` if the password cannot be read."""
    if table.mechanism is None or table.user is None or table.password is None:
        raise AssertionError("rules of the configuration exclude a lookup without a login")
    password = await trio.to_thread.run_sync(table.password.read, abandon_on_cancel=True)
    timeout_ms = round(timeout_s * 1000)
    attempt_ms = timeout_ms // min(len(upstream.bootstrap_servers), MOST_ATTEMPTS)  # a broker may be lost
    return ClientSettings(
        bootstrap_servers=upstream.bootstrap_servers,
        client_id="headrace",
        tls=upstream.tls.current if upstream.tls is not None else None,
        credentials=Credentials(mechanism=Mechanism(table.mechanism), user=table.user, password=password),
        request_timeout_ms=attempt_ms,
        default_api_timeout_ms=timeout_ms,
        connection_setup_timeout_ms=attempt_ms,
        max_reply_bytes=MAX_REPLY_BYTES,
        max_reply_rows=MAX_REPLY_ROWS,
    )


def _kind_of(error: KafkaClientError) -> str:
    return error.name if isinstance(error, BrokerError) else type(error.__cause__ or error).__name__


def _timeout_of(upstream: Dialler) -> float:
    return upstream.connect_timeout_s
