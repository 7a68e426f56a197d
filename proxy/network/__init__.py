"""Sockets, listeners and the connections to brokers.

listener           a configured listener: its topology, its upstream, its TLS
listening_sockets  listening sockets and the accept loop
admission          which connections are served: the limits on their number and rate
connection_counts  the number of client connections, in total, by address and by user
connection_rates   the rate of new client connections, in total, by address and by user
overload           pausing the acceptance of connections while descriptors or memory are short
broker_names       the host names of brokers on one TLS port
upstream           connecting to brokers
tls                TLS with clients and with brokers, and the users of client certificates
topology           the brokers of the cluster and their advertised addresses
sockets            non-blocking reads and writes; the only module with socket calls on the hot path
held_bytes         the number of bytes that all connections hold in memory
splicing           moving large frames between sockets inside the kernel
loop_lag           how long the event loop was busy between two polls for events
poller             waiting for the sockets of all connections with one epoll
"""
