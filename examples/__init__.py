"""Examples, all of which the tests run.

demo                three brokers, the proxy and four clients for half a minute
request_rate        a plugin with a quota key of its own: requests per second
local_users         a plugin that shortens the names of an organization's users, and refuses others
topics_under_quota  a client that creates many topics although a quota allows a few at a time
bi_with_duckdb      costs by team and month with DuckDB, from the lake's tables
orchestration       the pipeline under Airflow and under Dagster
"""
