"""The admin server: health, metrics, recent decisions, and turning enforcement on and off.

server           the admin HTTP server and its pages
access           which requests are answered: host, origin, and bearer token or client certificate
connections      the admin server's open connections and their limits
turns            how much of the event loop requests take, and the rates of addresses
tls              the certificate, handshakes within bounds, and encrypted streams
http             HTTP/1.1 connections for the admin server
listening        the admin server's socket: a TCP port, or a Unix socket
client           the admin server's client, for the command line
command_options  the options of commands that use this client
operations       the operations behind the pages
metrics_page     the Prometheus page
why              the output of ``headrace why``
"""
