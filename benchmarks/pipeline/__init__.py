"""The pipeline's speed and memory, on generated usage records.

generate     writes generated usage records to a lake
ingesting    measures ingestion in records per second
run          measures jobs: records per second and core on one and two cores; peak memory with a small and a large lake
usage_files  size and CPU time of usage records as JSON lines, Parquet and compressed lines
stage        one measured job, in a separate process
"""
