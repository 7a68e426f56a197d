"""`make demo`: three real brokers, Headrace in front of them, and four real clients, for about half a minute.

    python -m examples.demo [--seconds N] [--keep] [--brokers N]

| module | owns |
|---|---|
| `__main__`, `command` | the command line, signals, exit status |
| `screen` | what is printed: steps, the live table on a terminal, plain tables elsewhere |
| `preparing`, `prepare` | Java and Kafka's jars, fetched by a process that can be ended at any time |
| `scenario` | who the four clients are, their topics and quotas: change the demo here |
| `session` | the run: cluster, proxy and clients from start to end |
| `client_process`, `reports` | a client's process and what it says of itself |
| `clients/` | the client programs; each can be run by hand |
| `throttle_watch` | a plugin of the proxy that adds up throttling per client |
| `proxy_pages` | reading the proxy's metrics |
| `measuring` | bytes over time, from the brokers' end offsets and the consumer |
| `usage_act` | the last act: what was used, through the pipeline |
| `table`, `verdict`, `keeping` | the table, the last paragraph, the addresses of `--keep` |
"""
