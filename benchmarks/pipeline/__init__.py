"""The pipeline's speed and memory, on generated usage records.

generate     writes generated usage records to a lake
ingesting    measures ingestion in records per second
run          measures jobs: records per second and core on one and two cores; peak memory with a small and a large lake
anomaly_day  measures how anomalies compares a day with 1, 7 and 30 days of past: CPU seconds of the Python workers
daily_cost   measures what rollup and anomalies cost day after day, with a growing past: CPU seconds of Java and Python
usage_files  size and CPU time of usage records as JSON lines, Parquet and compressed lines
stage        one measured job, in a separate process
"""
