"""A proxy whose clients speak plaintext or TLS, so that an attack runs through both."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from testbed.kafka.certificates import ClientTls
from testbed.proxy_process import ProxyProcess
from tests.clients.tls.proxies import listen_tls
from tests.faults.raw_client import speaking_tls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.kafka.certificates import Authority


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What the proxy's clients speak: TLS with a certificate of ``authority``, plaintext without one."""

    authority: Authority | None

    @contextmanager
    def proxy(self, bootstrap_servers: str, *, config: str = "", **options: Any) -> Iterator[ProxyProcess]:
        """Run a proxy, as `ProxyProcess`; `tests.faults.raw_client.RawClient` speaks with it what its clients do."""
        if self.authority is None:
            with ProxyProcess(bootstrap_servers, config=config, **options) as process:
                yield process
            return
        config = listen_tls(self.authority.broker_certificate()) + config
        with (
            ProxyProcess(bootstrap_servers, config=config, **options) as process,
            speaking_tls(process.port, ClientTls(authority=self.authority).ssl_context()),
        ):
            yield process
