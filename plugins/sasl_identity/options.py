"""What the operator asked for: the table ``[plugins.options.sasl_identity]``. Pure; an option that is wrong stops the
start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_CLAIM: Final = "sub"
"""Of the broker (``sasl.oauthbearer.sub.claim.name``)."""

_KNOWN: Final = ("fallback_user", "oauth_principal_claim")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityOptions:
    """The options as they take effect."""

    fallback_user: str | None = None
    """Who a client is that the broker has accepted and whose name cannot be seen; ``None`` leaves it ``ANONYMOUS``."""
    oauth_principal_claim: str = DEFAULT_CLAIM
    """The claim of a JWT that names the principal; the broker's ``sasl.oauthbearer.sub.claim.name``."""


def read_options(table: Mapping[str, object]) -> IdentityOptions:
    """The options of ``table``, or ``ValueError`` with a sentence that names the option, its value and the rule."""
    for name in table:
        if name not in _KNOWN:
            raise ValueError(
                f"plugins.options.sasl_identity.{name}: there is no such option; there are {', '.join(_KNOWN)}"
            )
    claim = _text(table, "oauth_principal_claim", "the name of a claim of a JWT")
    return IdentityOptions(
        fallback_user=_text(table, "fallback_user", "the name of a user"),
        oauth_principal_claim=DEFAULT_CLAIM if claim is None else claim,
    )


def _text(table: Mapping[str, object], name: str, what: str) -> str | None:
    value = table.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MAX_PRINCIPAL_CHARACTERS:
        raise ValueError(
            f"plugins.options.sasl_identity.{name} is {value!r}; expected {what}, 1 to {MAX_PRINCIPAL_CHARACTERS}"
            " characters"
        )
    return value
