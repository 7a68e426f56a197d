"""One connection of the client to a broker.

broker_connection  connecting by TCP and TLS; requests and replies
authentication     SASL: the mechanisms PLAIN and SCRAM
long_replies       reading long replies in a thread
api_versions       which versions of APIs the client and the broker have
"""
