"""Fetching keys: by HTTPS from a real server, from a file, periodically, and for tokens with unknown keys."""

from __future__ import annotations

import ssl
import threading
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from headrace.plugins.sasl_oauth.http_requests import LONGEST_ANSWER_BYTES
from headrace.plugins.sasl_oauth.key_refresh import (
    BETWEEN_REQUESTED_S,
    LONGEST_RETRY_S,
    FetchError,
    KeyRefresher,
    Schedule,
    fetch_file,
    fetch_url,
)
from headrace.plugins.sasl_oauth.key_set import KeySetError, read_key_set
from headrace.plugins.sasl_oauth.options import Algorithm
from tests.plugins.sasl_oauth.identity_provider import Reply, identity_provider, new_authority
from tests.plugins.sasl_oauth.issuer import ec_key, ed_key, key_set, rsa_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.plugins.sasl_oauth.identity_provider import Authority, IdentityProvider

WAIT_S = 20.0


# --- when ---


def test_keys_are_fetched_periodically() -> None:
    schedule = Schedule(refresh_s=3600)
    schedule.attempted(100, succeeded=True)
    assert schedule.due_s() == 3700


def test_failed_fetches_are_repeated_after_longer_and_longer_times() -> None:
    schedule = Schedule(refresh_s=3600)
    waits = []
    for _ in range(9):
        schedule.attempted(100, succeeded=False)
        waits.append(schedule.due_s() - 100)
    assert waits == [1, 2, 4, 8, 16, 32, LONGEST_RETRY_S, LONGEST_RETRY_S, LONGEST_RETRY_S]
    schedule.attempted(100, succeeded=True)
    assert schedule.due_s() == 3700


def test_a_failed_fetch_is_repeated_at_the_next_refresh_at_the_latest() -> None:
    schedule = Schedule(refresh_s=10, failures=50)
    assert schedule.due_s() == 10


def test_a_token_with_an_unknown_key_causes_a_fetch_but_not_at_once() -> None:
    schedule = Schedule(refresh_s=3600)
    schedule.attempted(100, succeeded=True)
    schedule.requested = True
    assert schedule.due_s() == 100 + BETWEEN_REQUESTED_S


# --- from where ---


def test_by_https(provider: IdentityProvider, authority: Authority) -> None:
    provider.serves(key_set(rsa_key()))
    assert fetch_url(f"{provider.url}/keys", str(authority.file)) == key_set(rsa_key())
    (asked,) = provider.asked
    assert (asked.method, asked.path) == ("GET", "/keys")
    assert asked.headers["Accept-Encoding"] == "identity"


def test_an_untrusted_server_is_not_asked(provider: IdentityProvider, tmp_path: Path) -> None:
    stranger = new_authority(tmp_path)
    for ca_file in (str(stranger.file), None):
        with pytest.raises(FetchError, match="CERTIFICATE_VERIFY_FAILED"):
            fetch_url(provider.url, ca_file)
    assert provider.asked == []


def test_the_servers_name_is_verified(authority: Authority) -> None:
    with identity_provider(authority.server_tls("other.example.com")) as other:
        with pytest.raises(FetchError, match=r"CERTIFICATE_VERIFY_FAILED.*localhost"):
            fetch_url(other.url, str(authority.file))
        assert other.asked == []


def test_old_versions_of_tls_are_refused(authority: Authority) -> None:
    tls = authority.server_tls()
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.maximum_version = ssl.TLSVersion.TLSv1_2
    with identity_provider(tls) as current:
        current.serves(b"{}")
        assert fetch_url(current.url, str(authority.file)) == b"{}"
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        tls.minimum_version = tls.maximum_version = ssl.TLSVersion.TLSv1_1
    with identity_provider(tls) as old, pytest.raises(FetchError):
        fetch_url(old.url, str(authority.file))


REPLIES: dict[str, tuple[Reply, str]] = {
    "a redirect": (Reply(status=302, headers={"Location": "http://127.0.0.1:1/"}), "answered with status 302"),
    "an error": (Reply(b"secret", status=500), "answered with status 500"),
    "too long": (Reply(bytes(LONGEST_ANSWER_BYTES + 1)), f"sent more than {LONGEST_ANSWER_BYTES} bytes"),
    "cut off": (Reply(b"{}", length=100), "cannot be reached"),
}


@pytest.mark.parametrize("case", REPLIES)
def test_answers_that_are_not_a_document(case: str, provider: IdentityProvider, authority: Authority) -> None:
    reply, reason = REPLIES[case]
    provider.answer = lambda _: reply
    with pytest.raises(FetchError, match=reason) as refused:
        fetch_url(f"{provider.url}/keys?key=hidden", str(authority.file))
    assert "hidden" not in str(refused.value)
    assert "secret" not in str(refused.value)
    assert len(provider.asked) == 1


def test_nothing_listens() -> None:
    with identity_provider() as gone:
        pass
    with pytest.raises(FetchError, match=f"{gone.url} cannot be reached"):
        fetch_url(gone.url, None)


def test_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    with pytest.raises(FetchError, match="no such file"):
        fetch_file(str(file))
    file.write_bytes(key_set(rsa_key()))
    assert fetch_file(str(file)) == key_set(rsa_key())


# --- what ---


def test_keys_that_cannot_verify_are_left_out() -> None:
    usable = [rsa_key().jwk(), ec_key().jwk(use=...), ed_key().jwk()]
    usable[1].pop("use")
    others: list[Any] = [
        rsa_key("encryption").jwk(use="enc"),
        rsa_key("short", 1024).jwk(),
        {"kty": "oct", "kid": "secret", "k": "c2VjcmV0"},
        {"kty": "OKP", "kid": "exchange", "crv": "X25519", "x": ed_key().jwk()["x"]},
        {"kty": "new", "kid": "new"},
        ec_key().jwk(kid="off the curve", x=ec_key().jwk()["y"]),
        ec_key().jwk(kid="unknown curve", crv="P-1"),
        rsa_key().jwk(kid=5),
        {},
        5,
        None,
    ]
    keys = read_key_set(key_set(*others, *usable, *others))
    assert [key.kid for key in keys.keys] == ["rsa", "ec", "ed"]
    assert [key.family for key in keys.keys] == ["RSA", "P-256", "Ed25519"]


def test_a_key_is_only_used_for_its_algorithm() -> None:
    keys = read_key_set(key_set(rsa_key("a").jwk(alg="RS256"), rsa_key("b").jwk(alg="PS256")))
    assert keys.select("a", Algorithm.PS256) is None
    for algorithm, kid in ((Algorithm.RS256, "a"), (Algorithm.PS256, "b")):
        key = keys.select(None, algorithm)
        assert key is not None
        assert key.kid == kid
    assert keys.select(None, Algorithm.RS384) is None


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"keys": 5}', b'{"keys": []}', b"\xff", b"[" * 100_000])
def test_documents_without_keys(document: bytes) -> None:
    with pytest.raises(KeySetError, match="the key set"):
        read_key_set(document)


# --- the thread ---


@pytest.fixture
def running(provider: IdentityProvider, authority: Authority) -> Iterator[KeyRefresher]:
    """With keys that were fetched; a requested refresh need not wait."""
    provider.serves(key_set(rsa_key("first")))
    schedule = Schedule(refresh_s=3600, between_requested_s=0)
    refresher = KeyRefresher(lambda: fetch_url(provider.url, str(authority.file)), schedule)
    refresher.start(WAIT_S)
    yield refresher
    provider.release()
    refresher.close()


def kids(refresher: KeyRefresher) -> list[str | None]:
    assert refresher.keys is not None
    return [key.kid for key in refresher.keys.keys]


def test_the_start_waits_for_the_first_keys(running: KeyRefresher) -> None:
    assert kids(running) == ["first"]
    assert (running.fetched, running.failed) == (1, 0)


def test_new_keys_are_fetched_when_one_is_unknown(running: KeyRefresher, provider: IdentityProvider) -> None:
    """The old keys stay in use during the fetch, and any number of requests for keys causes one or two."""
    provider.hold()
    provider.serves(key_set(rsa_key("first"), rsa_key("second")))
    for _ in range(100):
        running.request_refresh()
    provider.wait_for(2)
    assert kids(running) == ["first"]
    provider.release()
    running.request_refresh()  # the third fetch begins when the second is over
    provider.wait_for(3)
    assert kids(running) == ["first", "second"]
    running.close()
    assert len(provider.asked) <= 4, "one for the requests before a fetch, one for those during it, and the last"


def test_the_last_keys_stay_in_use_while_the_source_fails(running: KeyRefresher, provider: IdentityProvider) -> None:
    with capture_logs() as logs:
        provider.serves(b"", status=503)
        running.request_refresh()
        provider.wait_for(2)
        running.request_refresh()
        provider.wait_for(3)  # so the second is over
        assert kids(running) == ["first"]
        running.close()
    (line,) = [each for each in logs if each["log_level"] == "warning"]
    assert "the last ones stay in use" in line["event"]
    assert "503" in line["reason"]
    assert running.failed >= 1


def test_the_start_goes_on_without_keys(provider: IdentityProvider, authority: Authority) -> None:
    with capture_logs() as logs:
        provider.hold()
        schedule = Schedule(refresh_s=3600, between_requested_s=0)
        refresher = KeyRefresher(lambda: fetch_url(provider.url, str(authority.file)), schedule)
        refresher.start(0.01)
        assert refresher.keys is None
        provider.wait_for(1)
        refresher.request_refresh()
        provider.release()
        provider.wait_for(2)
        refresher.close()
    assert [each["log_level"] for each in logs] == ["warning"]
    assert "all clients are refused" in logs[0]["event"]


def test_an_error_of_another_kind_does_not_end_the_thread() -> None:
    failed, again = threading.Event(), threading.Event()

    def fetch() -> bytes:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("unexpected")
        again.set()
        return key_set(rsa_key())

    refresher = KeyRefresher(fetch, Schedule(refresh_s=3600, between_requested_s=0))
    refresher.start(WAIT_S)
    refresher.request_refresh()
    assert again.wait(WAIT_S)
    refresher.close()
    assert refresher.failed == 1
