"""The admin server: health, metrics, recent decisions, and turning enforcement on and off.

server          the admin HTTP server and its pages
http            HTTP/1.1 connections for the admin server
client          the admin server's client, for the command line
operations      the operations behind the pages, and their implementation for one process
metrics_page    the Prometheus page
why             the output of ``headrace why``
merged_metrics  metrics and decisions of all workers, merged into one page
"""
