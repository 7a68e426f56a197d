"""Connections to brokers with TLS of the kernel (kTLS).

sockets  a connection with the methods of a plaintext one
support  whether connections to brokers can have TLS of the kernel
"""
