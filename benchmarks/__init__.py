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
quota_topic            the same of the store in a topic
request_costs          fits the request cost model to a real broker
request_cost_admin     its workloads: administration
request_cost_data      its workloads: records, offsets and metadata
request_cost_groups    its workloads: groups and transactions
request_cost_client    its client
request_cost_log       reads Kafka's request log
request_cost_fit       fits a line to the measurements
pipeline               the pipeline's speed and memory
"""
