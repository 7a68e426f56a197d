"""Quotas of topics: the bytes that all clients together produce to a topic, or fetch from it.

options     the plugin's options, validated
topics      which quota applies to a topic: by its name, by a prefix of its name, or by default; pure
plugin      the hook implementations
"""

from headrace.plugins.topic_quotas.plugin import TopicQuotas

__all__ = ["TopicQuotas"]
