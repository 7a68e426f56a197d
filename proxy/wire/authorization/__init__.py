"""Authorization without I/O: the permissions that requests need, and removing denied rows from requests and replies.

requirements       the actions of a request, each with the error if it is denied
table              the resources and operations of each API
request_parts      the parts of requests that need a permission, of which the table consists
produced_topic     the requirements of a Produce to one topic, from its first bytes
denied_rows        removing what is denied from a request, and adding the errors to the reply
visible_rows       removing from a reply what the client may not see
requirement_types  the types of requirements, and topics that are named by their ids
fetch_sessions     keeping clients from opening fetch sessions

Called by `headrace.proxy.connection.authorization`, which asks the plugins.
"""
