"""The exchange with a broker that the proxy authenticates to by a token. Source: ``OAuthBearerSaslClient``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.plugins.sasl_oauth.access_tokens import Credentials, TokenUnavailableError, form_pairs, parameters_of
from headrace.plugins.sasl_oauth.endpoints import check_url
from headrace.plugins.sasl_oauth.messages import ACKNOWLEDGEMENT, MECHANISM, client_message, is_extension
from headrace.quota_callbacks.sasl import SaslRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.plugins.sasl_oauth.access_tokens import AccessToken, AccessTokens, Pairs
    from headrace.quota_callbacks.sasl import UpstreamSasl

OPTIONS: Final = (
    "token_endpoint",
    "scope",
    "ca_file",
    "client_authentication",
    "header_urlencode",
    "parameters",
    "parameters_file",
    "extensions",
)
"""The options of `UpstreamSasl` that this mechanism has."""
_TRUTH: Final = {"true": True, "false": False}
_IN_BODY: Final = {"body": True, "header": False}


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
    secret_in_body = _chosen(settings, "client_authentication", _IN_BODY, "header")
    header_urlencode = _chosen(settings, "header_urlencode", _TRUTH, "false")
    if secret_in_body and header_urlencode:
        raise ValueError(f'{MECHANISM}: header_urlencode has no effect if client_authentication is "body"')
    parameters_file = settings.options.get("parameters_file")
    if parameters_file is not None and "parameters" in settings.options:
        raise ValueError(f"{MECHANISM}: expected either parameters or parameters_file")
    return Credentials(
        endpoint=endpoint,
        client_id=settings.user,
        secret=settings.password,
        scope=settings.options.get("scope"),
        ca_file=settings.options.get("ca_file"),
        secret_in_body=secret_in_body,
        header_urlencode=header_urlencode,
        parameters=parameters_of("parameters", settings.options.get("parameters", "")),
        parameters_file=parameters_file,
        extensions=_extensions(settings.options.get("extensions", "")),
    )


def _chosen(settings: UpstreamSasl, name: str, meanings: Mapping[str, bool], default: str) -> bool:
    found = settings.options.get(name, default)
    if found not in meanings:
        expected = " or ".join(f'"{each}"' for each in meanings)
        raise ValueError(f"{MECHANISM}: {name}: expected {expected}")
    return meanings[found]


def _extensions(text: str) -> Pairs:
    found = form_pairs("extensions", text, "logicalCluster=lkc-1&identityPoolId=pool-1")
    for name, value in found:
        if not is_extension(name, value):
            rule = "expected names of letters from A to Z other than auth, and values of printable ASCII characters"
            raise ValueError(f"{MECHANISM}: extensions: {rule}")
    if len(dict(found)) < len(found):
        raise ValueError(f"{MECHANISM}: extensions: a name is there twice")
    return found


class OAuthClientExchange:
    """The authentication of one connection to a broker (`headrace.quota_callbacks.sasl.ClientExchange`)."""

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
            return client_message(self._token.value, self._credentials.extensions)
        self._over = True
        if not challenge:
            return None
        self._tokens.refused(self._credentials, self._token)
        return ACKNOWLEDGEMENT
