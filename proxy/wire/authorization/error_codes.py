"""Kafka's error codes for requests that are not authorized. Source: ``org.apache.kafka.common.protocol.Errors``."""

from __future__ import annotations

from typing import Final

TOPIC_AUTHORIZATION_FAILED: Final = 29
GROUP_AUTHORIZATION_FAILED: Final = 30
CLUSTER_AUTHORIZATION_FAILED: Final = 31
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
OPERATION_NOT_ATTEMPTED: Final = 55
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: Final = 64
DELEGATION_TOKEN_AUTHORIZATION_FAILED: Final = 65
FETCH_SESSION_ID_NOT_FOUND: Final = 70
UNKNOWN_TOPIC_ID: Final = 100
