"""Delegation tokens in DescribeDelegationToken (KIP-48): whose they are, and when they expire.

A broker also sends the secret of each token (HMAC) and the users that may renew it, any number of them. These are
skipped as the reply is read, so that they take no memory, and no limit of rows counts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.proxy.kafka_client.calls import Call, Target
from headrace.proxy.kafka_client.errors import broker_error
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from headrace.proxy.wire.messages.codec import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationToken:
    """A delegation token, without its secret."""

    owner: str
    """The name of the principal that owns it, without the type, which is ``User`` unless the cluster has others."""
    expires_ms: int
    """When it expires, unless it is renewed before, in milliseconds since 1970 by the brokers' clocks."""


DESCRIBE_CALL: Final = Call(
    api_key=ApiKey.DESCRIBE_DELEGATION_TOKEN,
    target=Target.ANY,
    build=lambda _version, _timeout_ms: {"owners": None},
    error_codes=lambda reply: (reply["error_code"],),
    wanted=frozenset(
        {"error_code", "throttle_time_ms", "tokens.token_id", "tokens.principal_name", "tokens.expiry_timestamp"}
    ),
)
"""The request for all tokens that the user may see. Brokers can select tokens by their owners, and not by their ids."""

_EXPLANATIONS: Final = {
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: (
        "brokers answer this to users who have authenticated by a password or a client certificate"
    ),
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "delegation.token.secret.key is not set at the broker",
}


def read_tokens(reply: Message) -> dict[str, DelegationToken]:
    """Return the tokens by id. Raises `BrokerError`.

    Takes the rows out of ``reply``, so that memory is freed row by row.
    """
    if code := reply["error_code"]:
        raise broker_error(code, None, explanation=_EXPLANATIONS.get(code, ""))
    rows = reply["tokens"]
    found: dict[str, DelegationToken] = {}
    while rows:
        row = rows.pop()
        found[row["token_id"]] = DelegationToken(owner=row["principal_name"], expires_ms=row["expiry_timestamp"])
    return found
