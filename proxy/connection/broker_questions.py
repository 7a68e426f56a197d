"""Requests of the proxy's own on the connection of a client: whether the broker serves it, and what it would change.

They are sent in order with the client's requests, with its client id and its rights. Called by `request_relay` and
`whole_requests`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from headrace.proxy.connection.state.in_flight import Exchange
from headrace.proxy.connection.state.reply_actions import KeepForProxy, reply_layout
from headrace.proxy.connection.state.thread_time import Stopwatch
from headrace.proxy.errors import ClientFault, UpstreamFault
from headrace.proxy.wire.errors import PeerFault
from headrace.proxy.wire.heads import LENGTH_BYTES, request_frame
from headrace.proxy.wire.topic_lookups import ask_for_topics, names_brokers
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.wire.heads import RequestHead


async def ask_for_acceptance(state: ConnectionState, head: RequestHead) -> None:
    """Find out whether the broker serves this client, before the first request that would be charged.

    The proxy's own refresh, if it is under way, may show that the brokers serve clients that do not authenticate.
    Otherwise a Metadata request without topics is sent on the client's connection: a broker names itself only to a
    client that it serves, and closes the connection otherwise. Raises `ClientFault` if the client is not served, and
    `UpstreamFault` if the broker cannot be reached.
    """
    if not state.authenticates:
        await state.shared.upstream.wait_for_refresh()
        if state.is_accepted():
            return
    version, body = ask_for_topics(())
    watch = Stopwatch(state.shared.thread_time)
    reply = await ask_broker(state, head.correlation_id, head.client_id, watch, ApiKey.METADATA, version, body)
    try:
        served = names_brokers(version, reply)
    except PeerFault as fault:
        raise UpstreamFault(str(fault)) from fault
    if not served:
        raise ClientFault("a request before the authentication has succeeded: the broker does not serve this client")
    if state.authentication is not None:
        state.authentication.answered(ApiKey.METADATA)
    state.note_accepted()


async def ask_broker(
    state: ConnectionState,
    correlation_id: int,
    client_id: str,
    watch: Stopwatch,
    api_key: int,
    version: int,
    body: bytes,
) -> bytes:
    """Send a request of the proxy's own, in order with the client's and with its client id; return the reply's body.

    ``watch`` does not measure while this waits. Raises `UpstreamFault` if the broker cannot be reached. Does not return
    if the connection ends first.
    """
    watch.pause()
    upstream = state.upstream or await state.dial()
    replied = trio.Event()
    found: list[bytes] = []

    def take(reply: bytes) -> None:
        found.append(reply)
        replied.set()

    now_s = state.shared.clock()
    frame = request_frame(api_key, version, correlation_id, client_id, body)
    layout = reply_layout(api_key, version)
    size = len(frame) - LENGTH_BYTES
    lookup = Exchange(state.info, api_key, version, correlation_id, client_id, size, now_s, layout)
    lookup.reply = KeepForProxy(take)
    lookup.forwarded_s = now_s
    state.in_flight.add(lookup)
    state.shared.counters.lookups += 1
    await upstream.send([frame])
    await replied.wait()
    watch.resume()
    return found[0]
