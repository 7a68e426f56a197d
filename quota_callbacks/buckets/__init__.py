"""The buckets that requests are charged to, and their arithmetic.

quota_scope          the buckets of an entity type of a plugin
client_quotas        the buckets of requests, their limits and windows
bucket_table         the table of buckets: how many there may be, and which are dropped
kinds                the bucket class of each quota key
quota_bucket         the base class of all buckets
sampled_rate         Kafka's Rate over SampledStat, and its throttle time
token_bucket         Kafka's token bucket
timed_bloom_filters  the producer ids seen within the window (KIP-936)
bloom_filters        sets of producer ids, in a few bits per id
timeline             the timeline of an entity with a paced quota
waiting              how long an entity has to wait, and its new connections that wait for it
throttle_times       the metric ``throttle-time``
"""
