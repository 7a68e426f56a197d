"""TLS by rustls, which the native data plane can relay.

sockets  a connection with the methods of a plaintext one
configs  the settings of new connections, from the same files as those of OpenSSL
"""
