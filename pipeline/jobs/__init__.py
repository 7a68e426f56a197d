"""The command of each job. It reads options, calls the functions of `pipeline.analysis` and others, and prints results.

run          ``headrace pipeline run``
ingest       ``headrace pipeline ingest``
instances    ``headrace pipeline instances``
rollup       ``headrace pipeline rollup``
budgets      ``headrace pipeline budgets``
recommend    ``headrace pipeline recommend``
what_if      ``headrace pipeline what-if``
calibrate    ``headrace pipeline calibrate``
anomalies    ``headrace pipeline anomalies``
report       ``headrace pipeline report``
focus        ``headrace pipeline focus``
maintenance  the jobs that look after the lake
"""
