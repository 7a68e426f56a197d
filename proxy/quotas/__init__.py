"""Quota definitions that can be changed while the proxy runs: where they are kept, and who may change them.

client_quota_apis  DescribeClientQuotas and AlterClientQuotas
validation         Kafka's rules for AlterClientQuotas
filters            Kafka's rules for the filters of DescribeClientQuotas
refusals           the errors with which both APIs refuse a request or an entry
hash_order         the order in which Java's hash maps have strings, on which some answers depend
authorization      who may describe and change quotas
follower           putting into force what changes in a store
definitions        the quotas in force: the configuration's, and above them the store's
sqlite_store       the store in an SQLite file, which several processes may open
sqlite_file        the tables and statements of the SQLite file
sqlite_opening     opening the SQLite file, and what its errors mean
topic              the store in a compacted topic of the cluster
entity_text        entities as text, for stores
store              the interface of stores, and the values that pass through it
"""
