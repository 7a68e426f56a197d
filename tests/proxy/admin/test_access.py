"""The rules of the admin server for hosts, origins and tokens, without a server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from headrace.config.tables.admin import Admin
from headrace.proxy.admin.access import MAX_FILE_BYTES, REREAD_S, Access, Tokens, read_tokens
from headrace.proxy.admin.http import HttpRequest
from headrace.proxy.counters import AdminCounters
from headrace.quota_callbacks.secret_sources import SecretSource

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "0123456789abcdef"


async def no_body() -> bytes:
    return b""


def request_of(method: str, path: str, headers: dict[str, str], subject: str | None = None) -> HttpRequest:
    return HttpRequest(
        method=method, path=path, query={}, headers=headers, read_body=no_body, client="127.0.0.1", subject=subject
    )


async def status(listen: str, host: str, *, allowed: tuple[str, ...] = (), origin: str = "") -> int:
    """The status of a GET, 200 if it is not refused."""
    settings = Admin.model_validate({"listen": listen, "allowed_hosts": allowed})
    headers = {"host": host} | ({"origin": origin} if origin else {})
    request = request_of("GET", "/metrics", headers)
    refusal = await Access(lambda: settings, None, AdminCounters()).refusal(request, public=False, changes=False)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    ("listen", "host", "expected"),
    [
        ("127.0.0.1:9190", "127.0.0.1:9190", 200),
        ("127.0.0.1:9190", "192.0.2.7:9190", 403),
        ("192.0.2.7:9190", "192.0.2.7:9190", 200),
        ("192.0.2.7:9190", "192.0.2.8:9190", 403),
        ("192.0.2.7:9190", "localhost:9190", 200),
        ("Admin.example.com:9190", "admin.EXAMPLE.com.:80", 200),
        ("admin.example.com:9190", "example.com", 403),
        ("0.0.0.0:9190", "192.0.2.8", 200),
        ("0.0.0.0:9190", "[2001:db8::1]:9190", 200),
        ("0.0.0.0:9190", "admin.example.com", 403),
        ("[::]:9190", "192.0.2.8:9190", 200),
        ("[::1]:9190", "[::1]", 200),
        ("[2001:db8::1]:9190", "[2001:db8::1]:9190", 200),
        ("unix:/run/admin.sock", "localhost", 200),
        ("unix:/run/admin.sock", "192.0.2.8", 403),
        ("unix:/run/admin.sock", "", 403),
    ],
)
async def test_hosts(listen: str, host: str, expected: int) -> None:
    assert await status(listen, host) == expected


async def test_hosts_of_the_configuration() -> None:
    for host in ("proxy.example.com", "PROXY.example.com.:9190", "192.0.2.9"):
        assert await status("127.0.0.1:9190", host) == 403
        assert await status("127.0.0.1:9190", host, allowed=("Proxy.example.com.", "192.0.2.9")) == 200


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://localhost:9190", 200),
        ("https://LOCALHOST:9190", 200),
        ("http://localhost", 403),
        ("http://localhost:9191", 403),
        ("http://127.0.0.1:9190", 403),
        ("null", 403),
        ("localhost:9190", 403),
        ("file://localhost:9190", 403),
        ("chrome-extension://localhost:9190", 403),
    ],
)
async def test_origins(origin: str, expected: int) -> None:
    assert await status("127.0.0.1:9190", "localhost:9190", origin=origin) == expected


# --- tokens ---


@pytest.mark.parametrize(
    ("listen", "with_file", "authorization", "expected"),
    [
        ("127.0.0.1:9190", False, "", 403),
        ("127.0.0.1:9190", False, f"Bearer {TOKEN}", 403),
        ("[::1]:9190", False, "", 403),
        ("localhost:9190", True, "", 401),
        ("localhost:9190", True, f"Bearer {TOKEN}", 200),
        ("unix:/run/admin.sock", False, "", 200),
        ("unix:/run/admin.sock", True, "", 401),
        ("unix:/run/admin.sock", True, f"Bearer {TOKEN}", 200),
    ],
)
async def test_changes_need_a_token_or_a_unix_socket(
    tmp_path: Path, listen: str, with_file: bool, authorization: str, expected: int
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    settings = Admin.model_validate({"listen": listen})
    headers = {"host": "localhost"} | ({"authorization": authorization} if authorization else {})
    request = request_of("PUT", "/enforcement", headers)
    access = Access(lambda: settings, Tokens(str(file)) if with_file else None, AdminCounters())
    refusal = await access.refusal(request, public=False, changes=True)
    assert (200 if refusal is None else refusal.status) == expected


CERTIFICATES = {"certificate_file": "a.pem", "client_ca_file": "ca.pem", "client_certificates": "requested"}


@pytest.mark.parametrize(
    ("authorizes", "with_file", "subject", "authorization", "expected"),
    [
        (True, False, None, "", 403),
        (True, False, "CN=alice", "", 200),
        (True, False, "", "", 200),
        (True, True, None, "", 401),
        (True, True, "CN=alice", "", 200),
        (True, True, None, f"Bearer {TOKEN}", 200),
        (True, True, "CN=alice", "Bearer wrong", 200),
        (False, True, "CN=alice", "", 401),
        (False, True, "CN=alice", f"Bearer {TOKEN}", 200),
        (False, True, None, f"Bearer {TOKEN}", 200),
    ],
)
async def test_a_certificate_is_as_good_as_a_token_if_it_authorizes(
    tmp_path: Path, authorizes: bool, with_file: bool, subject: str | None, authorization: str, expected: int
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    tls = CERTIFICATES | {"certificate_authorizes": authorizes}
    settings = Admin.model_validate({"listen": "0.0.0.0:9190", "tls": tls})
    headers = {"host": "localhost"} | ({"authorization": authorization} if authorization else {})
    access = Access(lambda: settings, Tokens(str(file)) if with_file else None, AdminCounters())
    for method, changes in (("GET", False), ("PUT", True)):
        request = request_of(method, "/enforcement", headers, subject)
        refusal = await access.refusal(request, public=False, changes=changes)
        assert (200 if refusal is None else refusal.status) == expected, method
        assert refusal is None or (b"client certificate" in refusal.body) == authorizes
        assert await access.refusal(request, public=True, changes=False) is None, "a probe"


async def test_a_certificate_without_the_setting_counts_for_nothing_on_loopback() -> None:
    settings = Admin.model_validate(
        {"listen": "127.0.0.1:9190", "tls": CERTIFICATES | {"certificate_authorizes": False}}
    )
    access = Access(lambda: settings, None, AdminCounters())
    request = request_of("PUT", "/enforcement", {"host": "localhost"}, "CN=alice")
    refusal = await access.refusal(request, public=False, changes=True)
    assert refusal is not None
    assert refusal.status == 403


def problem(path: Path) -> str:
    with pytest.raises(ValueError, match=r"^admin\.token_file: ") as caught:
        read_tokens(str(path))
    return str(caught.value)


def test_a_token_for_each_line(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(f"{TOKEN}\r\n\n  {TOKEN}/+==\n".encode())
    assert read_tokens(str(file)) == (TOKEN.encode(), f"{TOKEN}/+==".encode())


async def test_tokens_of_a_variable_are_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ADMIN_TOKEN", TOKEN)
    (tmp_path / "token").write_text(f"{TOKEN}-of-the-file")
    tokens = Tokens(str(tmp_path / "token"), SecretSource(env="ADMIN_TOKEN"))
    monkeypatch.delenv("ADMIN_TOKEN")
    assert await tokens.authorize(f"Bearer {TOKEN}")
    assert await tokens.authorize(f"Bearer {TOKEN}-of-the-file")
    printed = SecretSource(command=("printf", f"{TOKEN}\\n{TOKEN}x\\n"))
    assert read_tokens(printed) == (TOKEN.encode(), f"{TOKEN}x".encode())
    assert not await tokens.authorize(f"Bearer {TOKEN}x")
    with pytest.raises(ValueError, match=r"^admin\.token: the variable ADMIN_TOKEN: the variable is not set$"):
        Tokens(None, SecretSource(env="ADMIN_TOKEN"))
    monkeypatch.setenv("ADMIN_TOKEN", "secret")
    with pytest.raises(ValueError, match=r"^admin\.token: line 1 of the variable ADMIN_TOKEN has 6 characters"):
        Tokens(None, SecretSource(env="ADMIN_TOKEN"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "contains no token"),
        (b" \n\n", "contains no token"),
        (b"secret\n", "line 1 of {} has 6 characters and is not a token; expected 16 to 512"),
        (f"{TOKEN}\n{TOKEN} {TOKEN}\n".encode(), "line 2 of {} has 33 characters and is not a token"),
        ("é".encode() * 16, "has 32 characters and is not a token"),
        (b"x" * 513, "has 513 characters and is not a token"),
        (b"x\n" * MAX_FILE_BYTES, "longer than 65536 bytes"),
    ],
)
def test_what_is_no_token_is_not_printed(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    assert reason.format(file) in problem(file)
    assert "secret" not in problem(file)
    assert TOKEN not in problem(file)


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert problem(fifo).endswith("cannot be read: not an ordinary file")
    assert problem(tmp_path / "missing").endswith("cannot be read: no such file or directory")
    assert problem(tmp_path).endswith("cannot be read: is a directory")


async def test_the_file_is_read_again_at_most_once_a_second(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    tokens = Tokens(str(file))
    assert await tokens.authorize(f"Bearer {TOKEN}")
    assert await tokens.authorize(f"bearer  {TOKEN} ")
    file.write_text(f"{TOKEN}-2")
    assert await tokens.authorize(f"Bearer {TOKEN}")
    await trio.sleep(REREAD_S)
    assert not await tokens.authorize(f"Bearer {TOKEN}")
    assert await tokens.authorize(f"Bearer {TOKEN}-2")
    file.unlink()
    await trio.sleep(REREAD_S)
    assert await tokens.authorize(f"Bearer {TOKEN}-2"), "the last tokens that were read remain valid"
    for wrong in (None, "", "Bearer", "Bearer ", TOKEN, f"Basic {TOKEN}-2", f"Bearer {TOKEN}-", "Bearer \xff"):
        assert not await tokens.authorize(wrong)
