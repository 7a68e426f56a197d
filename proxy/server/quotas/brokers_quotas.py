"""The quotas that were set at the brokers, which enforce them beside the proxy's (``client_quotas.brokers``).

The cluster is asked regularly, over connections of the proxy's own, with its login if it has one. A long reply is read
in a thread, since decoding many quotas takes seconds. Run by `quotas_in_force`, which passes what is known to the
client-quota APIs.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
import trio

from headrace.proxy.errors import UpstreamFault
from headrace.proxy.kafka_client.connection.long_replies import read_in_thread
from headrace.proxy.kafka_client.errors import KafkaClientError
from headrace.proxy.kafka_client.quotas import read_description, read_remark
from headrace.proxy.kafka_client.settings import MAX_REPLY_BYTES, MAX_REPLY_ROWS
from headrace.proxy.network.upstream import UnansweredFault
from headrace.proxy.repeated_lines import RepeatedLines
from headrace.proxy.wire.errors import PeerFault
from headrace.proxy.wire.messages.codec import decode
from headrace.proxy.wire.messages.row_limit import check_rows
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.definitions import entity_in_force

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.proxy.network.upstream import Upstream
    from headrace.proxy.quotas.definitions import QuotaDefinitions
    from headrace.quota_callbacks.entities import QuotaEntity

    Quotas: TypeAlias = Mapping[QuotaEntity, Mapping[str, float]]

log = structlog.get_logger("headrace.quotas")

INTERVAL_S: Final = 60.0
"""Seconds between two requests to the cluster. The brokers' quotas are only shown, so they may be that old."""
RETRY_S: Final = 5.0
"""Seconds between two requests until the cluster has answered once."""
TIMEOUT_S: Final = 10.0
"""Time for the login and the reply."""
VERSION: Final = 0
"""The version of DescribeClientQuotas that is sent; every broker since Kafka 2.6 has it."""
EVERY_QUOTA: Final = b"\0\0\0\0\0"
"""The body of the request: no components, and not strict."""
_REPLY: Final = "DescribeClientQuotasResponse"
SHOWN: Final = 5
"""Quotas that a warning names; it counts the others."""
SLICE: Final = 500
"""Entities that are compared between two pauses; they take about 1 ms."""


class BrokersQuotas:
    """The quotas that the brokers have returned, and the comparison with those of the proxy.

    Unless they are ``wanted``, brokers are asked only while the proxy has quotas of its own to compare them with.
    """

    def __init__(self, upstream: Upstream, definitions: QuotaDefinitions, *, wanted: bool) -> None:
        self._upstream = upstream
        self._definitions = definitions
        self._wanted = wanted
        self._repeated = RepeatedLines()
        self._warned = ""
        self._in_force: Quotas = {}
        self._both: dict[QuotaEntity, list[str]] = {}
        """The keys of the quotas that the proxy has, too, by entity."""
        self._both_count = 0
        self.quotas: Quotas = {}
        self.known = trio.Event()
        """Set once the cluster has answered."""

    async def run(self) -> None:
        """Ask the cluster at once and then regularly, until cancelled."""
        while True:
            if self._wanted or len(self._definitions):
                await self._refresh()
            await trio.sleep(INTERVAL_S if self.known.is_set() else RETRY_S)

    async def _refresh(self) -> None:
        """Ask the cluster once. A failure is logged, and changes nothing."""
        try:
            body = await self._upstream.request(
                ApiKey.DESCRIBE_CLIENT_QUOTAS,
                VERSION,
                EVERY_QUOTA,
                timeout_s=TIMEOUT_S,
                max_reply_bytes=MAX_REPLY_BYTES,
            )
            quotas, in_force = await read_in_thread(partial(_read, body), size_bytes=len(body))
        except (UpstreamFault, PeerFault, KafkaClientError) as error:
            reason = str(error)
            if isinstance(error, UnansweredFault):
                reason += "; brokers before Kafka 2.6 do so, and listeners that require a login, if the proxy has none"
            if (left_out := self._repeated.due("unknown", reason)) is not None:
                log.info("the brokers' quotas are not known", reason=reason, left_out=left_out or None)
            return
        except Exception as error:  # the proxy serves clients without knowing them
            if (left_out := self._repeated.due("internal error", type(error).__qualname__)) is not None:
                log.exception("internal error; the brokers' quotas are not known", left_out=left_out or None)
            return
        await self.learn(quotas, in_force)
        self.known.set()
        remark = self.remark()
        if remark and remark != self._warned:
            log.warning("brokers have the same quotas", reason=remark)
        self._warned = remark

    async def learn(self, quotas: Quotas, in_force: Quotas) -> None:
        """Replace what is known, and compare it with the proxy's quotas, in slices.

        ``in_force`` has the same quotas by `entity_in_force`.
        """
        self.quotas, self._in_force = quotas, in_force
        for count, entity in enumerate(chain(list(self._both), in_force), start=1):
            self.note(entity)
            if count % SLICE == 0:
                await trio.lowlevel.checkpoint()

    def note(self, entity: QuotaEntity) -> None:
        """Compare the quotas of one entity again (`entity_in_force`), since those of the proxy may have changed."""
        keys = [key for key in self._in_force.get(entity, ()) if self._definitions.has(entity, key)]
        self._both_count += len(keys) - len(self._both.get(entity, ()))
        if keys:
            self._both[entity] = keys
        else:
            self._both.pop(entity, None)

    def remark(self) -> str:
        """Return a sentence about the quotas that both the brokers and the proxy have; empty if there are none."""
        if not self._both_count:
            return ""
        both = (f"{key} of {entity}" for entity, keys in self._both.items() for key in keys)
        more = f" and {self._both_count - SHOWN} more" if self._both_count > SHOWN else ""
        return f"both the brokers and the proxy throttle by these quotas: {'; '.join(islice(both, SHOWN))}{more}"


def _read(body: memoryview) -> tuple[Quotas, Quotas]:
    """Return the quotas in a reply, as they are described and by `entity_in_force`.

    Raises `PeerFault` for a reply that is malformed or has more than `MAX_REPLY_ROWS` rows, and `KafkaClientError` for
    one with an error.
    """
    check_rows(_REPLY, VERSION, body, MAX_REPLY_ROWS)
    reply = decode(_REPLY, VERSION, body)
    read_remark(reply)
    quotas = read_description(reply)
    return quotas, by_entity_in_force(quotas)


def by_entity_in_force(quotas: Quotas) -> Quotas:
    """Return quotas by the entities by which the proxy would enforce them."""
    found: dict[QuotaEntity, Mapping[str, float]] = {}
    for entity, values in quotas.items():
        target = entity_in_force(entity)
        found[target] = {**found[target], **values} if target in found else values
    return found
