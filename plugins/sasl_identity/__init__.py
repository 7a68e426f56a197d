"""Users by SASL: reads along with the authentications that pass between clients and brokers.

    options     the plugin's options, checked
    names       from a mechanism's message to the name in it; pure, sans-IO
    observers   one class per family of mechanisms: when has the broker accepted, and whom
    plugin      the hooks

Nothing is verified here: the broker does that, and a name counts once the broker has accepted it.
"""

from headrace.plugins.sasl_identity.plugin import SaslIdentity

__all__ = ["SaslIdentity"]
