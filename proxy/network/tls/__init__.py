"""TLS with clients and with brokers, by Python's `ssl` or by rustls on non-blocking sockets.

tls_socket        a connection with TLS of OpenSSL, with the methods of a plaintext one
rustls_socket     a connection with TLS of rustls, which the native data plane can relay
kernel            a connection to a broker with TLS of the kernel, and whether there can be one
hello_socket      the first record of a client, before any state is allocated
secured_socket    the interface of a connection with TLS, which is the same for each library
records           where records end, and how many of them may be without data
handshakes        the bounds of handshakes with clients: their number, time and share of the event loop
handshake_turns   the order of their computations, which goes round the addresses
client_hello      the host name that a client asks for
contexts          the settings of new connections, created again when files change
rustls_configs    the same settings for rustls, from the same files
renewal           checking regularly whether certificate files have changed
files             reading certificates and keys
failures          what a failure of TLS means, for the log
subjects          the user of a client certificate: its subject, and Kafka's mapping rules
"""
