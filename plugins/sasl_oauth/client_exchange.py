"""The exchange with a broker that the proxy authenticates to by a token. Source: ``OAuthBearerSaslClient``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.plugins.sasl_oauth.access_tokens import Credentials, TokenUnavailableError
from headrace.plugins.sasl_oauth.endpoints import check_url
from headrace.plugins.sasl_oauth.messages import ACKNOWLEDGEMENT, MECHANISM, client_message
from headrace.quota_callbacks.sasl import SaslRefused

if TYPE_CHECKING:
    from headrace.plugins.sasl_oauth.access_tokens import AccessToken, AccessTokens
    from headrace.quota_callbacks.sasl import UpstreamSasl

OPTIONS: Final = ("token_endpoint", "scope", "ca_file")
"""The options of `UpstreamSasl` that this mechanism has."""


def credentials_of(settings: UpstreamSasl) -> Credentials:
    """Return the credentials in ``settings``. Raises `ValueError` with a full sentence."""
    endpoint = settings.options.get("token_endpoint")
    if unknown := sorted(set(settings.options) - set(OPTIONS)):
        raise ValueError(f"{MECHANISM}: unknown option {unknown[0]}; known are {', '.join(OPTIONS)}")
    if not endpoint:
        raise ValueError(f"{MECHANISM}: expected the option token_endpoint, the URL that issues tokens")
    try:
        check_url(endpoint)
    except ValueError as error:
        raise ValueError(f"{MECHANISM}: token_endpoint: {error}") from None
    if not settings.user or settings.password is None:
        raise ValueError(f"{MECHANISM}: expected a user, the client id, and a password, the client secret")
    return Credentials(
        endpoint=endpoint,
        client_id=settings.user,
        secret=settings.password,
        scope=settings.options.get("scope"),
        ca_file=settings.options.get("ca_file"),
    )


class OAuthClientExchange:
    """Authenticates one connection to a broker (`headrace.quota_callbacks.sasl.ClientExchange`)."""

    __slots__ = ("_credentials", "_over", "_token", "_tokens")

    def __init__(self, tokens: AccessTokens, credentials: Credentials) -> None:
        self._tokens = tokens
        self._credentials = credentials
        self._token: AccessToken | None = None
        self._over = False

    async def respond(self, challenge: bytes | None) -> bytes | None:
        """Return the message with the token; then ``None`` for the broker's empty answer, which accepts it.

        Any other answer describes an error. It is acknowledged, upon which the broker refuses the authentication.
        Raises `SaslRefused` if no token can be had, or the broker goes on after the end.
        """
        if self._over:
            raise SaslRefused("the broker went on after the end of the exchange", user=self._credentials.client_id)
        if self._token is None:
            if challenge:
                raise SaslRefused("the broker sent a challenge before the token", user=self._credentials.client_id)
            try:
                self._token = await self._tokens.token(self._credentials)
            except TokenUnavailableError as error:
                raise SaslRefused(f"no token: {error}", user=self._credentials.client_id) from None
            return client_message(self._token.value)
        self._over = True
        if not challenge:
            return None
        self._tokens.refused(self._credentials, self._token)
        return ACKNOWLEDGEMENT
