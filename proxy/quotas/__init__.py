"""Quota definitions that can be changed while the proxy runs: where they are kept, and who may change them.

client_quota_apis  DescribeClientQuotas and AlterClientQuotas
authorization      who may describe and change quotas
follower           putting into force what changes in a store
definitions        the quotas in force: the configuration's, and above them the store's
rules              Kafka's rules for both APIs
sqlite             the store in an SQLite file, which several proxies may open
topic              the store in a compacted topic of the cluster
entity_text        entities as text, for stores
store              the interface of stores, and the values that pass through it
"""
