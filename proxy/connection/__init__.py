"""One client's connection, with the tasks that relay its requests and replies.

client_connection  one client: both sockets, the mute, the nursery of its two relays
request_relay      client to broker: scan, ask the callbacks, forward, mute
reply_relay        broker to client: match, ask the callbacks, edit, send at once
whole_requests     requests that are read whole: refused, authenticating, mutations
mutation_lookup    what a mutation would change, asked of the broker
authentication     who the client is, read along with its SASL
enforcement        asking the callbacks, and muting for their verdict
refusals           answering instead of the broker
reply_edits        editing a reply that was collected
in_flight          requests that wait for their replies, in order
muting             until when a client is not read
reply_actions      what to do with a reply: the sum type, and the layout by API and version
relay              what both relays do: reading into the shared buffer, and splicing
state              the state of one connection, which all of the above read and change
shared_state       what all connections of a process share
thread_time        the thread time that relays spend on a connection
"""
