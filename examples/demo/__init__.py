"""`make demo`: three real brokers, Headrace in front of them, and four real clients, for about half a minute.

    python -m examples.demo [--seconds N] [--keep] [--brokers N]

__main__, command   the command line, signals, exit status
screen              the output: steps, the live table on a terminal, plain tables elsewhere
preparing, prepare  Java and Kafka's jars, fetched by a process that can be ended at any time
scenario            the four clients, their topics and quotas: change the demo here
session             the run: cluster, proxy and clients from start to end
client_process      a client's process
reports             the reports of a client on standard output
clients             the client programs; each can be run by hand
throttle_watch      a plugin of the proxy that adds up throttling per client
proxy_pages         reads the proxy's metrics
measuring           bytes over time, from the brokers' end offsets and the consumer
usage_act           the pipeline on the usage records of the run
table               the table of the clients
verdict             the summary
keeping             the addresses that ``--keep`` prints
"""
