"""Create many topics although a quota allows a few at a time, and show what the quota is.

    python -m examples.topics_under_quota localhost:9192 orders- 50

The client waits out the quota ``controller_mutation_rate`` (KIP-599). What is still refused after ten minutes is
printed with the time after which another attempt can succeed.
"""

from __future__ import annotations

import sys

from headrace.proxy.kafka_client.errors import ThrottlingQuotaExceeded
from headrace.proxy.kafka_client.quotas import QuotaFilter
from headrace.proxy.kafka_client.sync import SyncAdminClient
from headrace.proxy.kafka_client.topics import NewTopic
from headrace.quota_callbacks.entities import CLIENT_ID, DEFAULT, QuotaKey

TEN_MINUTES_MS = 600_000


def main(servers: str, prefix: str, count: int) -> int:
    """Create ``count`` topics, and return how many failed."""
    topics = [NewTopic(name=f"{prefix}{number}", num_partitions=1) for number in range(count)]
    with SyncAdminClient(servers) as admin:
        quotas = admin.describe_client_quotas(QuotaFilter.of({CLIENT_ID: DEFAULT}))
        for entity, values in quotas.items():
            if QuotaKey.CONTROLLER_MUTATION_RATE in values:
                print(f"{entity}: {values[QuotaKey.CONTROLLER_MUTATION_RATE]:g} partitions a second")
        results = admin.create_topics(topics, timeout_ms=TEN_MINUTES_MS, raise_errors=False)
    for name, error in results.errors.items():
        if isinstance(error, ThrottlingQuotaExceeded):
            print(f"{name}: refused by the quota; try again in {error.throttle_time_ms / 1000:.0f} s")
        else:
            print(f"{name}: {error}")
    print(f"{len(results.values)} of {count} topics were created")
    return len(results.errors)


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
