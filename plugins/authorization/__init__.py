"""Authorization by rules in the configuration, with the meaning of Kafka's access control lists.

plugin   the hook implementations
rules    which rule decides about an action, as Kafka's StandardAuthorizer finds it
options  the options of the plugin
"""

from headrace.plugins.authorization.plugin import Authorization

__all__ = ["Authorization"]
