"""The plugin sasl_oauth.

issuer             keys, key sets and tokens of an issuer
identity_provider  a real HTTP or HTTPS server with a key set and a token endpoint
kafka_oauth        Kafka's own SASL server and client for OAUTHBEARER
"""
