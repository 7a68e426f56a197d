"""The names of span attributes.

Source: OpenTelemetry semantic conventions 1.44.0, messaging and Kafka (status: Development), server and client
(Stable). The names are repeated here, since the package that defines them is a beta whose minor versions rename
attributes. Attributes that no convention defines begin with ``headrace.``, as the conventions' *naming* page requires.
"""

from __future__ import annotations

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_OPERATION_NAME: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGING_CLIENT_ID: Final = "messaging.client.id"
MESSAGING_DESTINATION_NAME: Final = "messaging.destination.name"
MESSAGING_KAFKA_CLUSTER_ID: Final = "messaging.kafka.cluster.id"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
CLIENT_ADDRESS: Final = "client.address"
CLIENT_PORT: Final = "client.port"
NETWORK_PEER_ADDRESS: Final = "network.peer.address"
NETWORK_PEER_PORT: Final = "network.peer.port"
USER_NAME: Final = "user.name"
ERROR_TYPE: Final = "error.type"

API_KEY: Final = "headrace.api_key"
API_VERSION: Final = "headrace.api_version"
CORRELATION_ID: Final = "headrace.correlation_id"
CONNECTION_ID: Final = "headrace.connection_id"
NODE_ID: Final = "headrace.node_id"
ACKS: Final = "headrace.acks"
REQUEST_BYTES: Final = "headrace.request_bytes"
RESPONSE_BYTES: Final = "headrace.response_bytes"
VERDICT: Final = "headrace.verdict"
THROTTLE_MS: Final = "headrace.throttle_ms"
OBSERVED_MS: Final = "headrace.observed_ms"
BROKER_THROTTLE_MS: Final = "headrace.broker_throttle_ms"
REFUSED_CODE: Final = "headrace.refused_code"
QUOTA_KEY: Final = "headrace.quota.key"
QUOTA_ENTITY: Final = "headrace.quota.entity"
QUOTA_OBSERVED: Final = "headrace.quota.observed"
QUOTA_LIMIT: Final = "headrace.quota.limit"
