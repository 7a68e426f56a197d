"""The table of topics whose creation was requested recently."""

from __future__ import annotations

from headrace.proxy.connection.state.created_topics import CREATION_TAKES_S, CreatedTopics
from headrace.quota_callbacks.requests import TopicMutation


def test_a_request_that_the_broker_refuses_changes_no_number() -> None:
    """The topic exists, or its sender may not create it. Another client would pay for the number."""
    topics = CreatedTopics()
    topics.ask_for([TopicMutation(topic="t", partitions=2)], 0.0)
    topics.ask_for([TopicMutation(topic="t", partitions=10_000)], 1.0)
    assert topics.partitions("t", 1.0) == 2
    topics.ask_for([TopicMutation(topic="t", partitions=10_000)], CREATION_TAKES_S)
    assert topics.partitions("t", CREATION_TAKES_S) == 10_000
    topics.refused(["t", "unknown"], CREATION_TAKES_S + 1)
    assert topics.partitions("t", CREATION_TAKES_S) == 10_000, "it was noted by an earlier request"
    topics.refused(["t"], CREATION_TAKES_S - 1)
    assert topics.partitions("t", CREATION_TAKES_S) == 0
