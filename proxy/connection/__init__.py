"""The connection of one client, and the tasks that relay its requests and replies.

client_connection  the sockets of a connection and the nursery of its two relays
request_relay      client to broker: scanning, calling callbacks, forwarding
reply_relay        broker to client: matching replies, calling callbacks, editing, sending
whole_requests     requests that are read in full: authentication, mutations, refused ones
mutation_lookup    looking up at the broker how many partitions a request would change
authentication     the client's principal, observed in its SASL exchange
enforcement        calling the quota callbacks and carrying out their verdicts
refusals           answering requests in place of the broker
reply_edits        editing replies that were collected
in_flight          the queue of requests that wait for their replies
muting             the time until which a client is muted
reply_actions      the ways to process a reply, and reply layouts by API and version
relay              the base class of both relays: reading into the shared buffer, splicing
state              the state of one connection, which the modules above read and change
shared_state       the objects that all connections of a process share
thread_time        sampling the thread time that relays spend on a connection
"""
