"""The options of the plugin."""
# pydantic reads annotations at run time, so they are not postponed here.

from typing import Annotated

from headrace.quota_callbacks.options import TRUE_OR_FALSE, Table


class TopicOptions(Table):
    """The table ``[plugins.options.topic_quotas]``."""

    enabled: Annotated[bool, TRUE_OR_FALSE] = False
    """Whether quotas of topics can be set. The proxy then learns the names of topics, which costs time."""
