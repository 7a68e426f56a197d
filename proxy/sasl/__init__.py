"""The messages of PLAIN and SCRAM, on the client's and on the server's side. Without I/O, and without a clock.

Used by the admin client, and by the plugins that authenticate clients and connections to brokers. Other mechanisms are
implemented by their plugins.

    scram_client  the client's side of SCRAM
    scram_server  the server's side of SCRAM
    plain         the message of PLAIN
    scram         what both sides of SCRAM share: hash functions, keys, names
    errors        the error that all of them raise
"""
