"""DescribeClientQuotas and AlterClientQuotas (KIP-546): authorization, validation, the store, and the reply.

Called by `headrace.proxy.connection.client_quota_requests` with a request of a client that the broker has accepted. Errors are
those of a broker (`validation`, `filters`); what a broker has no error for is in the error messages of this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
import trio

from headrace.proxy.quotas.authorization import Permissions, may
from headrace.proxy.quotas.filters import compile_filter
from headrace.proxy.quotas.store import Alteration, Author, StoreError, StoreTimeoutError
from headrace.proxy.quotas.validation import validate_alterations
from headrace.proxy.wire.client_quotas import (
    alter_response,
    describe_error,
    describe_response,
    read_alter_request,
    read_describe_request,
)
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.identities import QuotaOperation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.proxy.quotas.authorization import AskPlugins
    from headrace.proxy.quotas.definitions import QuotaDefinitions
    from headrace.proxy.quotas.follower import StoreFollower
    from headrace.proxy.quotas.store import Change
    from headrace.quota_callbacks.definitions import QuotaTypes
    from headrace.quota_callbacks.requests import Connection

log = structlog.get_logger("headrace.quotas")

CLUSTER_AUTHORIZATION_FAILED: Final = 31
REQUEST_TIMED_OUT: Final = 7
UNKNOWN_SERVER_ERROR: Final = -1
INVALID_REQUEST: Final = 42

NOT_AUTHORIZED: Final = "Cluster authorization failed."
"""The message of Kafka's ``Errors.CLUSTER_AUTHORIZATION_FAILED``."""
NO_STORE: Final = (
    "quotas cannot be changed at this proxy: client_quotas.file is not set, so there is no place to keep them"
)
SLICE: Final = 500
"""Entities that are compared with a filter, or encoded, between two pauses; they take about 2 ms."""
