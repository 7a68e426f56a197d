"""User names from SASL: observes the authentications that pass between clients and brokers.

    options     the plugin's options, validated
    names       reads the user name from a mechanism's message; pure, sans-IO
    observers   one class per family of mechanisms: detects that the broker has accepted, and gives the name
    plugin      the hook implementations

Nothing is verified here: the broker does that, and a name is used only once the broker has accepted it.
"""

from headrace.plugins.sasl_identity.plugin import SaslIdentity

__all__ = ["SaslIdentity"]
