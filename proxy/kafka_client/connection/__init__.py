"""One connection of the client to a broker.

broker_connection  connecting by TCP and TLS; requests and replies
authentication     SASL: the mechanisms PLAIN and SCRAM
scram              the messages of SCRAM, without I/O
api_versions       which versions of APIs the client and the broker have
"""
