"""The options of the plugin: the table ``[plugins.options.sasl_identity]``."""

from __future__ import annotations

from typing import Annotated, Final

from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS
from headrace.quota_callbacks.options import Table, text

DEFAULT_CLAIM: Final = "sub"
"""The broker's default (``sasl.oauthbearer.sub.claim.name``)."""

_LENGTH: Final = f"1 to {MAX_PRINCIPAL_CHARACTERS} characters"


class IdentityOptions(Table):
    """The options of ``sasl_identity``."""

    fallback_user: Annotated[str | None, text(f"the name of a user, {_LENGTH}", longest=MAX_PRINCIPAL_CHARACTERS)] = (
        None
    )
    """The user of a client that the broker has accepted without a visible name; ``None``: it stays ``ANONYMOUS``."""
    oauth_principal_claim: Annotated[
        str, text(f"the name of a claim of a JWT, {_LENGTH}", longest=MAX_PRINCIPAL_CHARACTERS)
    ] = DEFAULT_CLAIM
    """The claim of a JWT that names the principal; the broker's ``sasl.oauthbearer.sub.claim.name``."""
