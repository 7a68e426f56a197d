"""Sockets, listeners and the connections to brokers.

listeners          listening sockets and the accept loop
connection_counts  how many client connections are open, in all and from each address
upstream           reaching the brokers
topology           which brokers there are and where they are shown
sockets            the one module that touches sockets on the hot path
splicing           large frames moved from socket to socket in the kernel
poller             one wait for the sockets of all connections
"""
