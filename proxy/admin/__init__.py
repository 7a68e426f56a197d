"""The admin server: health, metrics, decisions and the switch of enforcement.

server          the admin HTTP server and its pages
http            HTTP/1.1 for it
client          the command line's side
operations      what operators ask of a proxy, and what one process answers
metrics_page    the Prometheus page
why             what ``headrace why`` prints
merged_metrics  one page from those of all workers
"""
