"""The arithmetic of quotas: the buckets that usage is charged to, and what they are made of.

client_quotas   the configured quotas and their buckets: one per key
kinds           the kind of bucket of each quota key
quota_bucket    what every kind of bucket has
sampled_rate    Kafka's Rate over SampledStat, and the throttle time that follows
token_bucket    Kafka's token bucket
bloom_filters   the producer ids seen within the window (KIP-936)
timeline        the timeline of an entity whose quota is paced
throttle_times  the metric ``throttle-time``
shared          the same in memory that several workers share
"""
