"""Benchmarks: `make bench` compares proxies with a direct connection; smaller ones measure single parts
(docs/benchmarks.md).

bench                  compares the paths to a broker: throughput, latency, CPU and memory
bloom                  the Bloom filters of the producer id quota
decisions              a quota decision, by number of entities
instructions           bytecode instructions, memory and system calls of a request
instructions_stage     the connection that `instructions` measures
paced                  the accuracy of paced enforcement
paced_clients          the clients of `paced`
paced_request_time     the plugin of `paced` that adds up request time
quota_store            the SQLite store of quotas: opening, altering, following, auditing
quota_topic            the store of quotas in a topic: the same operations
quota_definitions      many quotas: putting them into force, describing them, and deciding by them
request_costs          fits the request cost model to a real broker
request_cost_admin     workloads of `request_costs`: administration
request_cost_data      workloads of `request_costs`: records, offsets and metadata
request_cost_groups    workloads of `request_costs`: groups and transactions
request_cost_client    the client of `request_costs`
request_cost_log       reads Kafka's request log
request_cost_fit       fits a line to the measurements
pipeline               the pipeline's speed and memory
"""
