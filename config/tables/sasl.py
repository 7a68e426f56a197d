"""The tables ``[listen.sasl]``, ``[upstream.sasl]`` and ``[upstream.owner_lookup]``: who authenticates clients, and the
proxy's own logins."""
# pydantic reads annotations at run time, so they are not postponed here.

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import ValidatorFunctionWrapHandler, WrapValidator

from headrace.config.keys import Key, Section
from headrace.quota_callbacks.options import Fault, Parsed, choice, list_of, text, validation_error
from headrace.quota_callbacks.secret_sources import SecretSource, secret_source
from headrace.quota_callbacks.units import duration

_MECHANISM = text('the name of a SASL mechanism, such as "SCRAM-SHA-512"', r"[A-Z0-9_-]{1,20}")


_IDENTITIES: Final = "tables, each headed [[upstream.sasl.identities]]"
MOST_IDENTITIES: Final = 1000
"""The most identities; passwords, keys and tokens of so many are kept (`headrace.plugins.sasl_client`)."""


class SaslMode(StrEnum):
    """Who authenticates the clients of a listener by SASL."""

    OBSERVE = "observe"
    TERMINATE = "terminate"


class LookupMechanism(StrEnum):
    """How the proxy authenticates to ask brokers for the owners of delegation tokens."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


class UnknownOwner(StrEnum):
    """What the proxy does with a client whose delegation token has an owner that cannot be found."""

    FALLBACK_USER = "fallback_user"
    REFUSE = "refuse"


def _texts(expected: str) -> Parsed:
    def parse(raw: object) -> dict[str, str]:
        if not isinstance(raw, dict) or not all(isinstance(each, str) for each in raw.values()):
            raise ValueError
        return dict(raw)

    return Parsed(expected, parse, {"type": "object", "additionalProperties": {"type": "string"}})


_OPTIONS: Final = _texts('a table of strings, such as { token_endpoint = "https://login.example.com/token" }')


class ListenSasl(Section):
    """SASL with clients."""

    mode: Annotated[
        SaslMode,
        choice(SaslMode),
        Key(
            "observe: the brokers authenticate clients, and the proxy learns their users. terminate: the proxy "
            "authenticates clients itself, and the brokers do not see their credentials.",
            restart=True,
        ),
    ] = SaslMode.OBSERVE
    mechanisms: Annotated[
        tuple[Annotated[str, _MECHANISM], ...],
        list_of('a list of SASL mechanisms, such as ["SCRAM-SHA-512"]', shortest=1),
        Key("The mechanisms that clients may use if the proxy authenticates them. Each needs a plugin.", restart=True),
    ] = ("SCRAM-SHA-512", "SCRAM-SHA-256")
    session_lifetime_s: Annotated[
        float | None,
        duration("1s", "30d"),
        Key(
            "Time after which clients that the proxy has authenticated must do so again "
            "(Kafka: connections.max.reauth.ms). The default is the lifetime of their credentials.",
            restart=True,
        ),
    ] = None


class UpstreamIdentity(Section):
    """A table ``[[upstream.sasl.identities]]``: the user of the brokers that the clients of a user have."""

    client: Annotated[
        str,
        text('the user of clients, such as "alice", a prefix such as "etl-*", or "*" for all other users'),
        Key("The user of the clients: a name, the beginning of names with * after it, or * for all other users."),
    ]
    mechanism: Annotated[str | None, _MECHANISM, Key("The mechanism; by default that of upstream.sasl.")] = None
    user: Annotated[str, text("the name of a user"), Key("The user, or the client id of OAUTHBEARER, at the brokers.")]
    password: Annotated[
        SecretSource | None, secret_source(), Key("The password, or the client's secret of OAUTHBEARER.")
    ] = None
    options: Annotated[
        Mapping[str, Any],
        _OPTIONS,
        Key("Further settings of the mechanism, as its plugin documents them."),
    ] = {}


def _read_identities(raw: Any, read: ValidatorFunctionWrapHandler) -> tuple[UpstreamIdentity, ...]:
    """Read all tables. A user or prefix with two identities is an error."""
    if not isinstance(raw, list | tuple) or not all(isinstance(each, Mapping | UpstreamIdentity) for each in raw):
        raise validation_error([Fault(rule=f"expected {_IDENTITIES}")])  # without the value, which may contain a secret
    identities: tuple[UpstreamIdentity, ...] = read(raw)
    if len(identities) > MOST_IDENTITIES:
        raise validation_error([Fault(rule=f"expected at most {MOST_IDENTITIES} tables; there are {len(identities)}")])
    first_set: dict[str, int] = {}
    faults = []
    for index, identity in enumerate(identities):
        first = first_set.setdefault(identity.client, index)
        if first != index:
            first_path = (first, "client")
            faults.append(Fault(path=(index, "client"), found=identity.client, rule="set twice", first=first_path))
    if faults:
        raise validation_error(faults)
    return identities


class UpstreamSasl(Section):
    """The proxy's own login at brokers: used if ``mechanism`` is set."""

    mechanism: Annotated[
        str | None,
        _MECHANISM,
        Key(
            "The mechanism by which the proxy authenticates to brokers: PLAIN, SCRAM-SHA-512, OAUTHBEARER ...",
            restart=True,
        ),
    ] = None
    user: Annotated[
        str | None,
        text("the name of a user"),
        Key("The user, or the client id of OAUTHBEARER, as which the proxy authenticates to brokers.", restart=True),
    ] = None
    password: Annotated[
        SecretSource | None,
        secret_source(),
        Key("The password, or the client's secret of OAUTHBEARER.", restart=True),
    ] = None
    options: Annotated[
        Mapping[str, Any],
        _OPTIONS,
        Key("Further settings of the mechanism, as its plugin documents them.", restart=True),
    ] = {}
    identities: Annotated[
        tuple[UpstreamIdentity, ...],
        WrapValidator(_read_identities),
        Key(
            "The user of the brokers as which the proxy authenticates for the clients of each user. Clients of other "
            "users are refused. Without this key, all clients share the identity of user and password.",
            restart=True,
        ),
    ] = ()


class OwnerLookup(Section):
    """Asking brokers for the owners of delegation tokens, by which clients authenticate to them: used if ``mechanism``
    is set."""

    mechanism: Annotated[
        LookupMechanism | None,
        choice(LookupMechanism),
        Key(
            "The mechanism by which the proxy authenticates to brokers to ask them who owns a delegation token. "
            "Without it, clients that authenticate by such tokens count as the fallback user.",
            restart=True,
        ),
    ] = None
    user: Annotated[
        str | None,
        text("the name of a user"),
        Key("The user that asks, who must be allowed to describe all delegation tokens.", restart=True),
    ] = None
    password: Annotated[SecretSource | None, secret_source(), Key("The password of the user.", restart=True)] = None
    unknown_owner: Annotated[
        UnknownOwner,
        choice(UnknownOwner),
        Key(
            "fallback_user: a client whose token's owner cannot be found counts as the fallback user for as long as it "
            "stays connected. refuse: its connection is closed.",
            restart=True,
        ),
    ] = UnknownOwner.FALLBACK_USER
