"""SASL/OAUTHBEARER that the proxy takes part in itself: verifies clients' tokens, and obtains tokens for brokers.

    options          the plugin's options, validated
    endpoints        which URLs may be used, and how they appear in messages
    messages         the messages of RFC 7628, as Kafka reads and writes them; pure
    jwt              decodes a JSON Web Token, without verifying it; pure
    claims           the rules for a token's claims; pure
    key_set          the keys of a JSON Web Key Set, and which of them verifies a token
    verification     verifies a token's signature and claims
    http_requests    HTTP requests with bounded time and size
    key_refresh      the thread that fetches the key set
    access_tokens    access tokens by the client-credentials grant, cached
    server_exchange  the exchange with a client
    client_exchange  the exchange with a broker
    plugin           the hook implementations

`key_set` and `verification` use joserfc, and `http_requests` uses httpx, the packages of the extra ``oauth``. They are
imported only when the plugin is used.
"""

from headrace.plugins.sasl_oauth.plugin import SaslOAuth

__all__ = ["SaslOAuth"]
