"""The steps before the first request of a connection that brokers serve.

transport         the PROXY header and the TLS handshake of a client, which determine its peer and user
client_users      the user of a client that has proved who it is, and its identity at the brokers
observed_logins   the requests by which a client authenticates at the broker
sasl_termination  authenticating clients in place of the brokers
user_admission    counting a connection for its user, once the user is proved
token_logins      the user of a client that has authenticated by a delegation token
broker_login      authenticating to a broker as the proxy
"""
