"""The options of the plugin: the table ``[plugins.options.sasl_oauth]``. Read at start."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import model_validator

from headrace.plugins.sasl_oauth.endpoints import check_url, shown
from headrace.quota_callbacks.options import Fault, Parsed, Table, choice, list_of, text, validation_error, whole

DEFAULT_CLOCK_SKEW_S: Final = 30
"""The broker's default (``sasl.oauthbearer.clock.skew.seconds``)."""
LONGEST_CLOCK_SKEW_S: Final = 3600
DEFAULT_REFRESH_S: Final = 3600
"""The broker's default (``sasl.oauthbearer.jwks.endpoint.refresh.ms``)."""
SHORTEST_REFRESH_S: Final = 10
LONGEST_REFRESH_S: Final = 86_400
_LONGEST_NAME: Final = 1024


class Algorithm(StrEnum):
    """The algorithms of signatures that can be allowed: those with a public key.

    ``none`` and the algorithms with a shared secret (HS256) are not among them: with the latter, everybody who knows
    the public key could sign, since it would be used as the secret.
    """

    RS256 = "RS256"
    RS384 = "RS384"
    RS512 = "RS512"
    PS256 = "PS256"
    PS384 = "PS384"
    PS512 = "PS512"
    ES256 = "ES256"
    ES384 = "ES384"
    ES512 = "ES512"
    EDDSA = "EdDSA"


_KEYS_URL: Final = "the URL of a JSON Web Key Set, such as https://idp.example.com/keys"


def _parse_url(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError  # noqa: TRY004  reported like every invalid value
    try:
        check_url(raw)
    except ValueError as error:
        raise validation_error([Fault(rule=f"expected {_KEYS_URL}; {error}", found=shown(raw))]) from None
    return raw


_URL: Final = Parsed(_KEYS_URL, _parse_url, {"type": "string"})
_PATH: Final = text("the path of a file")
_CLAIM: Final = text("the name of a claim", longest=_LONGEST_NAME)
_NAME: Final = text(f"a text of 1 to {_LONGEST_NAME} characters", longest=_LONGEST_NAME)


class OAuthOptions(Table):
    """The options of ``sasl_oauth``."""

    jwks_url: Annotated[str | None, _URL] = None
    """Where the keys of the issuer are fetched from; the broker's ``sasl.oauthbearer.jwks.endpoint.url``."""
    jwks_file: Annotated[str | None, _PATH] = None
    """A file with the keys of the issuer, in place of ``jwks_url``."""
    ca_file: Annotated[str | None, _PATH] = None
    """A PEM file with the certificate authorities for ``jwks_url``; ``None``: those of the system."""
    jwks_refresh_s: Annotated[int, whole(SHORTEST_REFRESH_S, LONGEST_REFRESH_S, "seconds")] = DEFAULT_REFRESH_S
    """Time between two fetches of the keys."""
    issuer: Annotated[str | None, _NAME] = None
    """The claim ``iss`` that tokens must have; ``None``: any. ``sasl.oauthbearer.expected.issuer``."""
    audience: Annotated[tuple[Annotated[str, _NAME], ...], list_of("a list of audiences, such as kafka")] = ()
    """One of these must be in the claim ``aud``; empty: tokens with this claim are refused, as a broker does.
    ``sasl.oauthbearer.expected.audience``."""
    principal_claim: Annotated[str, _CLAIM] = "sub"
    """The claim that names the user; ``sasl.oauthbearer.sub.claim.name``."""
    scope_claim: Annotated[str, _CLAIM] = "scope"
    """The claim with the scopes; ``sasl.oauthbearer.scope.claim.name``."""
    required_scopes: Annotated[tuple[Annotated[str, _NAME], ...], list_of("a list of scopes")] = ()
    """Scopes that every token must have. Brokers have no such option."""
    clock_skew_s: Annotated[int, whole(0, LONGEST_CLOCK_SKEW_S, "seconds")] = DEFAULT_CLOCK_SKEW_S
    """How far the issuer's clock may differ; ``sasl.oauthbearer.clock.skew.seconds``."""
    algorithms: Annotated[
        tuple[Annotated[Algorithm, choice(Algorithm)], ...], list_of("a list of algorithms of signatures", shortest=1)
    ] = tuple(Algorithm)
    """The algorithms of signatures that are accepted."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Reject two sources of keys, and options that have no effect."""
        faults: list[Fault] = []
        if self.jwks_url is not None and self.jwks_file is not None:
            faults.append(Fault(path=("jwks_file",), rule="expected either this or jwks_url"))
        if not self.enabled:
            faults += (
                Fault(path=(name,), rule="has no effect without jwks_url or jwks_file")
                for name in sorted(self.model_fields_set)
            )
        elif self.ca_file is not None and self.jwks_url is None:
            faults.append(Fault(path=("ca_file",), rule="only applies to jwks_url"))
        if any(any(each.isspace() for each in scope) for scope in self.required_scopes):
            faults.append(Fault(path=("required_scopes",), rule="a scope contains no spaces; expected one per element"))
        if faults:
            raise validation_error(faults)
        return self

    @property
    def enabled(self) -> bool:
        """Whether clients' tokens can be verified."""
        return self.jwks_url is not None or self.jwks_file is not None
