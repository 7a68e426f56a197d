"""The observers of SASL exchanges: which principal they set, and when. `test_sasl_identity_kafka` asks Kafka."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headrace.plugins.sasl_identity import SaslIdentity
from headrace.plugins.sasl_identity.names import MAX_JWT_CHARACTERS, oauth_name, plain_name, scram_name, token_id
from headrace.plugins.sasl_identity.options import IdentityOptions
from headrace.quota_callbacks.hookspecs import PluginContext
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS, TokenObserver
from headrace.quota_callbacks.options import read_options
from tests.plugins.sasl_identity.sasl_messages import bearer, jwt, unsecured

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.quota_callbacks.identities import AuthenticationObserver

FALLBACK = "somebody"
LONG = "x" * (MAX_PRINCIPAL_CHARACTERS + 1)


def observer(mechanism: str, **options: str) -> AuthenticationObserver:
    plugin = SaslIdentity()
    plugin.configure(PluginContext(options=options, quotas=None))  # type: ignore[arg-type]
    return plugin.authentication_started(mechanism)


# --- names ---


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (b"\0tim\0tanstaaftanstaaf", "tim"),  # RFC 4616, section 4
        (b"Ursel\0Kurt\0xipj3plmq", "Kurt"),  # the same: a broker of Kafka refuses it
        ("\0日,本=\0p".encode(), "日,本="),
        (b"\0\0p", None),
        (b"\0alice", None),
        (b"\0alice\0p\0q", None),
        (b"", None),
        (b"\0" + LONG.encode() + b"\0p", None),
        (b"\0" + LONG[1:].encode() + b"\0p", LONG[1:]),
    ],
)
def test_names_in_plain(message: bytes, name: str | None) -> None:
    assert plain_name(message) == name


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", "user"),  # RFC 7677, section 3
        (b"n,a=user,n=user,r=fyko+d2lbbFgONRv9qkxdawL", "user"),
        (b"n,,m=ext,n=user,r=x", "user"),
        (b"n,,n=a=2Cb=3Dc,r=x", "a,b=c"),
        (b"n,,n==3D2C,r=x", "=2C"),
        (b"n,,n=a=2cb,r=x", None),
        (b"n,,n=a=b,r=x", None),
        (b"n,,n=,r=x", None),
        (b"n,,n=user,r=x,other=1,tokenauth=false", "user"),
        (b"n,,n=token-id,r=x,tokenauth=true", None),
        (b"n,,n=token-id,r=x,tokenauth=false,tokenauth=TRUE", None),
        (b"n,,r=x,n=user", None),
        (b"n,,n=user", None),
        (b"n,n=user,r=x", None),
        (b"\xff,,n=user,r=x", None),
        (b"", None),
        (b"n,,n=" + LONG.encode() + b",r=x", None),
    ],
)
def test_names_in_scram(message: bytes, name: str | None) -> None:
    assert scram_name(message) == name


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (bearer(unsecured({"sub": "alice"})), "alice"),
        (bearer(unsecured({"sub": "alice"}), authzid="a=alice", extensions="traceId=1\x01"), "alice"),
        (bearer(unsecured({"sub": "ålice, of = sales"})), "ålice, of = sales"),
        (bearer(unsecured({"sub": "alice"}) + "c2lnbmF0dXJl"), "alice"),
        (bearer(unsecured({"sub": "first"}), extensions=f"auth=bearer  {unsecured({'sub': 'last'})}\x01"), "last"),
        (bearer("opaque-token"), None),
        (bearer("a.b.c.d.e"), None),
        (bearer("a.!.c"), None),
        (bearer(unsecured({"sub": 5})), None),
        (bearer(unsecured({"sub": ""})), None),
        (bearer(unsecured({"sub": LONG})), None),
        (bearer(unsecured({"name": "alice"})), None),
        (bearer(jwt('["sub"]')), None),
        (bearer(jwt("[" * 10_000)), None),
        (bearer(unsecured({"sub": "alice"})).replace(b"Bearer", b"Basic"), None),
        (b"n,,\x01auth=Bearer " + unsecured({"sub": "alice"}).encode(), "alice"),
        (b"n,,\x01\x01", None),
        (b"\x01", None),
        (b"", None),
        (bearer(unsecured({"sub": "alice", "pad": "x" * MAX_JWT_CHARACTERS})), None),
    ],
)
def test_names_in_oauthbearer(message: bytes, name: str | None) -> None:
    assert oauth_name(message, "sub") == name


MOST_BYTES = 512 * 1024
"""``sasl.server.max.receive.size`` of a broker."""


def padded(begin: bytes, part: bytes, end: bytes = b"") -> bytes:
    """Return a message of the most bytes that a broker reads."""
    return begin + part * ((MOST_BYTES - len(begin) - len(end)) // len(part)) + end


ALICE = bearer(unsecured({"sub": "alice"}))
TAIL = ALICE.partition(b"\x01auth=Bearer ")[2]


@pytest.mark.parametrize(
    ("read", "message", "name"),
    [
        (plain_name, padded(b"\0alice\0", b"p"), "alice"),
        (plain_name, padded(b"", b"\0"), None),
        (plain_name, padded(b"\0", b"\xff", b"\0p"), None),
        (scram_name, padded(b"n,,n=alice,r=x", b","), "alice"),
        (scram_name, padded(b"n,,n=alice,r=x,", b"other=1,"), "alice"),
        (scram_name, padded(b"n,,m=", b"m", b",n=alice,r=x"), "alice"),
        (scram_name, padded(b"n,,n=alice,r=x,tokenauth=true,", b"other=1,", b"o=1"), None),
        (scram_name, padded(b"n,,n=id,r=x,", b"tokenauth=true,", b"tokenauth=false"), "id"),
        (scram_name, padded(b"n,,n=", b"=2C", b",r=x"), None),
        (token_id, padded(b"n,,n=id,r=x,tokenauth=true,", b"other=1,", b"o=1"), "id"),
        (oauth_name, padded(ALICE[:-1] + b"pad=", b"a", b"\x01\x01"), "alice"),
        (oauth_name, padded(b"n,,\x01", b"pad=a\x01", ALICE[4:]), "alice"),
        (oauth_name, padded(b"n,,\x01", b"auth=Bearer a.b.c\x01", ALICE[4:]), "alice"),
        (oauth_name, padded(b"n,,\x01auth=Bearer", b" ", TAIL), "alice"),
        (oauth_name, padded(b"n,,\x01auth=Bearer ", b"."), None),
        (oauth_name, padded(b"n,,\x01auth=Bearer a.", b"x", b".c\x01\x01"), None),
    ],
)
def test_a_padded_message_hides_no_name_and_is_not_split_into_its_parts(
    read: Callable[..., str | None], message: bytes, name: str | None
) -> None:
    """Half a million parts would hold the event loop for a tenth of a second, before the client has authenticated."""
    arguments = (message, "sub") if read is oauth_name else (message,)
    tracemalloc.start()
    try:
        assert read(*arguments) == name
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 6 * MOST_BYTES


def test_another_claim() -> None:
    message = bearer(unsecured({"sub": "0f3a", "preferred_username": "alice"}))
    assert oauth_name(message, "preferred_username") == "alice"


@given(st.one_of(st.binary(max_size=200), st.text("n=,\0\x01auth.Ber -_", max_size=60).map(str.encode)))
def test_whatever_comes_is_a_name_or_none(message: bytes) -> None:
    for name in (plain_name(message), scram_name(message), oauth_name(message, "sub")):
        assert name is None or 0 < len(name) <= MAX_PRINCIPAL_CHARACTERS


# --- when ---


def test_plain_is_named_by_the_answer() -> None:
    watching = observer("PLAIN")
    assert watching.principal is None
    watching.exchanged(b"\0alice\0secret", b"")
    assert watching.principal == "alice"


def test_scram_is_named_by_the_servers_signature() -> None:
    """The exchange of RFC 7677, section 3."""
    watching = observer("SCRAM-SHA-256")
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    watching.exchanged(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert watching.principal is None
    watching.exchanged(
        b"c=biws,r=" + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    )
    assert watching.principal == "user"


@pytest.mark.parametrize("answers", [(b"v=early",), (b"r=x,s=y,i=1", b"e=invalid-proof"), (b"r=x", b"r=y", b"v=late")])
def test_scram_without_a_signature_in_its_place_names_nobody(answers: tuple[bytes, ...]) -> None:
    watching = observer("SCRAM-SHA-512")
    for answer in answers:
        watching.exchanged(b"n,,n=user,r=x", answer)
    watching.served()
    assert watching.principal is None


def test_oauthbearer_is_named_by_an_empty_answer() -> None:
    watching = observer("OAUTHBEARER")
    watching.exchanged(bearer(unsecured({"sub": "alice"})), b'{"status":"invalid_token"}')
    assert watching.principal is None
    watching.exchanged(bearer(unsecured({"sub": "bob"})), b"")
    assert watching.principal == "bob"


@pytest.mark.parametrize(
    ("mechanism", "exchange"),
    [
        ("PLAIN", [(b"what is this", b"")]),
        ("SCRAM-SHA-256", [(b"n,,n=id,r=x,tokenauth=true", b"r=x,s=y,i=1"), (b"c=biws", b"v=z")]),
        ("OAUTHBEARER", [(bearer("opaque"), b"")]),
        ("GSSAPI", [(b"\x60ticket", b"\x60mutual"), (b"", b"\x05wrapped"), (b"\x05wrapped", b"")]),
    ],
)
def test_the_fallback_user_is_who_cannot_be_seen(mechanism: str, exchange: list[tuple[bytes, bytes]]) -> None:
    watching, nameless = observer(mechanism, fallback_user=FALLBACK), observer(mechanism)
    for sent, answer in exchange:
        assert watching.principal is None
        watching.exchanged(sent, answer)
        nameless.exchanged(sent, answer)
    assert watching.principal == FALLBACK
    assert nameless.principal is None


def test_clients_without_a_name_and_without_a_fallback_user_are_warned_of_once() -> None:
    plugin = SaslIdentity()

    def log_in(*answers: bytes) -> list[str]:
        with capture_logs() as lines:
            gssapi = plugin.authentication_started("GSSAPI")
            for answer in answers:
                gssapi.exchanged(b"", answer)
        assert gssapi.principal is None
        return [each["setting"] for each in lines if each["log_level"] == "warning"]

    assert log_in(b"\x05wrapped") == [], "the broker has not accepted the client"
    assert log_in(b"\x05wrapped", b"") == ["plugins.options.sasl_identity.fallback_user"]
    assert log_in(b"\x05wrapped", b"") == []
    with capture_logs() as lines:
        named = observer("GSSAPI", fallback_user=FALLBACK)
        named.exchanged(b"", b"")
    assert not lines


@pytest.mark.parametrize("mechanism", ["GSSAPI", "SCRAM-SHA-1", "MADE-UP", ""])
def test_who_is_served_behind_an_unknown_exchange_is_the_fallback_user(mechanism: str) -> None:
    watching = observer(mechanism, fallback_user=FALLBACK)
    watching.exchanged(b"\x60", b"\x60")
    assert watching.principal is None
    watching.served()
    assert watching.principal == FALLBACK


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_nobody_is_named_before_an_answer(mechanism: str) -> None:
    watching = observer(mechanism, fallback_user=FALLBACK)
    watching.served()
    assert watching.principal is None


# --- options ---


def test_options() -> None:
    assert read_options(IdentityOptions, {}, "sasl_identity") == IdentityOptions(
        fallback_user=None, oauth_principal_claim="sub"
    )
    table = {"fallback_user": "kerberos", "oauth_principal_claim": "azp"}
    assert read_options(IdentityOptions, table, "sasl_identity") == IdentityOptions(
        fallback_user="kerberos", oauth_principal_claim="azp"
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"fallback": "x"}, r"fallback: unknown key; did you mean plugins\.options\.sasl_identity\.fallback_user\?"),
        ({"fallback_user": ""}, 'fallback_user = "": expected the name of a user, 1 to 1024 characters'),
        ({"fallback_user": 5}, "fallback_user = 5: expected"),
        ({"fallback_user": LONG}, "expected the name of a user, 1 to 1024 characters"),
        ({"oauth_principal_claim": ["sub"]}, r'oauth_principal_claim = \["sub"\]: expected the name of a claim'),
    ],
)
def test_options_that_make_no_sense(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^plugins\.options\.sasl_identity\.{message}|{message}$"):
        read_options(IdentityOptions, table, "sasl_identity")


def test_a_delegation_token_is_named_once_the_broker_has_accepted_it() -> None:
    for extension, answer, token in (
        ("tokenauth=true", b"e=no", None),
        ("x=y", b"v=z", None),
        ("tokenauth=true", b"v=z", "a,id"),
    ):
        watching = observer("SCRAM-SHA-256", fallback_user=FALLBACK)
        assert isinstance(watching, TokenObserver)
        watching.exchanged(f"n,,n=a=2Cid,r=x,{extension}".encode(), b"r=x,s=y,i=1")
        assert watching.token_id is None
        watching.exchanged(b"c=biws", answer)
        assert watching.token_id == token
    assert watching.principal == FALLBACK


def test_a_token_whose_id_cannot_be_read_is_the_fallback_users() -> None:
    watching = observer("SCRAM-SHA-256", fallback_user=FALLBACK)
    watching.exchanged(b"n,,n=" + LONG.encode() + b",r=x,tokenauth=true", b"r=x,s=y,i=1")
    watching.exchanged(b"c=biws", b"v=z")
    assert isinstance(watching, TokenObserver)
    assert (watching.principal, watching.token_id) == (FALLBACK, None)
