"""The connection of one client, and the tasks that relay its requests and replies.

client_connection      the sockets of a connection and the nursery of its two relays
request_relay          client to broker: scanning, calling callbacks
request_forwarding     client to broker: writing what was read to the broker
reply_relay            broker to client: matching replies, calling callbacks, editing, sending
native                 giving the connection to the native data plane, and continuing it when it returns
relay                  the base class of both relays: reading into the shared buffer, splicing
whole_requests         requests that are read in full: authentication, mutations, refused ones
client_quota_requests  answering DescribeClientQuotas and AlterClientQuotas
broker_questions       requests of the proxy's own on a client's connection
mutations              requests that create or delete partitions: looking up their cost, forwarding or answering them
opening                what precedes the first request: TLS, and authentication by the proxy
authorization          asking plugins whether a client may do what it requests; answering what it may not
enforcement            calling the quota callbacks and carrying out their verdicts
refusals               answering requests in place of the broker
collected_replies      charging replies by their content, and editing them, in steps
reply_edits            what is changed in replies
state                  the state of one connection, and what all connections share
"""
