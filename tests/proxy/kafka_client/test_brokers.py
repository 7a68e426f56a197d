"""The client and real brokers: quotas, topics, SASL and sessions. TLS is in `test_tls`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.proxy.kafka_client.admin import AdminClient
from headrace.proxy.kafka_client.errors import (
    ApiTimeoutError,
    AuthenticationError,
    BrokerError,
    InvalidRequestError,
    UnsupportedVersionError,
)
from headrace.proxy.kafka_client.properties import settings_of
from headrace.proxy.kafka_client.quotas import ANY_NAME, QuotaAlteration, QuotaFilter
from headrace.proxy.kafka_client.topics import NewPartitions, NewTopic
from headrace.quota_callbacks.entities import CLIENT_ID, DEFAULT, IP, USER, QuotaEntity, QuotaKey
from tests.clients.fronts import DEADLINE_S, unique
from tests.shared_cluster import LISTENER, SECRETS, SESSION_MS, SHORT_SESSIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.kafka.cluster import KafkaCluster
    from tests.shared_cluster import FirstBroker

MODULES = {"PLAIN": "plain.PlainLoginModule", "SCRAM-SHA-256": "scram.ScramLoginModule"}


def sasl(mechanism: str, user: str, password: str) -> dict[str, str]:
    """The properties of a user, as in a file for ``--command-config``."""
    module = f"org.apache.kafka.common.security.{MODULES[mechanism]}"
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="{user}" password="{password}";',
    }


def of_user(user: str) -> QuotaFilter:
    """The quotas of one user: tests share the cluster."""
    return QuotaFilter.of({USER: user})


async def described_as(
    admin: AdminClient, wanted: QuotaFilter, expected: Mapping[QuotaEntity, Mapping[str, float]]
) -> None:
    """Wait until the brokers describe these quotas: each learns of a change from the controller."""
    found: Any = None
    with trio.move_on_after(DEADLINE_S):
        while True:
            found = await admin.describe_client_quotas(wanted)
            if found == expected:
                return
            await trio.sleep(0.02)
    raise AssertionError(f"{found} instead of {expected}")


async def described_by_all(
    cluster: KafkaCluster, wanted: QuotaFilter, expected: Mapping[QuotaEntity, Mapping[str, float]]
) -> None:
    """Wait until each broker describes these quotas: a client may ask another one each time."""
    for broker in cluster.brokers:
        async with AdminClient(f"{broker.host}:{broker.port}") as admin:  # which knows no other broker yet
            await described_as(admin, wanted, expected)


async def test_quotas_are_set_described_and_removed(kafka3: KafkaCluster) -> None:
    user = unique("quota-user")
    alone, default = QuotaEntity(user=user), QuotaEntity(user=user, client_id=DEFAULT)
    named = QuotaEntity(user=user, client_id="<default>")
    values = {QuotaKey.PRODUCER_BYTE_RATE: 1000.0, QuotaKey.CONTROLLER_MUTATION_RATE: 0.5}
    async with AdminClient(kafka3.bootstrap_servers) as admin:
        alterations = [
            QuotaAlteration(entity=alone, values=values),
            QuotaAlteration(entity=default, values={"request_percentage": 12.5}),
            QuotaAlteration(entity=named, values={"consumer_byte_rate": 7}),
        ]
        results = await admin.alter_client_quotas(alterations)
        assert [*results] == [alone, default, named]
        everything = {alone: values, default: {"request_percentage": 12.5}, named: {"consumer_byte_rate": 7.0}}
        await described_by_all(kafka3, of_user(user), everything)
        for wanted, expected in (
            (QuotaFilter.of({USER: user}, strict=True), [alone]),
            (QuotaFilter.of({USER: user, CLIENT_ID: DEFAULT}), [default]),
            (QuotaFilter.of({USER: user, CLIENT_ID: "<default>"}), [named]),
            (QuotaFilter.of({USER: user, CLIENT_ID: ANY_NAME}, strict=True), [default, named]),
            (QuotaFilter.of({IP: user}), []),
        ):
            found = await admin.describe_client_quotas(wanted)
            assert found == {each: everything[each] for each in expected}, wanted
        assert (await admin.describe_client_quotas()).items() >= everything.items()
        await admin.alter_client_quotas(
            [QuotaAlteration(entity=each, values=dict.fromkeys(everything[each])) for each in everything]
        )
        await described_by_all(kafka3, of_user(user), {})


async def test_validation_changes_nothing_and_errors_are_by_entity(kafka3: KafkaCluster) -> None:
    good, bad, odd = QuotaEntity(user=unique("good")), QuotaEntity(user=unique("bad")), QuotaEntity.of({"team": "blue"})
    async with AdminClient(kafka3.bootstrap_servers) as admin:
        alterations = [
            QuotaAlteration(entity=bad, values={"producer_byte_rate": 10, "speed": 1}),
            QuotaAlteration(entity=good, values={"producer_byte_rate": 10}),
            QuotaAlteration(entity=odd, values={"producer_byte_rate": 10}),
        ]
        results = await admin.alter_client_quotas(alterations, validate_only=True, raise_errors=False)
        assert [*results.values] == [good]
        errors = results.errors
        assert isinstance(errors[bad], InvalidRequestError)
        assert str(errors[bad]).startswith("INVALID_REQUEST: Invalid configuration key speed (the broker has the API")
        assert "Unhandled client quota entity type: team (the broker has the API" in str(errors[odd])
        with pytest.raises(InvalidRequestError, match="Invalid configuration key speed") as raised:
            await admin.alter_client_quotas(alterations, validate_only=True)
        assert f"for {bad}; 2 of 3 failed" in raised.value.__notes__
        await admin.alter_client_quotas(alterations[:1], raise_errors=False)
        assert await admin.describe_client_quotas(of_user(str(good.user))) == {}
        assert await admin.describe_client_quotas(of_user(str(bad.user))) == {}, "an entity is altered as a whole"
        with pytest.raises(UnsupportedVersionError, match="Unsupported entity type team"):
            await admin.describe_client_quotas(QuotaFilter.of({"team": "blue"}))


async def test_topics_are_created_grown_and_deleted(kafka3: KafkaCluster) -> None:
    one, two, three = (unique("admin-client") for _ in range(3))
    async with AdminClient(kafka3.bootstrap_servers) as admin:
        wanted = [
            NewTopic(name=one, num_partitions=2, replication_factor=1, configs={"retention.ms": "1000"}),
            NewTopic(name=two),
            NewTopic(name=three, assignments={0: [1], 1: [2]}),
        ]
        checked = await admin.create_topics(wanted, validate_only=True)
        created = await admin.create_topics(wanted)
        for results in (checked, created):
            counts = [(each.num_partitions, each.replication_factor) for each in results.values.values()]
            assert counts == [(2, 1), (1, 3), (2, 1)]
        assert created[one].topic_id is not None
        with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
            await admin.create_topics(wanted[:1])
        await admin.create_partitions({one: 5}, validate_only=True)
        await admin.create_partitions({one: 3, three: NewPartitions(total_count=3, assignments=[[0]])})
        with pytest.raises(BrokerError, match=r"INVALID_PARTITIONS: Topic already has 3 partition"):
            await admin.create_partitions({one: 3})
        missing = unique("admin-client")
        deleted = await admin.delete_topics([one, missing, two, three], raise_errors=False)
        assert [*deleted] == [one, missing, two, three]
        assert [*deleted.errors] == [missing]
        assert "UNKNOWN_TOPIC_OR_PARTITION" in str(deleted.errors[missing])


async def test_a_broker_of_3_9(kafka39: KafkaCluster) -> None:
    user, topic = unique("quota-user"), unique("admin-client")
    entity = QuotaEntity(user=user)
    async with AdminClient(kafka39.bootstrap_servers) as admin:
        await admin.alter_client_quotas([QuotaAlteration(entity=entity, values={"producer_byte_rate": 1000})])
        await described_as(admin, of_user(user), {entity: {"producer_byte_rate": 1000.0}})
        assert (await admin.create_topics([NewTopic(name=topic)]))[topic].num_partitions == 1
        await admin.create_partitions({topic: 2})
        await admin.delete_topics([topic])


@pytest.mark.parametrize(("mechanism", "user"), [("PLAIN", "alice"), ("SCRAM-SHA-256", "bob")])
async def test_users_authenticate(mechanism: str, user: str, kafka3: KafkaCluster) -> None:
    settings = settings_of(sasl(mechanism, user, SECRETS[user]), bootstrap_servers=kafka3.addresses(LISTENER))
    topic = unique("admin-client")
    async with AdminClient(settings) as admin:
        await admin.create_topics([NewTopic(name=topic)])
        await admin.delete_topics([topic])


@pytest.mark.parametrize(("mechanism", "user"), [("PLAIN", "alice"), ("SCRAM-SHA-256", "bob")])
async def test_a_wrong_password_is_refused_at_once(mechanism: str, user: str, kafka3: KafkaCluster) -> None:
    settings = settings_of(sasl(mechanism, user, "wrong-word"), bootstrap_servers=kafka3.addresses(LISTENER))
    async with AdminClient(settings) as admin:
        with trio.fail_after(DEADLINE_S), pytest.raises(AuthenticationError) as raised:
            await admin.describe_client_quotas()
    assert str(raised.value).startswith(
        f"user '{user}' by {mechanism}: SASL_AUTHENTICATION_FAILED: Authentication failed"
    )
    assert "wrong-word" not in str(raised.value)


async def test_a_mechanism_that_the_broker_does_not_have(kafka3: KafkaCluster) -> None:
    settings = settings_of(sasl("SCRAM-SHA-256", "bob", "x"), bootstrap_servers=kafka3.addresses(SHORT_SESSIONS))
    async with AdminClient(settings) as admin:
        with pytest.raises(AuthenticationError, match=r"sasl\.mechanism = SCRAM-SHA-256; it accepts PLAIN$"):
            await admin.describe_client_quotas()


async def test_a_session_that_ends_is_replaced_in_time(kafka: FirstBroker) -> None:
    """The broker closes connections whose session has ended (KIP-368); no call notices.

    Nothing is asked in the last part of a session, in which a request of a busy machine could arrive too late.
    """
    servers = kafka.addresses(SHORT_SESSIONS)
    async with AdminClient(settings_of(sasl("PLAIN", "alice", SECRETS["alice"]), bootstrap_servers=servers)) as admin:
        began_s = trio.current_time()
        await admin.describe_client_quotas()
        authenticated_s = trio.current_time()
        (broker,) = admin._cluster._bootstrap
        first = broker._connection
        assert first is not None
        assert began_s < first.expires_at < authenticated_s + 0.9 * SESSION_MS / 1000
        await admin.describe_client_quotas()
        await trio.sleep_until(first.expires_at)
        assert not first.usable
        await admin.describe_client_quotas()
        assert broker._connection is not first
        assert broker.failed_at < 0, "the connection was never lost"


@pytest.mark.exhaustive
async def test_a_listener_that_wants_sasl(kafka3: KafkaCluster) -> None:
    """A broker closes the connection of a client that does not authenticate, after ApiVersions."""
    async with AdminClient(kafka3.addresses(LISTENER)) as admin:
        with pytest.raises(ApiTimeoutError, match="ended before the reply to DescribeClientQuotas"):
            await admin.describe_client_quotas(timeout_ms=6000)
