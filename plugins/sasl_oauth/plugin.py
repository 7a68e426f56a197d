"""The hook implementations: exchanges with clients and with brokers, and the start of the thread that fetches keys."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from headrace.plugins.extras import OAUTH, require
from headrace.plugins.sasl_oauth.access_tokens import AccessTokens
from headrace.plugins.sasl_oauth.claims import ClaimRules
from headrace.plugins.sasl_oauth.client_exchange import OAuthClientExchange, credentials_of
from headrace.plugins.sasl_oauth.messages import MECHANISM
from headrace.plugins.sasl_oauth.options import OAuthOptions
from headrace.plugins.sasl_oauth.server_exchange import OAuthServerExchange
from headrace.quota_callbacks.files import reason_of
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, Metric, PluginContext, hookimpl
from headrace.quota_callbacks.options import Fault, OptionsError, read_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headrace.plugins.sasl_oauth.key_refresh import KeyRefresher
    from headrace.plugins.sasl_oauth.verification import TokenVerifier
    from headrace.quota_callbacks.options import Table
    from headrace.quota_callbacks.sasl import ClientExchange, ServerExchange, UpstreamSasl

log = structlog.get_logger("headrace.sasl_oauth")

FIRST_KEYS_S: Final = 5.0
"""How long the start waits for the first keys, so that the first clients are not refused."""


def _wall_s() -> float:
    return time.time_ns() / 1e9


class SaslOAuth:
    """SASL/OAUTHBEARER, with clients and with brokers. Called last, so that other plugins take precedence."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, *, now_s: Callable[[], float] = _wall_s) -> None:
        """``now_s`` returns the wall time in seconds since 1970."""
        self._now_s = now_s
        self._verifier: TokenVerifier | None = None
        self._refresher: KeyRefresher | None = None
        self._tokens = AccessTokens(now_s)

    @hookimpl
    def options_table(self) -> type[Table]:
        """Return the class of the options."""
        return OAuthOptions

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Read the options; if they name a key set, start the thread that fetches it, except in a dry run."""
        options = read_options(OAuthOptions, context.options, "sasl_oauth")
        if not options.enabled:
            return
        require("plugins.options.sasl_oauth", "oauth", OAUTH)
        for name, accepted in _accepted_too(options):
            log.warning("tokens are accepted", which=accepted, setting=f"plugins.options.sasl_oauth.{name}")
        fetch = _checked_source(options)
        refresher = self._verify_by(options, fetch)
        if not context.dry:
            self._refresher = refresher
            refresher.start(FIRST_KEYS_S)

    def _verify_by(self, options: OAuthOptions, fetch: Callable[[], bytes]) -> KeyRefresher:
        """Set the verifier, and return what fetches its keys once it is started."""
        from headrace.plugins.sasl_oauth.key_refresh import KeyRefresher, Schedule
        from headrace.plugins.sasl_oauth.verification import TokenVerifier

        rules = ClaimRules(
            issuer=options.issuer,
            audience=frozenset(options.audience),
            principal_claim=options.principal_claim,
            scope_claim=options.scope_claim,
            required_scopes=frozenset(options.required_scopes),
            clock_skew_s=options.clock_skew_s,
        )
        refresher = KeyRefresher(fetch, Schedule(refresh_s=options.jwks_refresh_s))
        self._verifier = TokenVerifier(refresher, rules, options.algorithms)
        return refresher

    @hookimpl(trylast=True)
    def sasl_server_exchange(self, mechanism: str) -> ServerExchange | None:
        """Return an exchange for OAUTHBEARER. Raises `ValueError` if no key set is configured."""
        if mechanism != MECHANISM:
            return None
        if self._verifier is None:
            raise ValueError("set plugins.options.sasl_oauth.jwks_url or jwks_file, or remove the mechanism")
        return OAuthServerExchange(self._verifier, self._now_s)

    @hookimpl(trylast=True)
    def sasl_client_exchange(self, settings: UpstreamSasl) -> ClientExchange | None:
        """Return an exchange for OAUTHBEARER. Raises `ValueError` for invalid settings and missing packages."""
        if settings.mechanism != MECHANISM:
            return None
        require(f"{MECHANISM} towards brokers", "oauth", OAUTH)
        return OAuthClientExchange(self._tokens, credentials_of(settings))

    @hookimpl
    def not_ready(self) -> str | None:
        """Return that clients cannot authenticate, until the first keys were fetched."""
        if self._refresher is None or self._refresher.keys is not None:
            return None
        return "the keys that verify clients' tokens have not been fetched yet"

    @hookimpl
    def collect_metrics(self) -> Iterable[Metric]:
        """Return the numbers of fetches of keys and of requests for tokens, by outcome."""
        if self._refresher is not None:
            text = "Fetches of the keys that verify clients' tokens, by outcome. A failed one keeps the last keys."
            counts = {"fetched": self._refresher.fetched, "failed": self._refresher.failed}
            for outcome, count in counts.items():
                yield Metric(name="oauth_key_fetches", help=text, value=count, total=True, labels={"outcome": outcome})
        if self._tokens.used:
            text = "Requests for tokens to authenticate to brokers, by outcome."
            counts = {"fetched": self._tokens.fetched, "failed": self._tokens.failed}
            for outcome, count in counts.items():
                labels = {"outcome": outcome}
                yield Metric(name="oauth_token_requests", help=text, value=count, total=True, labels=labels)

    @hookimpl
    def close(self) -> None:
        """End the thread that fetches keys."""
        if self._refresher is not None:
            self._refresher.close()


def _accepted_too(options: OAuthOptions) -> Iterator[tuple[str, str]]:
    """Yield the name of each option without which further tokens are accepted, and which these are."""
    if options.issuer is None:
        yield "issuer", "those of any issuer that signs with these keys"
    if not options.audience:
        yield "audience", "those without an audience, whatever service they are for"


def _checked_source(options: OAuthOptions) -> Callable[[], bytes]:
    """Return the function that fetches the keys, after a check of the files. Raises `OptionsError`."""
    from headrace.plugins.sasl_oauth.http_requests import tls_context
    from headrace.plugins.sasl_oauth.key_refresh import FetchError, fetch_file, fetch_url
    from headrace.plugins.sasl_oauth.key_set import KeySetError, read_key_set

    path = ("plugins", "options", "sasl_oauth")
    if options.jwks_file is not None:
        try:
            read_key_set(fetch_file(options.jwks_file))
        except (FetchError, KeySetError) as error:
            raise OptionsError([Fault(path=(*path, "jwks_file"), found=options.jwks_file, rule=str(error))]) from error
        return partial(fetch_file, options.jwks_file)
    try:
        tls_context(options.ca_file)
    except OSError as error:
        reason = reason_of(error)
        raise OptionsError([Fault(path=(*path, "ca_file"), found=options.ca_file, rule=reason)]) from error
    return partial(fetch_url, options.jwks_url or "", options.ca_file)
