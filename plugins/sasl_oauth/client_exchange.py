"""The exchange with a broker that the proxy authenticates to by a token. Source: ``OAuthBearerSaslClient``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from headrace.plugins.sasl_oauth.access_tokens import Credentials, TokenUnavailableError
from headrace.plugins.sasl_oauth.endpoints import check_url
from headrace.plugins.sasl_oauth.messages import ACKNOWLEDGEMENT, MECHANISM, client_message
from headrace.quota_callbacks.sasl import SaslRefused

if TYPE_CHECKING:
    from headrace.plugins.sasl_oauth.access_tokens import AccessToken, AccessTokens
    from headrace.quota_callbacks.sasl import UpstreamSasl

OPTIONS: Final = ("token_endpoint", "scope", "ca_file", "header_urlencode", "parameters")
"""The options of `UpstreamSasl` that this mechanism has."""
_OWN_PARAMETERS: Final = frozenset({"grant_type", "scope", "client_id", "client_secret"})
_TRUTH: Final = {"true": True, "false": False}


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
    urlencode = settings.options.get("header_urlencode", "false")
    if urlencode not in _TRUTH:
        raise ValueError(f'{MECHANISM}: header_urlencode: expected "true" or "false"')
    return Credentials(
        endpoint=endpoint,
        client_id=settings.user,
        secret=settings.password,
        scope=settings.options.get("scope"),
        ca_file=settings.options.get("ca_file"),
        header_urlencode=_TRUTH[urlencode],
        parameters=_parameters(settings.options.get("parameters", "")),
    )


def _parameters(text: str) -> tuple[tuple[str, str], ...]:
    """Return the names and values in a form-encoded text. Raises `ValueError`, without the text."""
    try:
        found = tuple(parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), errors="strict"))
    except ValueError:
        rule = 'expected a form-encoded text, such as "audience=kafka&resource=https%3A%2F%2Fkafka.example.com"'
        raise ValueError(f"{MECHANISM}: parameters: {rule}") from None
    for name, _ in found:
        if name in _OWN_PARAMETERS:
            raise ValueError(f"{MECHANISM}: parameters: {name} is not a further parameter; the proxy sends it itself")
    return found


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
