"""The state of a connection and what all connections share: the lowest layer, which imports no relay.

connection_state  the state of one connection, which the relays read and change
shared_state      the objects that all connections share
client_sasl       the authentication of a client by the proxy itself
login_threads     the threads that compute the keys of passwords, and the order of the logins that use them
refused_logins    the log line about a login that was refused
authentication    the client's principal, observed in its SASL exchange
token_owners      the owners of delegation tokens, which brokers are asked for
in_flight         the queue of requests that wait for their replies
reply_actions     the ways to process a reply, and reply layouts by API and version
muting            the time until which a client is muted
timeouts          ending connections that are idle, too slow, unanswered or old
created_topics    topics whose creation was requested recently
thread_time       measuring the thread time that is spent on a connection
"""
