"""The client without trio: threads, closing, and that both clients have the same methods."""

from __future__ import annotations

import inspect
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from headrace.proxy.kafka_client.admin import AdminClient
from headrace.proxy.kafka_client.errors import ApiTimeoutError, ClosedError
from headrace.proxy.kafka_client.sync import SyncAdminClient
from headrace.proxy.kafka_client.topics import NewTopic
from tests.clients.fronts import DEADLINE_S, unique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.kafka.cluster import KafkaCluster

METHODS = (
    *("describe_client_quotas", "alter_client_quotas", "describe_delegation_tokens"),
    *("create_topics", "delete_topics", "create_partitions"),
)


@pytest.fixture
def silent() -> Iterator[tuple[str, threading.Event]]:
    """The address of a server that never answers, and an event that is set when it has a request."""
    asked = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1)
                asked.set()
                while connection.recv(4096):
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", asked
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "the client has closed its connection"


def test_both_clients_have_the_same_methods() -> None:
    public = {name for name, _ in inspect.getmembers(AdminClient, inspect.iscoroutinefunction) if name[0] != "_"}
    assert public == {*METHODS, "aclose"}
    for name in METHODS:
        of_both = [inspect.signature(getattr(kind, name)) for kind in (AdminClient, SyncAdminClient)]
        assert of_both[0] == of_both[1], name


def test_several_threads_use_one_client(kafka3: KafkaCluster) -> None:
    topics = [unique("admin-client") for _ in range(8)]
    with SyncAdminClient(kafka3.bootstrap_servers) as admin, ThreadPoolExecutor(4) as threads:
        created = [threads.submit(admin.create_topics, [NewTopic(name=topic)]) for topic in topics]
        for future, topic in zip(created, topics, strict=True):
            assert future.result(DEADLINE_S)[topic].num_partitions == 1
        admin.delete_topics(topics)
    assert "headrace-admin-client" not in {each.name for each in threading.enumerate()}


def test_errors_reach_the_caller(silent: tuple[str, threading.Event]) -> None:
    servers, _ = silent
    with SyncAdminClient(servers) as admin, pytest.raises(ApiTimeoutError, match=r"timed out after \d+ ms"):
        admin.describe_client_quotas(timeout_ms=1000)


def test_closing_ends_a_call_that_is_under_way(silent: tuple[str, threading.Event]) -> None:
    servers, asked = silent
    admin = SyncAdminClient(servers)
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(admin.describe_client_quotas)
        assert asked.wait(DEADLINE_S)
        admin.close()
        with pytest.raises(ClosedError, match="closed during the call"):
            call.result(DEADLINE_S)


def test_closing_opens_no_connection() -> None:
    """The call that is under way is not sent again."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        listener.settimeout(DEADLINE_S)
        admin = SyncAdminClient(f"127.0.0.1:{listener.getsockname()[1]}")
        call = threads.submit(admin.describe_client_quotas)
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(DEADLINE_S)
            assert connection.recv(1)
            admin.close()
            with pytest.raises(ClosedError, match="closed during the call"):
                call.result(DEADLINE_S)
            while connection.recv(4096):
                pass  # until the client's end is closed
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_closed_client_says_so() -> None:
    with SyncAdminClient("127.0.0.1:1") as admin:
        pass
    admin.close()
    with pytest.raises(ClosedError, match="the client is closed"):
        admin.describe_client_quotas()
