"""Authenticates the proxy to brokers by PLAIN and SCRAM.

plugin          the hook implementation
exchanges       the authentication of one connection
shared_results  results of work in threads, which several connections share for some time
"""

from headrace.plugins.sasl_client.plugin import SaslClient

__all__ = ["SaslClient"]
