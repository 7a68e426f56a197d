"""Logins in messages of half a megabyte, on a real proxy in front of a real broker, which ignores what it does not
know in them. None may hide the client's user, so that no quota of the user applies."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.api_keys import ApiKey
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import unique
from tests.faults import messages
from tests.faults.raw_client import RawClient
from tests.plugins.sasl_identity.sasl_messages import bearer, unsecured
from tests.security.quotas.test_unaccepted_clients import produce
from tests.security.topics import create_topic
from tests.shared_cluster import LISTENER

if TYPE_CHECKING:
    from tests.shared_cluster import FirstBroker

PADDING_BYTES: Final = 400_000


def test_a_token_in_a_long_message_is_that_of_its_user(kafka: FirstBroker) -> None:
    user, topic = unique("padded"), create_topic(kafka, "padded")
    quota = f'[[quotas]]\nentity = {{ user = "{user}" }}\nproducer_byte_rate = 100\n'
    message = bearer(unsecured({"sub": user}), extensions=f"pad={'a' * PADDING_BYTES}\x01")
    with (
        ProxyProcess(kafka.addresses(LISTENER), config=quota) as proxy,
        RawClient(proxy.port, client_id="padded") as client,
    ):
        client.call(messages.SASL_HANDSHAKE, 1, messages.string("OAUTHBEARER"))
        answer = client.call(ApiKey.SASL_AUTHENTICATE, 0, messages.frame(message))
        assert struct.unpack_from(">h", answer) == (0,)
        client.send(produce(topic, "padded", 50_000, 9))
        _, reply = client.reply()
        assert struct.unpack(">i", reply[-4:])[0] > 0
